"""What was: the rows of `selastic events`, `selastic plan` and `selastic acct`, and what `selastic report` is made of.
Filled by daemon/reports/.
"""

from __future__ import annotations

import json

from ..text.tables import digits, folded, moment
from ..text.times import elapsed
from .explain import Measurement
from .record import Column, JobRecord, about, record, shown_id
from .status import JobStatus


def _end(row: Allocation) -> str:
    if row.end is None:
        return "Unknown" if row.start is not None else ""
    return moment(row.end)


@record
class Allocation(JobRecord):
    """One size that a job has had, with what it cost and what it brought."""

    name: str | None = about("job name", Column("Name", "JobName"))
    state: str = about(
        "RESIZED or RESTARTED for what was left behind, else the job's state", Column("State"), public=True
    )
    start: float | None = about("when this size began to train", Column("Start", form=moment))
    end: float | None = about(
        "when it ended", Column("End", help="when it ended; Unknown: it has this size now", cell=_end)
    )
    elapsed_s: float | None = about(
        "how long, in seconds",
        Column("Elapsed", help="how long, [D-]HH:MM:SS", form=elapsed),
        Column("ElapsedRaw", form=digits(1)),
    )
    gpus: int = about("GPUs", Column("GPUs"), public=True)
    nodes: int | None = about("nodes", Column("Nodes", "NNodes"))
    node_list: str | None = about("names of the nodes", Column("NodeList", form=folded))
    batch: int | None = about("global batch, in samples", Column("Batch"))
    steps: int | None = about("optimizer steps done at this size", Column("Steps"))
    samples: int | None = about("samples trained on at this size", Column("Samples"))
    samples_per_s: float | None = about(
        "samples by elapsed time, the pause included", Column("Samples/s", form=digits())
    )
    gpu_hours: float | None = about("GPUs times elapsed time, in hours", Column("GPUHours", form="{:.2f}".format))
    # The first size of a job has no pause, and an unmeasured one is no zero.
    pause_s: float | None = about(
        "what the resize that began this row cost the training, in seconds",
        Column("Pause", form=lambda pause: f"{pause:.2f}" if pause else ""),
    )
    generation: int | None = about("number of the world of workers", Column("Generation", "Gen"))
    resize: int | None = about("id of the resize that began this row; 0: none did", Column("Resize"))
    reason: str | None = about("why it got this size, as a code", Column("Reason"))
    reason_text: str | None = about("why it got this size, in words", Column("Because"))


@record
class Accounting:
    """Every size that jobs have had, by job and start."""

    allocations: tuple[Allocation, ...]


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


def one_line(detail: dict[str, object]) -> str:
    """An event's detail in one line: key=value, objects inside it as compact JSON."""
    parts = []
    for key, item in detail.items():
        if item is None or item == "":
            continue
        item = round(item, 3) if isinstance(item, float) else item
        shown = item if isinstance(item, str) else json.dumps(item, separators=(",", ":"), ensure_ascii=False)
        parts.append(f"{key}={shown}")
    return " ".join(parts)


@record
class JobEvent:
    """One thing done to a job."""

    id: int = about("number of the event", Column("ID"))
    job_id: int = about("job id", Column("JobID"))
    at: float = about("when it happened", Column("Time", form=moment))
    kind: str = about("what was done", Column("Kind", "EVENT"))
    who: str = about("uid:NUMBER, supervisor or selasticd", Column("Who"))
    detail: dict[str, object] = about("with what", Column("Detail", form=one_line))


@record
class Events:
    """What was done to a job, oldest first."""

    events: tuple[JobEvent, ...]


@record
class PlanRow:
    job_id: int = about("job id", Column("JobID", help="job id; 7_3: a task of array 7", cell=shown_id), public=True)
    task_name: str | None = about("7_3 for a task of array 7, as Slurm names it", public=True)
    name: str | None = about("job name", Column("Name"))
    user: str | None = about("user name", Column("User"))
    own: bool = about("whether it is a job of who asks", public=True)
    gpus_from: int = about("GPUs that it has", Column("From"), public=True)
    gpus_to: int = about("GPUs that it is to have", Column("To"), public=True)
    batch_from: int | None = about("global batch that it has", Column("BatchFrom", "BATCH"))
    batch_to: int | None = about("global batch that it is to have", Column("BatchTo", "TO_BATCH"))
    gain: float | None = about(
        "gain of the move against staying, in jobs' worth of progress", Column("Gain", form="{:+.2f}".format)
    )
    value: float | None = about("value of the target, same unit", Column("Value", form=digits()))
    mechanism: str | None = about("how it gets there", Column("Mechanism", "VIA"))
    mode: str | None = about("off, observe, review or act", Column("Mode"))
    at: float | None = about("when it was decided", Column("At", form=moment))
    reason: str | None = about("why, as a code", Column("Reason"))
    reason_text: str | None = about("why, in words", Column("Because"))


@record
class PlanNote:
    """What a service says of a subject."""

    service: str
    about: str
    text: str


@record
class PlanTable:
    """What the last rounds decided for every active job, or what a round would decide now."""

    at: float | None = about("when the youngest row was decided")
    jobs: tuple[PlanRow, ...]
    notes: tuple[PlanNote, ...] = about(
        "what services say of nodes, the queue and jobs besides; for admins", default=()
    )
