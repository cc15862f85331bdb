"""What every job has now: the rows of `selastic status`.

Promise: numbers come from the store as they are; what nobody measured or said is None. Limit: Slurm is not asked, so a
job is as old as the daemon's last round.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

from slurm_elastic.db.rows import DecisionRow, InUse, JobRow, ResizeRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.answers.explain import Evidence
from slurm_elastic.protocol.answers.record import made_from, read, reason_text, redacted
from slurm_elastic.protocol.answers.status import HeldPiece, JobStatus
from slurm_elastic.protocol.codes import Reason, bottleneck_text
from slurm_elastic.protocol.errors import RequestError
from slurm_elastic.protocol.messages import Piece, Report

from .common import Viewer, known_job, may_see, visible_job


class LastKnown(NamedTuple):
    """What the store says of a job besides its record: read for all jobs at once, or for one."""

    used: InUse | None
    decision: DecisionRow | None
    opened: ResizeRow | None
    report: Report | None
    pinned: int | None


@lru_cache(maxsize=8192)
def _asked(text: str) -> elastic_request.ElasticRequest | None:
    """The request, None for one that cannot be read. Its text never changes, and thousands are shown at once."""
    try:
        return elastic_request.parse(text)
    except RequestError:
        return None


def status(store: Store, viewer: Viewer, now: float) -> list[JobStatus]:
    """A record per job that has not ended, by job id. Another user's keeps its id, state and GPUs only."""
    return shown(whole(store, now), viewer)


class BoardRow(NamedTuple):
    """A job with its record in full, as its owner sees it, and what that was made from. Not to be shown before
    `shown`."""

    job: JobRow
    known: LastKnown
    status: JobStatus


Board = list[BoardRow]
"""Every job that has not ended."""


def shown(board: Board, viewer: Viewer) -> list[JobStatus]:
    """What of it this viewer may see."""
    found = []
    for job, _, row in board:
        if may_see(viewer, job):
            found.append(replace(row, own=viewer.uid == job.uid))
        elif not viewer.private:
            found.append(redacted(replace(row, own=False)))
    return found


def whole(store: Store, now: float, before: Mapping[int, BoardRow] = MappingProxyType({})) -> Board:
    """The rows of `status`, in full. A row of before of which nothing has changed is given again, as it was: only how
    long its job has run may be more by now."""
    opened = {resize.job_id: resize for resize in store.resizes.under_way()}
    used, jobs = store.allocations.all_in_use(), store.jobs.all(active_only=True)
    decided = store.decisions.standing([job.job_id for job in jobs])
    board = []
    for job in jobs:
        number = job.job_id
        report, pinned = store.reports.last(number), store.jobs.pinned(number)
        known = LastKnown(used.get(number), decided.get(number), opened.get(number), report, pinned)
        kept = before.get(number)
        if kept is None or kept.known != known or kept.job != job:
            kept = BoardRow(job, known, job_row(store, job, True, now, known))
        board.append(kept)
    return board


def job(store: Store, job_id: int, viewer: Viewer, now: float) -> JobStatus:
    """The record of one job, ended or not. Raises NotFound."""
    found = visible_job(store, job_id, viewer) if viewer.private else known_job(store, job_id, viewer)
    row = job_row(store, found, viewer.uid == found.uid, now)
    return row if may_see(viewer, found) else redacted(row)


