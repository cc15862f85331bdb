"""The next actions for every elastic job: releases, orphans, resizes that came to an end or to nothing. Pure.

Level-triggered: each call looks at what Slurm holds, what the supervisor says it trains on, and the one open resize;
it never relies on having seen an event, and acting twice on the same answer is harmless. What Slurm holds for a job
that its supervisor does not use and no open resize adds is released. Limit: it believes the snapshot it is given, so it
must not be called with one that failed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType

from slurm_elastic.db.rows import InUse, ResizeRow
from slurm_elastic.protocol.codes import ResizeState

from ..actions.action import Action, Close
from ..capacity.roster import ElasticJob, Roster, RunningPiece
from ..capacity.shrink_options import Unit, units_of
from .registry import COMPANION, carrier, dropping, stuck
from .timeouts import Bounds


def next_actions(
    roster: Roster,
    in_use: Mapping[int, InUse],
    resizes: Iterable[ResizeRow],
    unused_since: Mapping[Unit, float],
    now: float,
    bounds: Bounds,
    overtaken: Mapping[int, str] | None = None,
    kept_whole: Mapping[int, str] = MappingProxyType({}),
) -> list[Action]:
    """What to do now, in the order in which to do it; at most one action per Slurm job.

    `resizes`: the open ones. `unused_since`: see `unused`. `overtaken`: see the module of that name. `kept_whole`: why
    no Slurm job of an elastic job is asked to give up single nodes, by job id.
    """
    actions: list[Action] = []
    in_use = _understood(in_use)
    for orphan in roster.orphans:
        why = "the job that this companion belongs to does not run"
        actions += COMPANION.undo(_base_of(orphan.name), (orphan.job_id,), why)
    by_job = {resize.job_id: resize for resize in resizes}
    for number, why in (overtaken or {}).items():
        job_id = next(j for j, resize in by_job.items() if resize.id == number)
        actions += carrier(by_job.pop(job_id).message).undo(job_id, (), why)
        actions.append(Close(job_id, number, ResizeState.OVERTAKEN, why))
    led = {job_id: carrier(resize.message) for job_id, resize in by_job.items()}
    for job_id, resize in by_job.items():
        actions += led[job_id].next_actions(roster.elastic.get(job_id), in_use.get(job_id), resize, now, bounds)
    for job_id, job in roster.elastic.items():
        if job_id not in by_job and _all_in_use(job, in_use.get(job_id)):
            continue
        if job.running and not (job_id in led and led[job_id].restarts):
            whole = kept_whole.get(job_id, "")
            actions += _for_job(job, in_use.get(job_id), by_job.get(job_id), unused_since, now, bounds, whole)
    return actions


def unused(
    roster: Roster, in_use: Mapping[int, InUse], resizes: Iterable[ResizeRow], before: Mapping[Unit, float], now: float
) -> dict[Unit, float]:
    """Since when each unit that Slurm holds has been neither trained on nor part of an open resize."""
    by_job = {resize.job_id: resize for resize in resizes}
    found: dict[Unit, float] = {}
    in_use = _understood(in_use)
    for job_id, job in roster.elastic.items():
        resize = by_job.get(job_id)
        if resize is None and _all_in_use(job, in_use.get(job_id)):
            continue
        for held in job.held:
            for unit in units_of((held.piece,)) - _wanted(in_use.get(job_id), resize, held):
                found[unit] = before.get(unit, now)
        for queued, tag in job.queued:
            if resize is None or tag.resize != resize.id:
                found[(queued.job_id, "")] = before.get((queued.job_id, ""), now)
    return found


def _all_in_use(job: ElasticJob, use: InUse | None) -> bool:
    """Whether it trains on just what it holds, and waits for nothing: as most jobs do."""
    return use is not None and not job.queued and job.pieces == use.pieces


def _understood(in_use: Mapping[int, InUse]) -> dict[int, InUse]:
    """Without those whose supervisor is not understood: what it trains on may be something else by now."""
    return {job_id: use for job_id, use in in_use.items() if not use.refusal}


def _for_job(
    job: ElasticJob,
    use: InUse | None,
    resize: ResizeRow | None,
    unused_since: Mapping[Unit, float],
    now: float,
    bounds: Bounds,
    kept_whole: str,
) -> list[Action]:
    overdue = _overdue(job, resize, now, bounds) if resize else None
    if overdue:
        return [overdue]  # what it leaves behind is unused from now on, and released in its time
    actions: list[Action] = _leaked_queued(job, unused_since, now, bounds)
    if use is None or not _base_in_use(job, use):
        return actions  # nobody has said what this job trains on: nothing of it is known to be unused
    idle = [(held, units_of((held.piece,)) - _wanted(use, resize, held)) for held in job.held]
    stays = [bool(units) and stuck(held.piece, units, not kept_whole) for held, units in idle]
    releases = [
        None if stay else _release(job, held, units, resize, unused_since, now, bounds)
        for (held, units), stay in zip(idle, stays, strict=True)
    ]
    actions += [action for action in releases if action]
    if resize and resize.state == ResizeState.RUNNING and not any(releases):
        actions.append(Close(job.job_id, resize.id, ResizeState.DONE, kept_whole if any(stays) else ""))
    return actions


def _release(
    job: ElasticJob,
    held: RunningPiece,
    idle: Collection[Unit],
    resize: ResizeRow | None,
    unused_since: Mapping[Unit, float],
    now: float,
    bounds: Bounds,
) -> Action | None:
    """The release of what is unused of one piece, if it is time."""
    switched = resize is not None and resize.state == ResizeState.RUNNING
    due = {unit for unit in idle if switched or now - unused_since.get(unit, now) >= bounds.leak_s}
    if not due:
        return None
    why = f"given up by resize {resize.id}" if resize and switched else "held, but not trained on"
    return dropping(held.piece.kind).release(job, held, due, why)


def _wanted(use: InUse | None, resize: ResizeRow | None, held: RunningPiece) -> set[Unit]:
    """Units of a piece that must stay: trained on, or part of a resize that has not switched yet."""
    if use is None:
        return units_of((held.piece,))
    wanted = units_of(use.pieces)
    if resize is not None and resize.state != ResizeState.RUNNING:
        wanted |= units_of(resize.keep)
        if held.resize == resize.id:
            wanted |= units_of((held.piece,))
    return wanted


def _leaked_queued(job: ElasticJob, unused_since: Mapping[Unit, float], now: float, bounds: Bounds) -> list[Action]:
    since = {queued.job_id: unused_since.get((queued.job_id, ""), now) for queued, _ in job.queued}
    leaked = [slurm_job_id for slurm_job_id, at in since.items() if now - at >= bounds.leak_s]
    return COMPANION.undo(job.job_id, leaked, "waits for a resize that is over")


def _overdue(job: ElasticJob, resize: ResizeRow, now: float, bounds: Bounds) -> Close | None:
    quiet = now - resize.updated
    wait = resize.wait_s + bounds.margin_s
    limit = {
        ResizeState.ISSUED: bounds.issued_s,
        ResizeState.ACCEPTED: wait if resize.add else bounds.switch_s,
        ResizeState.SAVED: wait,  # not said by ours, of a resize that keeps something
        ResizeState.SUBMITTED: wait,
        ResizeState.GRANTED: bounds.warm_up_s,
        ResizeState.READY: bounds.switch_s,
        ResizeState.RUNNING: bounds.release_s,
    }[resize.state]
    if quiet < limit:
        return None
    if resize.state == ResizeState.RUNNING:
        return Close(
            job.job_id, resize.id, ResizeState.DONE, f"not everything given up was released within {limit:.0f} s"
        )
    return Close(job.job_id, resize.id, ResizeState.WITHDRAWN, f"no progress for {quiet:.0f} s after '{resize.state}'")


def _base_in_use(job: ElasticJob, use: InUse) -> bool:
    """Whether the supervisor's word is about this very allocation."""
    return bool(job.held) and bool(units_of((job.held[0].piece,)) & units_of(use.pieces))


def _base_of(name: str) -> int:
    return int(name.removeprefix("selastic-"))
