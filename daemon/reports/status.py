"""What every job has now: the rows of `selastic status`.

Promise: numbers come from the store as they are; what nobody measured or said is None. Limit: Slurm is not asked, so a
job is as old as the daemon's last round.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol

from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.errors import RequestError

from ..text.reasons import bottleneck_text
from . import evidence
from .common import Viewer, known_job, may_see, reason_text, redacted, visible_job

if TYPE_CHECKING:
    from slurm_elastic.db.rows import DecisionRow, IntentRow, InUse, JobRow
    from slurm_elastic.db.store import Store


_PROGRESS = (
    *("samples_per_s", "step_time_s", "step", "samples", "epoch", "reported_at"),
    *("input_wait_share", "comm_share", "bottleneck", "bottleneck_text"),
)
"""What comes from a job's last report."""
_MEASURED = tuple(key for key in _PROGRESS if key not in ("step", "samples", "epoch", "reported_at"))
"""What of it holds for the size that it was measured at, and for no other."""


class HasUid(Protocol):
    """A viewer, or a job as its own owner."""

    @property
    def uid(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Standing:
    """What the store says of a job besides its record: read for all jobs at once, or for one."""

    used: InUse | None
    decision: DecisionRow | None
    opened: IntentRow | None


@lru_cache(maxsize=8192)
def _asked(text: str) -> dict[str, int | None]:
    """Bounds of a request's text; it never changes, and thousands are shown at once."""
    keys = ("min_gpus", "max_gpus", "min_batch", "max_batch")
    try:
        request = elastic_request.parse(text)
    except RequestError:
        return dict.fromkeys(keys)
    return {key: getattr(request, key) for key in keys}


def status(store: Store, viewer: Viewer, now: float, active_only: bool = True) -> list[dict[str, Any]]:
    """A row per job by job id; times in unix seconds, durations in seconds, rates over the whole job.

    Another user's row keeps its id, state and GPUs only.
    """
    return shown(whole(store, now, active_only), viewer)


Board = list[tuple["JobRow", dict[str, Any]]]
"""Every job with its row in full, for nobody's eyes yet."""


def shown(board: Board, viewer: Viewer) -> list[dict[str, Any]]:
    """What of it this viewer may see."""
    found = []
    for job, row in board:
        mine = row | {"own": viewer.uid == job.uid}
        if may_see(viewer, job):
            found.append(mine)
        elif not viewer.private:
            found.append(redacted(mine))
    return found


def whole(store: Store, now: float, active_only: bool = True) -> Board:
    """The rows of `status`, in full."""
    rows: Board = []
    opened = {intent.directive.job_id: intent for intent in store.open_intents()}
    used = store.all_in_use()
    jobs = store.jobs(active_only=active_only)
    decided = store.standing([job.job_id for job in jobs]) if active_only else {}
    for job in jobs:
        standing = Standing(
            used.get(job.job_id),
            decided.get(job.job_id) if active_only else store.decision(job.job_id),
            opened.get(job.job_id),
        )
        rows.append((job, job_row(store, job, job, now, standing)))
    return rows


def job(store: Store, job_id: int, viewer: Viewer, now: float) -> dict[str, Any]:
    """The row of one job, ended or not. Raises NotFound."""
    found = visible_job(store, job_id, viewer) if viewer.private else known_job(store, job_id, viewer)
    row = job_row(store, found, viewer, now)
    return row if may_see(viewer, found) else redacted(row)


def job_row(store: Store, job: JobRow, viewer: HasUid, now: float, standing: Standing | None = None) -> dict[str, Any]:
    """Everything known about one job, in one object."""
    standing = standing or Standing(store.in_use(job.job_id), store.decision(job.job_id), store.open_intent(job.job_id))
    used, decision = standing.used, standing.decision
    row: dict[str, Any] = {
        "job_id": job.job_id,
        "own": viewer.uid == job.uid,
        "state": job.state,
        "user": job.user,
        "uid": job.uid,
        "name": job.name,
        "account": job.account,
        "partition": job.partition,
        "request": job.request,
        "managed": job.managed,
        "submit_time": job.submit_time,
        "start_time": job.start_time,
        "end_time": job.end_time,
        "elapsed_s": _elapsed(job, now),
        "detail": job.detail,
        "pinned": store.pinned(job.job_id),
    }
    row |= _asked(job.request) | _held(job, used, decision) | _progress(store, job, used)
    row |= _target(job, decision, standing.opened)
    row["speedup"] = _speedup(store, job, decision, row)
    return row


def _elapsed(job: JobRow, now: float) -> float | None:
    if job.start_time is None:
        return None
    return max(0.0, (job.end_time if job.end_time is not None else now) - job.start_time)


def _held(job: JobRow, used: InUse | None, decision: DecisionRow | None) -> dict[str, Any]:
    """GPUs that train now; without a supervisor's word what the last round saw the job hold."""
    if used is None or job.end_time is not None:
        seen = decision.gpus_from if decision is not None and job.end_time is None else None
        return {"gpus": seen or None, "nodes": None, "node_list": None, "batch": None, "generation": None}
    nodes = list(dict.fromkeys(node for piece in used.pieces for node in piece.nodes))
    return {
        "gpus": used.gpus,
        "nodes": len(nodes),
        "node_list": ",".join(nodes),
        "batch": used.batch,
        "generation": used.generation,
        "pieces": [
            {"slurm_job_id": piece.slurm_job_id, "kind": piece.kind, "nodes": list(piece.nodes), "gpus": piece.gpus}
            for piece in used.pieces
        ],
    }


def _progress(store: Store, job: JobRow, used: InUse | None) -> dict[str, Any]:
    """What the last report says; what it has measured at another size than the job has now is not known."""
    report = store.last_report(job.job_id)
    if report is None:
        return dict.fromkeys(_PROGRESS)
    row = {
        "samples_per_s": report.samples_per_s,
        "step_time_s": report.step_time_median_s,
        "step": report.step,
        "samples": report.samples,
        "epoch": report.epoch,
        "reported_at": report.at,
        "input_wait_share": report.input_wait_share,
        "comm_share": report.comm_share or None,
        "bottleneck": report.bottleneck or None,
        "bottleneck_text": bottleneck_text(
            report.bottleneck, report.bottleneck_share, report.bottleneck_rank, report.bottleneck_node
        )
        or None,
    }
    if used is not None and used.generation != report.generation and used.gpus != report.gpus:
        row |= dict.fromkeys(_MEASURED)
    return row


def _target(job: JobRow, decision: DecisionRow | None, opened: IntentRow | None) -> dict[str, Any]:
    """Where the job is to go: an order under way speaks before the last decision, and that before the job's record."""
    code = decision.reason if decision is not None and job.managed and job.end_time is None else job.reason
    row = {
        "target_gpus": decision.gpus_to or None if decision is not None else None,
        "target_batch": decision.batch_to or None if decision is not None else None,
        "mode": None if decision is None else decision.mode,
        "resize": None,
    }
    if opened is not None:
        row |= {
            "target_gpus": opened.directive.gpus,
            "target_batch": opened.directive.batch,
            "resize": opened.state,
        }
        code = opened.directive.reason or code
    if job.end_time is not None:
        row |= {"target_gpus": None, "target_batch": None}
    return row | {"reason": code, "reason_text": reason_text(code)}


def _speedup(store: Store, job: JobRow, decision: DecisionRow | None, row: dict[str, Any]) -> float | None:
    """Throughput against that at the smallest size: as measured at both, else the planner's for the size held."""
    gpus = row["gpus"]
    if gpus is None:
        return None
    best: dict[int, float] = {}
    for seen in store.observations(job.job_id):
        best[seen.gpus] = max(best.get(seen.gpus, 0.0), seen.samples_per_s)
    smallest = best.get(row["min_gpus"] or 0)
    if smallest and gpus in best:
        return best[gpus] / smallest
    if decision is None:
        return None
    for size, key in ((decision.gpus_from, "speedup_from"), (decision.gpus_to, "speedup_to")):
        value = evidence.number(decision.evidence, key)
        if size == gpus and value is not None:
            return value
    return None
