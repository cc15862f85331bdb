"""What models assume, and when they are learned; what GPUs cost."""

from dataclasses import dataclass
from typing import ClassVar

from ..config.fields import number, text, texts

_PRICE = (r"([\w.@+-]+:)?[\w.@+-]+=[0-9]{1,9}(\.[0-9]{1,6})?", 'a list such as ["a100=2.5", "spot:a100=0.8"]')


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    table: ClassVar[str] = "models"

    assumed_pause_s: float = number(5.0, 0, 3600)
    """Pause of a resize, as long as none of any job has been measured. Then a job that was never resized is expected to
    pause as the resizes of others say, by the size of its last checkpoint."""

    assumed_requeue_s: float = number(120.0, 0, 86400)
    """Pause of a resize by requeue, as long as none of any job has been measured. A requeue ends the job and starts it
    again from its checkpoint. Only jobs whose request says `via=...+requeue` are requeued, and only for sizes that no
    gentler mechanism reaches."""

    learn_prior_at: str = text("03:30", r"|([01][0-9]|2[0-3]):[0-5][0-9]", "a time of day such as 03:30, or nothing")
    """Time of day, by this host's clock, at which selasticd learns from the jobs that have ended. What it assumes of a
    job before it is measured then comes from this cluster, and from earlier runs of the same program on the same kind
    of GPU; a program is learned anew within a minute of the end of one of its runs, too. Empty: never; what was learned
    before stays in use, or else the prior that is shipped. See docs/explanation/models.md."""

    gpu_prices: tuple[str, ...] = texts(*_PRICE)
    """What an hour of one GPU costs, for `selastic advise`: by its type, or by partition and type; of one that is not
    named, 1. Empty: as Slurm bills it (TRESBillingWeights of the partition, UsageFactor of the QOS), or else 1."""
