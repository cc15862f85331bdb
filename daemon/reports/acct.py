"""What every job has had: a row for each size, the rows of `selastic acct`. Kept after Slurm has forgotten the job.

Promise: GPU-hours and rates are of the row alone, cut nowhere. Limit: a row begins when the supervisor said so; what a
companion held before its workers were ready is in Slurm's accounting, not here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .common import Viewer, may_see, reason_text, redacted

if TYPE_CHECKING:
    from slurm_elastic.db.rows import AllocationRow, JobRow
    from slurm_elastic.db.store import Store


def acct(
    store: Store,
    viewer: Viewer,
    now: float,
    *,
    start: float | None = None,
    end: float | None = None,
    user: str | None = None,
    job: int | Iterable[int] | None = None,
) -> list[dict[str, Any]]:
    """Rows by job and start. `start`, `end`: rows that touch this time; `user`: a name or a uid; `job`: ids.

    Another user's row keeps its id, state and GPUs only, and is left out when `user` is given.
    """
    rows = []
    jobs: dict[int, JobRow | None] = {}
    for allocation in _allocations(store, start, end, job):
        job_id = allocation.job_id
        if job_id not in jobs:
            jobs[job_id] = store.job(job_id)
        owner = jobs[job_id]
        if owner is None:
            continue
        seen = may_see(viewer, owner)
        if user and not (seen and user in (owner.user, str(owner.uid))):
            continue
        row = _row(allocation, owner, now) | {"own": viewer.uid == owner.uid}
        rows.append(row if seen else redacted(row))
    return rows


def _allocations(
    store: Store, start: float | None, end: float | None, job: int | Iterable[int] | None
) -> list[AllocationRow]:
    if job is None:
        rows = store.allocations(start=start, end=end)
    else:
        ids = [job] if isinstance(job, int) else sorted(set(job))
        rows = [row for job_id in ids for row in store.allocations(job_id, start=start, end=end)]
    return sorted(rows, key=lambda row: (row.job_id, row.start, row.generation))


def _row(allocation: AllocationRow, job: JobRow, now: float) -> dict[str, Any]:
    elapsed = max(0.0, (now if allocation.end is None else allocation.end) - allocation.start)
    ended_with_job = allocation.end is None or (job.end_time is not None and allocation.end >= job.end_time)
    return {
        "job_id": job.job_id,
        "user": job.user,
        "uid": job.uid,
        "account": job.account,
        "partition": job.partition,
        "name": job.name,
        "state": job.state if ended_with_job else "RESIZED",
        "start": allocation.start,
        "end": allocation.end,
        "elapsed_s": elapsed,
        "gpus": allocation.gpus,
        "nodes": allocation.nodes,
        "node_list": allocation.node_list,
        "batch": allocation.batch,
        "steps": allocation.steps,
        "samples": allocation.samples,
        "samples_per_s": allocation.samples / elapsed if allocation.steps and elapsed else None,
        "gpu_hours": elapsed * allocation.gpus / 3600,
        "pause_s": allocation.pause_s,
        "generation": allocation.generation,
        "directive": allocation.directive,
        "reason": allocation.reason,
        "reason_text": reason_text(allocation.reason),
    }