def job_row(store: Store, job: JobRow, own: bool, now: float, known: LastKnown | None = None) -> JobStatus:
    known = known or LastKnown(
        *(store.allocations.in_use(job.job_id), store.decisions.last(job.job_id), store.resizes.of(job.job_id)),
        *(store.reports.last(job.job_id), store.jobs.pinned(job.job_id)),
    )
    used = known.used if job.end_time is None else None
    asked, report, reason = _asked(job.request), known.report, _reason(job, known)
    target_gpus, target_batch = _target_size(job, known)
    measured = _measured(report, known.used)
    gpus = _gpus(job, used, known.decision)
    stalled_since = (used.stalled_since or None) if used else None
    pieces, nodes, node_list = _held(used.pieces) if used else (None, None, None)
    return made_from(
        JobStatus,
        job,
        asked or elastic_request.ElasticRequest,
        measured or Report,
        own=own,
        elapsed_s=elapsed_s(job, now),
        nodes=nodes,
        gpus=gpus,
        held_gpus=(job.held_gpus or None) if job.end_time is None else None,
        target_gpus=target_gpus,
        batch=used.batch if used else None,
        target_batch=target_batch,
        speedup=_speedup(store, job, known.decision, gpus, asked),
        stalled_since=stalled_since,
        **({"samples_per_s": 0.0} if stalled_since else {}),
        left_s=_left_s(measured) if used and not stalled_since else None,
        step_time_s=measured.step_time_median_s if measured else None,
        comm_share=(measured.comm_share or None) if measured else None,
        unit=(measured.unit or None) if measured else None,
        bottleneck=(measured.bottleneck or None) if measured else None,
        bottleneck_text=_held_back(measured) if measured else None,
        step=report.step if report else None,
        samples=report.samples if report else None,
        epoch=report.epoch if report else None,
        generation=used.generation if used else None,
        resize=known.opened.state if known.opened else None,
        pinned=known.pinned,
        share_of=known.decision.evidence.get("share_of") if known.decision else None,
        mode=known.decision.mode if known.decision else None,
        reported_at=report.at if report else None,
        node_list=node_list,
        pieces=pieces,
        reason=reason,
        reason_text=reason_text(reason),
    )


@lru_cache(maxsize=8192)
def _held(pieces: tuple[Piece, ...]) -> tuple[tuple[HeldPiece, ...], int, str]:
    """Pieces as they are shown, the number of their nodes, and their names. A report changes none of it."""
    nodes = list(dict.fromkeys(node for piece in pieces for node in piece.nodes))
    return tuple(made_from(HeldPiece, piece) for piece in pieces), len(nodes), ",".join(nodes)


def elapsed_s(job: JobRow, now: float) -> float | None:
    if job.start_time is None:
        return None
    return max(0.0, (job.end_time if job.end_time is not None else now) - job.start_time)


def _gpus(job: JobRow, used: InUse | None, decision: DecisionRow | None) -> int | None:
    """GPUs that train now; where no supervisor has said it, those that the job held in the last round."""
    if used is not None:
        return used.gpus
    return (decision.gpus_from or None) if decision is not None and job.end_time is None else None


def _measured(report: Report | None, used: InUse | None) -> Report | None:
    """The last report, where it was measured at the size that the job has now."""
    if report is None or used is None or used.generation == report.generation or used.gpus == report.gpus:
        return report
    return None


def _left_s(report: Report | None) -> float | None:
    """How long it still trained, at its speed, when it reported."""
    if report is None or report.samples_left < 1 or report.samples_per_s <= 0:
        return None
    return report.samples_left / report.samples_per_s


def _held_back(report: Report) -> str | None:
    held = bottleneck_text(report.bottleneck, report.bottleneck_share, report.bottleneck_rank, report.bottleneck_node)
    return held or None


def _target_size(job: JobRow, known: LastKnown) -> tuple[int | None, int | None]:
    """GPUs and batch that it is to have: a resize under way counts before the last decision."""
    if job.end_time is None and known.opened is not None:
        return known.opened.gpus, known.opened.batch
    if job.end_time is None and known.decision is not None:
        return known.decision.gpus_to or None, known.decision.batch_to or None
    return None, None


def _reason(job: JobRow, known: LastKnown) -> str:
    """Why it has what it has: a resize under way counts before the last decision, and that before the job's record."""
    if known.opened is not None and known.opened.reason:
        return known.opened.reason
    if known.used is not None and known.used.stalled_since and job.end_time is None:
        return str(Reason.KEEP_STALLED.value)
    if known.decision is not None and job.managed and job.end_time is None:
        return known.decision.reason
    return job.reason


def _speedup(
    store: Store,
    job: JobRow,
    decision: DecisionRow | None,
    gpus: int | None,
    asked: elastic_request.ElasticRequest | None,
) -> float | None:
    """Throughput against that at the smallest size: as measured at both, else the planner's for the size held."""
    if gpus is None:
        return None
    best = store.reports.fastest(job.job_id)
    smallest = best.get(asked.min_gpus if asked else 0)
    if smallest and gpus in best:
        return best[gpus] / smallest
    if decision is None:
        return None
    evidence = read(Evidence, decision.evidence)
    for size, value in ((decision.gpus_from, evidence.speedup_from), (decision.gpus_to, evidence.speedup_to)):
        if size == gpus and value is not None:
            return value
    return None
