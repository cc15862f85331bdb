"""The timeline of one job and the last plan of all of them: the rows of `selastic events` and `selastic plan`.

Promise: as recorded, oldest event first. Limit: a plan row is the last stored decision of that job; unchanged ones are
not stored again, so its time is when the decision was first taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slurm_elastic.protocol.errors import NotAllowed

from .common import Viewer, may_see, moved, reason_text, visible_job

if TYPE_CHECKING:
    from slurm_elastic.db.rows import DecisionRow, JobRow
    from slurm_elastic.db.store import Store


def events(store: Store, job_id: int, viewer: Viewer, limit: int = 1000) -> list[dict[str, Any]]:
    """The last `limit` events of the job, oldest first; of job 0: the daemon's own, for admins. Raises NotFound or
    NotAllowed."""
    if job_id:
        visible_job(store, job_id, viewer)
    elif not viewer.admin:
        raise NotAllowed("the daemon's own events (job 0) are shown to admins only")
    rows = sorted(store.events(job_id, limit=limit), key=lambda row: (row.at, row.id))
    return [
        {"id": row.id, "job_id": row.job_id, "at": row.at, "kind": row.kind, "who": row.who, "detail": row.detail}
        for row in rows
    ]


def plan_row(decision: DecisionRow, job: JobRow | None) -> dict[str, Any]:
    """A decision as a row of a plan. User and name are None without the job's record, batches where it has none yet."""
    return {
        "job_id": decision.job_id,
        "user": job.user if job else None,
        "name": job.name if job else None,
        "at": decision.at,
        "gpus_from": decision.gpus_from,
        "gpus_to": decision.gpus_to,
        "batch_from": decision.batch_from or None,
        "batch_to": decision.batch_to or None,
        "reason": decision.reason,
        "reason_text": reason_text(decision.reason),
        "value": decision.value,
        "gain": decision.gain,
        "mechanism": decision.mechanism,
        "mode": decision.mode,
    }


def plan(store: Store, viewer: Viewer) -> dict[str, Any]:
    """`jobs`: what the last rounds decided for every active job; `at`: the youngest of them, None without any.

    Another user's row keeps its id and its GPUs before and after.
    """
    rows: list[dict[str, Any]] = []
    times: list[float] = []
    jobs = {job.job_id: job for job in store.jobs(active_only=True)}
    for decision in store.current_decisions():
        job = jobs.get(decision.job_id)
        if job is None:
            continue
        if viewer.private and not may_see(viewer, job):
            continue
        times.append(decision.at)
        row = plan_row(decision, job) | {"own": viewer.uid == job.uid}
        if not may_see(viewer, job):
            row = moved(row) | {"own": False}
        rows.append(row)
    return {"at": max(times, default=None), "jobs": rows}
