"""What is written down about a decision: the row that `selastic explain` reads. Pure.

Evidence is the record of daemon/reports/evidence.py. Nothing here decides; what is not known is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from heapq import nsmallest
from typing import Any

from slurm_elastic.db.rows import DecisionRow, Mark
from slurm_elastic.protocol.answers.evidence import Alternative, Evidence, OtherMove, PassedOver, RoomFor
from slurm_elastic.protocol.answers.record import known_values
from slurm_elastic.protocol.records import record
from slurm_elastic.protocol.resize_state import ResizeState
from slurm_elastic.protocol.text.reasons import Reason

from ..capacity.make_room import RoomMade
from ..capacity.roster import ElasticJob
from ..mechanisms.base import pause_s
from ..optimizer.models import goodput
from ..optimizer.models.throughput import ThroughputModel
from ..optimizer.targets import Target
from ..optimizer.weights import GroupShare
from ..slurm.model import Size
from .moves import Move, nearest_batch
from .pools.answer import PoolAnswer
from .pools.candidate import Candidate
from .pools.options import rests
from .pools.speeds import speeds_at
from .row_speeds import Row, Speeds, speeds_of
from .running.eligibility import weight_of
from .running.job import RunningJob
from .running.sizes import batches
from .settings import SMALLEST, PlannerSettings

MOST_OTHERS = 16
"""Most other jobs that one row names."""
_SPEEDS = [name for name in Speeds.__dataclass_fields__ if name != "considered"]
"""The fields of Evidence that they are."""
MOST_NAMED = 3
QUALITY_GAIN = 0.1
"""Least gain by which a user is told of until=quality."""
"""Most waiting jobs that one alternative names."""


@record(frozen=True, slots=True)
class DecisionContext:
    """What a decision was taken on, beside the job itself."""

    now: float
    settings: PlannerSettings
    idle: int
    capacity: int
    pool: str = ""
    member: Candidate | None = None
    speeds: Speeds | None = None
    """Of a job that could be moved."""
    shared: PoolAnswer | None = None
    target: Target | None = None
    served: tuple[RoomMade, ...] = ()
    """Waiting jobs that this one makes room for."""
    moved: Callable[[], Sequence[dict[str, Any]]] = tuple
    """Who moves, as `others` gives it."""
    limit: str = ""
    """The limit that keeps it from more, in words."""
    unlisted: str = ""
    """GPUs in use on nodes of the pool that no job holds, in words."""
    asleep: int = 0
    """GPUs that the job could grow onto if they were awake."""
    short: float = 1.0
    """What the job's weight is multiplied by for what it has left."""
    share: GroupShare | None = None
    """What its group has of the pool's weight."""


def mark_of(move: Move, mode: str) -> Mark:
    """The mark of the decision on a job that could be moved: `row` has the same."""
    running, target_size = move.target_size.running, move.target_size
    mechanism = move.mechanism if move.changes else ""
    return running.gpus, move.gpus, running.batch, target_size.batch, target_size.reason.value, mechanism, mode


def mark_of_frozen(running: RunningJob, mode: str) -> Mark:
    """The mark of the decision on a job that is left as it is: `row_of_frozen` has the same."""
    to = running.state.resize or running
    reason = running.frozen or Reason.KEEP_BEST
    return running.gpus, to.gpus, running.batch, to.batch, reason.value, "", mode


def row(move: Move, begun: bool, context: DecisionContext) -> DecisionRow:
    """The decision on a job that could be moved."""
    running, target_size, shared, target = move.target_size.running, move.target_size, context.shared, context.target
    changes, gpus = move.changes, move.gpus
    planned = _planned(target, gpus)
    gain = shared.progress if shared is not None and changes and planned else None
    return DecisionRow(
        job_id=running.job_id,
        at=context.now,
        gpus_from=running.gpus,
        gpus_to=gpus,
        batch_from=running.batch,
        batch_to=target_size.batch,
        reason=target_size.reason.value,
        value=target.value if target and planned else None,
        gain=gain,
        evidence=_evidence(move, begun, planned, context),
        alternatives=[known_values(one) for one in _alternatives(context.speeds) or _kept_more(move, context.served)],
        mechanism=move.mechanism if changes else "",
        mode=context.settings.mode,
    )


def _planned(target: Target | None, gpus: int) -> bool:
    """A size that is only tried is no part of the optimizer's plan, and so has none of its gain."""
    return target is not None and target.gpus == gpus


