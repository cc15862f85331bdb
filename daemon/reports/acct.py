"""What every job has had: a row for each size, the rows of `selastic acct`. Kept after Slurm has forgotten the job.

Promise: GPU-hours and rates are of the row alone, cut nowhere. Limit: a row begins when the supervisor said so; what a
companion held before its workers were ready is in Slurm's accounting, not here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING

from slurm_elastic.protocol.answers.common import reason_text
from slurm_elastic.protocol.answers.record import made_from, redacted

from .common import Viewer, may_see

if TYPE_CHECKING:
    from slurm_elastic.db.rows import AllocationRow, JobRow
    from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.history import Allocation


def acct(
    store: Store,
    viewer: Viewer,
    now: float,
    *,
    start: float | None = None,
    end: float | None = None,
    user: str | None = None,
    job: Iterable[int] = (),
) -> list[Allocation]:
    """Rows by job and start. `start`, `end`: rows that touch this time; `user`: a name or a uid; `job`: ids.

    Another user's row keeps its id, state and GPUs only, and is left out when `user` is given.
    """
    rows = []
    jobs: dict[int, JobRow | None] = {}
    # Rows after `end` are read too: they tell a size left behind from a job's last.
    found = _allocations(store, start, job)
    for allocation, following in zip_longest(found, found[1:]):
        if end is not None and allocation.start >= end:
            continue
        if allocation.job_id not in jobs:
            jobs[allocation.job_id] = store.jobs.get(allocation.job_id)
        owner = jobs[allocation.job_id]
        if owner is None:
            continue
        seen = may_see(viewer, owner)
        if viewer.private and not seen:
            continue
        if user and not (seen and user in (owner.user, str(owner.uid))):
            continue
        row = _row(allocation, owner, viewer, _state(allocation, following, owner), now)
        rows.append(row if seen else redacted(row))
    return rows


def _allocations(store: Store, start: float | None, job: Iterable[int]) -> list[AllocationRow]:
    ids: Iterable[int | None] = sorted(set(job)) or [None]
    rows = [row for job_id in ids for row in store.allocations.rows(job_id, start=start)]
    return sorted(rows, key=lambda row: (row.job_id, row.start, row.generation))


def _state(allocation: AllocationRow, following: AllocationRow | None, job: JobRow) -> str:
    """RESIZED or RESTARTED for what was left behind, the job's own state for its last row."""
    if following is None or following.job_id != allocation.job_id:
        return job.state
    held = (allocation.gpus, allocation.node_list, allocation.batch)
    return "RESTARTED" if held == (following.gpus, following.node_list, following.batch) else "RESIZED"


def _row(allocation: AllocationRow, job: JobRow, viewer: Viewer, state: str, now: float) -> Allocation:
    elapsed_s = max(0.0, (now if allocation.end is None else allocation.end) - allocation.start)
    return made_from(
        Allocation,
        job,
        allocation,
        own=viewer.uid == job.uid,
        state=state,
        elapsed_s=elapsed_s,
        samples_per_s=allocation.samples / elapsed_s if allocation.steps and elapsed_s else None,
        gpu_hours=elapsed_s * allocation.gpus / 3600,
        reason_text=reason_text(allocation.reason),
    )
