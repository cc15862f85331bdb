"""The timeline of one job and the last plan of all of them: the rows of `selastic events` and `selastic plan`.

Promise: as recorded, oldest event first. Limit: a plan row is the last stored decision of that job; unchanged ones are
not stored again, so its time is when the decision was first taken.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from slurm_elastic.protocol.errors import NotAllowed

from ..text.cells import moment, number
from .common import Viewer, may_see, reason_text, shown_id, visible_job
from .record import Column, about, made_from, record, redacted

if TYPE_CHECKING:
    from slurm_elastic.db.rows import DecisionRow, JobRow
    from slurm_elastic.db.store import Store


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


def events(store: Store, job_id: int, viewer: Viewer, limit: int = 1000) -> Events:
    """The last `limit` events of the job, oldest first; of job 0: the daemon's own, for admins. Raises NotFound or
    NotAllowed."""
    if job_id:
        visible_job(store, job_id, viewer)
    elif not viewer.admin:
        raise NotAllowed("the daemon's own events (job 0) are shown to admins only")
    rows = sorted(store.events.of(job_id, limit=limit), key=lambda row: (row.at, row.id))
    return Events(events=tuple(made_from(JobEvent, row) for row in rows))


def plan(store: Store, viewer: Viewer) -> PlanTable:
    """`jobs`: what the last rounds decided for every active job; `at`: the youngest of them, None without any."""
    jobs = {job.job_id: job for job in store.jobs.all(active_only=True)}
    decided = [row for row in store.decisions.current() if row.job_id in jobs]
    shown = [(row.at, seen) for row in decided if (seen := plan_row(row, jobs[row.job_id], viewer)) is not None]
    return PlanTable(at=max((at for at, _ in shown), default=None), jobs=tuple(seen for _, seen in shown))


def plan_row(decision: DecisionRow, job: JobRow | None, viewer: Viewer) -> PlanRow | None:
    """A decision as this viewer may see it, None: not at all. Without the job's record its user is not known, and it is
    nobody's own; batches are None where it has none yet."""
    row = made_from(
        PlanRow,
        decision,
        task_name=job.task_name if job is not None else None,
        name=job.name if job is not None else None,
        user=job.user if job is not None else None,
        own=job is not None and job.uid == viewer.uid,
        batch_from=decision.batch_from or None,
        batch_to=decision.batch_to or None,
        reason_text=reason_text(decision.reason),
    )
    if viewer.admin if job is None else may_see(viewer, job):
        return row
    return None if viewer.private else redacted(row)
