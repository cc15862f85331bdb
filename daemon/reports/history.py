"""What was: the timeline of one job and the last plan of all (`selastic events`, `selastic plan`), every size that jobs
have had (`selastic acct`), and how right predictions have been (`selastic predict --errors`). Kept after Slurm has
forgotten the job.

Promise: as recorded, oldest event first; GPU-hours and rates are of a row alone, cut nowhere. Limit: a plan row is the
last stored decision of that job; unchanged ones are not stored again, so its time is when the decision was first taken.
A size begins when the supervisor said so; what a companion held before its workers were ready is in Slurm's accounting.
"""

import math
import statistics
from collections.abc import Iterable
from itertools import zip_longest

from slurm_elastic.db.rows import AllocationRow, DecisionRow, JobRow, PredictionRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.history import Allocation, Events, JobEvent, PlanRow, PlanTable
from slurm_elastic.protocol.answers.predict import QUANTILE, PredictionErrors, ProgramErrors
from slurm_elastic.protocol.answers.record import made_from, reason_text, redacted
from slurm_elastic.protocol.errors import NotAllowed

from .common import Viewer, may_see, visible_job


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


LAST = 5000
"""Predictions that are looked back at."""


def prediction_errors(store: Store, viewer: Viewer, now: float) -> PredictionErrors:
    """Of the viewer's own programs; of all for an admin."""
    rows = store.outcomes.predictions(LAST)
    jobs = {job_id: store.jobs.get(job_id) for job_id in {row.job_id for row in rows}}
    seen = [row for row in rows if (job := jobs[row.job_id]) is not None and may_see(viewer, job)]
    groups: dict[tuple[str, str], list[PredictionRow]] = {}
    for row in seen:
        groups.setdefault((row.program, row.gpu_type), []).append(row)
    return PredictionErrors(
        now=now,
        programs=tuple(_errors(*key, group) for key, group in sorted(groups.items())),
        predictions=len(seen),
        error=statistics.median(map(_error, seen)) if seen else None,
        covered=statistics.mean(map(_inside, seen)) if seen else None,
    )


def _errors(program: str, gpu_type: str, rows: list[PredictionRow]) -> ProgramErrors:
    last = max(rows, key=lambda row: row.at)
    return ProgramErrors(
        program=program,
        gpu_type=gpu_type,
        predictions=len(rows),
        error=statistics.median(map(_error, rows)),
        bias=statistics.median(row.predicted / row.observed - 1.0 for row in rows),
        covered=statistics.mean(map(_inside, rows)),
        at=last.at,
        gpus=last.gpus,
        predicted=last.predicted,
        observed=last.observed,
    )


def _error(row: PredictionRow) -> float:
    return abs(row.predicted / row.observed - 1.0)


def _inside(row: PredictionRow) -> float:
    return float(abs(math.log(row.observed / row.predicted)) <= QUANTILE * row.doubt)


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
