"""What every job has had: a row for each size, the rows of `selastic acct`. Kept after Slurm has forgotten the job.

Promise: GPU-hours and rates are of the row alone, cut nowhere. Limit: a row begins when the supervisor said so; what a
companion held before its workers were ready is in Slurm's accounting, not here.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import zip_longest
from typing import TYPE_CHECKING

from ..text.cells import folded, moment, number
from ..text.times import elapsed
from .common import JobRecord, Viewer, may_see, reason_text
from .record import Column, about, made_from, record, redacted

if TYPE_CHECKING:
    from slurm_elastic.db.rows import AllocationRow, JobRow
    from slurm_elastic.db.store import Store


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
        Column("ElapsedRaw", form=number(1)),
    )
    gpus: int = about("GPUs", Column("GPUs"), public=True)
    nodes: int | None = about("nodes", Column("Nodes", "NNodes"))
    node_list: str | None = about("names of the nodes", Column("NodeList", form=folded))
    batch: int | None = about("global batch, in samples", Column("Batch"))
    steps: int | None = about("optimizer steps done at this size", Column("Steps"))
    samples: int | None = about("samples trained on at this size", Column("Samples"))
    samples_per_s: float | None = about(
        "samples by elapsed time, the pause included", Column("Samples/s", form=number())
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
