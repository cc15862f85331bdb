"""The facts of `selastic explain`. Filled by daemon/reports/explain.py; the words are the command line's.

Promise: None or an empty tuple where nothing was.
"""

from __future__ import annotations

from dataclasses import field

from .evidence import Alternative, Evidence
from .record import about, record
from .status import JobStatus


@record
class Decision:
    """What a round decided for the job. Of a cause without its decision only the reason is known."""

    job_id: int | None = None
    at: float | None = None
    gpus_from: int | None = None
    gpus_to: int | None = None
    batch_from: int | None = None
    batch_to: int | None = None
    reason: str
    reason_text: str
    value: float | None = about("value of the target in the objective's unit", default=None)
    gain: float | None = about("gain of the move against staying, same unit", default=None)
    evidence: Evidence = field(default_factory=Evidence)
    alternatives: tuple[Alternative, ...] = ()
    mechanism: str = about("how it gets there", default="")
    mode: str = ""

    @property
    def moves(self) -> bool:
        """Whether it is for another size or batch than the job had."""
        return bool(self.gpus_from) and (self.gpus_from, self.batch_from) != (self.gpus_to, self.batch_to)


@record
class PastResize:
    """How the job came to its present size."""

    at: float
    gpus_from: int
    gpus_to: int
    batch_from: int
    batch_to: int
    pause_s: float
    reason: str
    reason_text: str
    id: int = about("its id; 0: the supervisor changed by itself")
    cause: Decision | None = about("the decision behind it")


@record
class AddedNodes:
    """A companion that a resize asks for."""

    nodes: int
    gpus: int


@record
class ResizeProgress:
    """A resize, and how far it has come."""

    id: int
    gpus: int
    batch: int
    adds: tuple[AddedNodes, ...]
    reason: str
    reason_text: str
    wait_s: float
    state: str
    detail: str
    created: float
    updated: float


@record
class OpenResize(ResizeProgress):
    """One that is under way."""

    cause: Decision | None = about("the decision behind it")


@record
class Refused:
    """What Slurm refused to do about the job, the last time."""

    at: float
    error: str = about("in Slurm's words, and those of the site's plugin where Slurm passes them on")
    again_at: float = about("when the same is asked again at the earliest")


@record
class HostsApart:
    """A host of the job's and another one that do not reach each other: the job is not put on both."""

    host: str
    other: str
    address: str = about("which of them did not answer, and where")
    failures: int = about("resizes in a row that failed because of it")
    again_at: float = about("when it is tried again")


@record
class Measurement:
    """All reports of the job at one configuration."""

    gpus: int
    nodes: int
    batch: int
    micro_batch: int
    accumulation: int
    count: int = about("reports")
    step_time: float = about("median step time, in seconds")
    samples_per_s: float = about("median over the reports, whole job")
    last_at: float
    noise_scale: float = about("gradient noise scale in samples; 0: not measured")
    input_wait_share: float = about("share of a step that waits for input; 0: none, or not known", default=0.0)
    comm_share: float = about("share of a step in communication that nothing hides; 0: not known", default=0.0)


@record
class Checkpoints:
    """What its checkpoints cost, and how often one is taken."""

    at: float = about("when its supervisor said so")
    megabytes: float
    pause_s: float = about("how long the training stands still for one")
    write_s: float = about("how long it is written, beside the training")
    every_s: float = about("seconds between two")
    node_failure_s: float = about(
        "how long a node of its partition trains in the mean until a job loses it; 0: none was lost"
    )


@record
class ExplainedJob(JobStatus):
    """The job's status, and why it is or is not managed."""

    record_reason: str


@record
class Explain:
    """Everything that explains why a job has what it has."""

    now: float
    job: ExplainedJob
    sizes: tuple[int, ...] = about("GPUs of every size that it has had, in order")
    last_resize: PastResize | None
    decision: Decision | None = about("the last one")
    resize: OpenResize | None = about("the resize under way")
    last_closed_resize: ResizeProgress | None = about("the last one that ended")
    refused: Refused | None = about("what Slurm refuses now")
    not_understood: str = about("what its supervisor and selasticd do not understand of each other", default="")
    policy_failed: str = about("why the built-in policy plans in the place of the site's", default="")
    stalled: str = about("where its ranks wait, while no step is done", default="")
    hosts_apart: tuple[HostsApart, ...] = about("hosts that do not reach its own", default=())
    observations: tuple[Measurement, ...]
    mean_pause_s: float | None
    checkpoints: Checkpoints | None = about("of a job that runs", default=None)
