"""The timeline of one job and the last plan of all of them: the rows of `selastic events` and `selastic plan`.

Promise: as recorded, oldest event first. Limit: a plan row is the last stored decision of that job; unchanged ones are
not stored again, so its time is when the decision was first taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_elastic.protocol.answers.common import reason_text
from slurm_elastic.protocol.answers.record import made_from, redacted
from slurm_elastic.protocol.errors import NotAllowed

from .common import Viewer, may_see, visible_job

if TYPE_CHECKING:
    from slurm_elastic.db.rows import DecisionRow, JobRow
    from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.history import Events, JobEvent, PlanRow, PlanTable


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