def _evidence(move: Move, begun: bool, planned: bool, context: DecisionContext) -> dict[str, Any]:
    """What a row says beside its numbers, as the store keeps it. `planned`: the size is the optimizer's."""
    running = move.target_size.running
    worth, gain = _quality(running, move.gpus, move.target_size.batch, context.member) or (None, None)
    about = {name: getattr(context.speeds, name) for name in _SPEEDS}
    own = dict(
        **about, next=_next(move, begun, context), limit=context.limit or None, exact_gpus=_exact(context.target),
        sample_worth=worth, quality_gain=gain,
    )  # fmt: skip
    changed = _changed(move, begun, planned, context) if move.changes else {}
    found = known_values(Evidence(**{**_common(running, context), **own, **changed}))
    others = [other for other in context.moved() if other["job_id"] != running.job_id] if changed else []
    return {**found, "others": others[:MOST_OTHERS]} if others else found


def _changed(move: Move, begun: bool, planned: bool, context: DecisionContext) -> dict[str, Any]:
    """What is said of a job only when it is to change."""
    running, settings = move.target_size.running, context.settings
    own, likely = running.pause_s, running.likely_pause_s
    if move.of_batch:
        own, likely = running.state.batch_pause_s, None
    elif any(mechanism.restarts for mechanism in move.by):
        own, likely = running.requeue_s, running.likely_requeue_s
    return dict(
        starts="now" if begun else "later",
        passed_over=tuple(PassedOver(mechanism=name, why=why) for name, why in move.passed_over(settings).items()),
        pause_s=move.cost_s(settings),
        pause_measured=own is not None,
        pause_likely=True if own is None and likely is not None else None,
        tried=True if not planned and move.target_size.reason is Reason.GROW_IDLE else None,
    )


def _exact(target: Target | None) -> int | None:
    """What the exact plan gives, where a planner gives something else."""
    return target.exact if target is not None and target.exact != target.gpus else None


def _quality(running: RunningJob, gpus: int, batch: int, member: Candidate | None) -> tuple[float, float] | None:
    """(worth of a sample, gain at the same size with until=quality) of a job that trains epochs at a batch that wastes
    many samples, if it trains until a quality is reached. None: it wastes few, or they are not known."""
    noise = running.state.noise_scale
    if member is None or noise is None or running.job.request.until != "epochs" or batch < 1:
        return None
    reference = (running.state.reference or (gpus, batch))[1]
    worth = {b: goodput.efficiency(b, max(1, reference), noise) for b in (batch, *batches(running.job.request, gpus))}
    (speeds,) = speeds_at([(member, [(gpus, b) for b in worth])])
    if not speeds:
        return None
    best = max(speed * each for speed, each in zip(speeds, worth.values(), strict=True))
    gain = best / (speeds[0] * worth[batch]) - 1.0
    return (round(worth[batch], 3), round(gain, 3)) if gain >= QUALITY_GAIN else None


def _next(move: Move, begun: bool, context: DecisionContext) -> str | None:
    """What is tried next, or what stands in the way."""
    shared = context.shared
    if shared is not None and shared.held_back and not move.changes:
        return (
            f"the best other plan gains {shared.objective_gain:.3f}, below the least worth moving for "
            f"({context.settings.min_gain:g})"
        )
    if move.changes and not begun:
        return f"it is resized as soon as it can be: {move.later or 'enough resizes were begun in this round'}"
    return context.limit or None


def row_of_frozen(running: RunningJob, context: DecisionContext) -> DecisionRow:
    """The decision on a job that is left as it is."""
    resize = running.state.resize
    reason = running.frozen or Reason.KEEP_BEST
    return DecisionRow(
        job_id=running.job_id,
        at=context.now,
        gpus_from=running.gpus,
        gpus_to=resize.gpus if resize else running.gpus,
        batch_from=running.batch,
        batch_to=resize.batch if resize else running.batch,
        reason=reason.value,
        value=None,
        gain=None,
        evidence=known_values(Evidence(**_common(running, context))),
        mode=context.settings.mode,
    )


def row_of_waiting(
    job: ElasticJob, served: RoomMade | None, first: Size | None, now: float, settings: PlannerSettings
) -> DecisionRow:
    """The decision on an elastic job in Slurm's queue. `first`: the size that it is to start at, if it is not what it
    asks for now."""
    gpus = job.base.gpus + sum(part.gpus for part in job.components)
    evidence = Evidence(for_gpus=gpus, slurm_reason=job.base.reason, next=_coming(served, first, settings))
    return DecisionRow(
        job_id=job.job_id,
        at=now,
        gpus_from=0,
        gpus_to=0 if served is None else first.gpus if first is not None else gpus,
        batch_from=0,
        batch_to=0,
        reason=Reason.WAITING.value,
        value=None,
        gain=None,
        evidence=known_values(evidence),
        mode=settings.mode,
    )


