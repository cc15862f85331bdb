"""The rows of `selastic events` and `selastic plan`. Filled by daemon/reports/history.py."""

from __future__ import annotations

import json

from ..text.cells import moment, number
from .common import shown_id
from .record import Column, about, record


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
    """What a round decided for one job."""

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
    value: float | None = about("value of the target, same unit", Column("Value", form=number()))
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
