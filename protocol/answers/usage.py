"""What `selastic report` is made of: how jobs have gone over a window. Filled by daemon/reports/usage.py."""

from __future__ import annotations

from .acct import Allocation
from .explain import Measurement
from .record import about, record
from .status import JobStatus


@record
class Fairness:
    """How evenly those were served whose elastic jobs shared the GPUs; None: not known."""

    between: str = about("account or user: whose jobs are compared")
    groups: int = about("how many of them had jobs")
    jain: float | None = about("Jain's index of the progress got by that of an equal division: 1 is even")
    jain_gpus: float | None = about("the same of GPUs")
    ended: int = about("jobs that ended in the window, with a model of their speed: those that rho is of")
    rho_mean: float | None = about("from submission to end, by the time alone on an equal part of the GPUs")
    rho_worst: float | None = about("the same of the job with the largest")


@record
class CurvePoint:
    """The model's throughput at one size."""

    gpus: int
    nodes: int
    batch: int
    samples_per_s: float
    uncertainty: float = about("relative 1-sigma")


@record
class UsageJob(JobStatus):
    """A job with what was measured of it, and the model of that."""

    measured: tuple[Measurement, ...]
    curve: tuple[CurvePoint, ...] = about("at as many samples per GPU as were measured last; empty without a model")
    rho: float | None = about(
        "from submission to end, or until now, by the time alone on an equal part of the GPUs", default=None
    )


@record
class CapacityPoint:
    """GPUs that elastic jobs might hold, from a moment on."""

    at: float
    gpus: float


@record
class Usage:
    """How jobs have gone over a window."""

    now: float
    start: float
    end: float
    jobs: tuple[UsageJob, ...]
    allocations: tuple[Allocation, ...] = about("those of the jobs that touch the window")
    capacity: tuple[CapacityPoint, ...]
    fairness: Fairness | None = about("of all jobs, whoever asks; None: not known, or of named jobs", default=None)