def _coming(served: RoomMade | None, first: Size | None, settings: PlannerSettings) -> str | None:
    """What becomes of a job in Slurm's queue."""
    if served is None:
        return None
    given = sum(served.givers.values())
    room = f"elastic jobs give up {given} GPUs for it" if served.givers else "there is room for it"
    if first is None:
        return room
    of = "the smallest size that it accepts" if settings.first_size == SMALLEST else "what the plan gives it"
    return f"it starts with {first.gpus} GPUs ({of}; first_size) and grows from there; {room}"


def _common(running: RunningJob, context: DecisionContext) -> dict[str, Any]:
    """The evidence that every row of a running job has."""
    state, settings = running.state, context.settings
    own = state.model if running.measured and isinstance(state.model, ThroughputModel) else None
    until = running.until if running.until is not None and running.until > context.now else None
    failed = state.last is not None and state.last.state != ResizeState.DONE
    weight, counts = running.job.request.weight, weight_of(running.job.request, settings)
    first = context.served[0].need if context.served else None
    return dict(
        idle_gpus=context.idle,
        capacity_gpus=context.capacity,
        pool=context.pool,
        pause_s=pause_s(running, settings),
        pause_measured=state.pause_s is not None,
        pause_likely=True if state.pause_s is None and state.likely_pause_s is not None else None,
        horizon_s=context.member.view.horizon_s if context.member else settings.horizon_s,
        prior=(state.prior_words or None) if running.measured else None,
        line_share=round(own.line_share, 2) if own is not None and own.form == "straight line" else None,
        unfitted=state.unfitted or None,
        last_report_age_s=_age(state.reported_at, context.now),
        pinned=state.pinned,
        blocked_until=until if failed else None,
        cooldown_until=None if failed else until,
        resizes_in_hour=len(state.resized) if len(state.resized) >= settings.max_resizes_per_job_hour else None,
        weight_asked=weight if counts < weight else None,
        weight_counts=settings.max_weight if counts < weight else None,
        weight_factor=round(context.short, 3) if context.short != 1.0 else None,
        **_share(context.share),
        resize=state.resize.id if state.resize is not None else None,
        unlisted=context.unlisted or None,
        asleep_gpus=context.asleep or None,
        for_job=first.job_id if first is not None else None,
        for_gpus=first.gpus if first is not None else None,
        for_jobs=_room_for(running, context.served) if context.served else None,
    )


def _share(share: GroupShare | None) -> dict[str, Any]:
    if share is None:
        return {}
    names = ", ".join(name for name, _ in share.group)
    return {"share_of": names, "share_part": round(share.part, 4), "share_jobs": share.jobs}


def _age(reported_at: float | None, now: float) -> float | None:
    return None if reported_at is None else max(0.0, round(now - reported_at, 3))


def _room_for(running: RunningJob, served: Sequence[RoomMade]) -> tuple[RoomFor, ...]:
    return tuple(
        RoomFor(job_id=one.need.job_id, gpus=one.need.gpus, given=one.givers[running.job_id]) for one in served
    )


def others(moves: Sequence[Move], members: Mapping[int, Candidate]) -> list[dict[str, Any]]:
    """Those who move, the largest changes first, as many as a row names beside its own job; the OtherMove of each as
    the store keeps it: all rows of a round name the same."""
    largest = nsmallest(MOST_OTHERS + 1, moves, key=_by_change)
    rows = [Row(move.target_size.running, move.gpus, move.target_size.batch) for move in largest]
    found = speeds_of([replace(row, member=members.get(row.running.job_id)) for row in rows])
    return [known_values(_other(row, speeds)) for row, speeds in zip(rows, found, strict=True)]


def _other(row: Row, speeds: Speeds) -> OtherMove:
    before, after = speeds.samples_per_s_from, speeds.samples_per_s_to
    change = after / before - 1.0 if before and after is not None else None
    return OtherMove(job_id=row.running.job_id, gpus_from=row.running.gpus, gpus_to=row.gpus, change=change)


def _by_change(move: Move) -> tuple[int, int]:
    running = move.target_size.running
    return -abs(move.gpus - running.gpus), running.job_id


def _alternatives(speeds: Speeds | None) -> list[Alternative]:
    found = speeds.considered if speeds is not None else ()
    return [
        Alternative(gpus=gpus, batch=batch, value=value, samples_per_s=speed) for gpus, batch, value, speed in found
    ]


def _kept_more(move: Move, served: Sequence[RoomMade]) -> list[Alternative]:
    """The next size above the one that is left to a job which makes room, and why it was not left that one."""
    running = move.target_size.running
    if not served or not move.target_size.forced:
        return []
    size = min((k for k in rests(running, frozenset()) if move.gpus < k <= running.gpus), default=running.gpus)
    names = ", ".join(str(entry.need.job_id) for entry in served[:MOST_NAMED])
    batch = nearest_batch(batches(running.job.request, size), running.batch)
    return [Alternative(gpus=size, batch=batch, why=f"too few would be left for {names} to start")]
