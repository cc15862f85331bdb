"""Which jobs may be elastic, and how often all is looked at."""

from dataclasses import dataclass
from typing import ClassVar

from ..config.fields import NAMES, Modes, flag, number, setting, texts
from ..planner.settings import PlannerSettings
from ..slurm.settings import SlurmSettings


@dataclass(frozen=True, kw_only=True)
class JobSettings(Modes):
    table: ClassVar[str] = "jobs"

    partitions: tuple[str, ...] = texts(*NAMES)
    """Partitions whose jobs may be elastic. Empty: all."""

    accounts: tuple[str, ...] = texts(*NAMES)
    """Accounts whose jobs may be elastic. Empty: all."""

    supervisor_requests: bool = setting(False, "true or false", flag)
    """Whether an elastic request counts that is not in the job's comment but comes from inside the job, as by `selastic
    run --elastic`. Slurm never sees such a one, nor do a site's rules in job_submit.lua. A user's own daemon
    (`selasticd --user`) takes them unless told otherwise."""


@dataclass(frozen=True, kw_only=True)
class RoundSettings(PlannerSettings, SlurmSettings, JobSettings):
    table: ClassVar[str] = "rounds"

    round_interval_s: float = number(10.0, 0.2, 3600)
    """Longest time between two rounds. Each costs Slurm one squeue and one sinfo for the whole cluster."""

    min_round_gap_s: float = number(1.0, 0.05, 600)
    """Shortest time between two rounds, however much happens in between."""

    trip_after: int = number(5, 1, 1000)
    """After Slurm has refused the same kind of action for this many jobs of one user in a row, no more such action is
    tried for that user for a while: in that account, partition, or both, if they have one in common. The same holds
    for everybody after it was refused for this many users, and if neither account nor partition explains it, selasticd
    falls back to `review`."""

    trip_s: float = number(600.0, 1, 86400)
    """How long that lasts. The time doubles, up to a day, whenever the next such action is refused too."""
