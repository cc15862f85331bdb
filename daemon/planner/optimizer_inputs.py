"""Who gets how much: each pool's movable jobs as the optimizer sees them, and its answer. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.records import record
from slurm_elastic.protocol.request import ElasticRequest

from ..capacity.requeue_placement import whole_sizes
from ..capacity.shrink_options import Giver, Unit, nodes_left
from ..config.settings import Settings
from ..mechanisms import registry
from ..mechanisms.base import Mechanism, pause_s
from ..optimizer.choices import BATCH_GAIN
from ..optimizer.job_view import JobView, Model, nodes_at
from ..optimizer.models import goodput
from ..optimizer.plan import Cache, Solver, plan_pools, values_of_staying
from ..optimizer.policies import POLICIES
from ..optimizer.problem import Layout
from ..optimizer.solver.nested_caps import Cap
from ..optimizer.targets import PoolPlan, Target
from ..text.reasons import Reason
from .eligibility import JobState, RunningJob, ascending_sizes, batches, sizes
from .moves import Allotment, Move

TRY_GAIN = 0.05
"""Least predicted gain for which a size never measured is tried on idle GPUs."""


@record(frozen=True, slots=True)
class Options:
    """What a job may come to, whatever that is worth."""

    forced: frozenset[Unit]
    """The units that it gives up for others."""
    downs: Mapping[int, int]
    """GPUs -> nodes, for every size that it can come down to; the largest is what is left after the forced units."""
    rest: int
    """The largest of `downs`."""
    choices: tuple[tuple[int, int], ...]
    """All sizes, with their nodes."""
    restart_sizes: frozenset[int] = frozenset()
    """Those that only a restart reaches."""
    restart: Mechanism | None = None
    """How it is started again; None: there are no such sizes."""


@record(frozen=True, slots=False)
class Member:
    """A movable job of a pool."""

    running: RunningJob
    options: Options
    view: JobView
    progress: dict[tuple[int, int], float] = field(default_factory=dict, compare=False)
    """By (GPUs, batch): how much progress changes there, once somebody has asked."""
    standing: dict[Reason, Move] = field(default_factory=dict, compare=False)
    """The move that changes nothing, by its reason, once somebody has asked."""

    @property
    def forced(self) -> frozenset[Unit]:
        """The units that it gives up for others."""
        return self.options.forced

    @property
    def rest(self) -> int:
        """The most GPUs that it keeps when it gives up what others need."""
        return self.options.rest

    def stays(self, reason: Reason) -> Move:
        """The move that changes nothing, for this reason."""
        made = self.standing.get(reason)
        if made is None:
            running = self.running
            allotment = Allotment(running, running.gpus, running.batch, reason, 0.0)
            made = self.standing[reason] = Move(allotment, running.pieces)
        return made

    @cached_property
    def staying(self) -> JobView:
        """The view with no choice: where the job is, or where the forced units leave it."""
        if self.forced:  # the plan charges every size of a job that has to move anyway; so does the comparison
            return replace(self.view, choices=((self.rest, self.options.downs[self.rest]),))
        return replace(self.view, frozen=True)


@dataclass(frozen=True)
class PoolAnswer:
    """The optimizer's answer for one pool."""

    targets: tuple[Target, ...]
    value: float
    bound: float
    objective_gain: float
    """Against leaving everyone where it is, in relative gains of one job's progress."""
    members: tuple[Member, ...]
    held_back: bool = False
    """The gain was below the least one worth moving for: everyone stays."""

    @cached_property
    def progress(self) -> float | None:
        """The gain in jobs' worth of progress: speedups, pauses left out; None where a model is missing."""
        changes = [_progress(m, target) for m, target in zip(self.members, self.targets, strict=True)]
        known = [change for change in changes if change is not None]
        return sum(known) if len(known) == len(changes) else None


def rests(running: RunningJob, forced: frozenset[Unit]) -> dict[int, int]:
    """Accepted sizes that the job may come down to, with their nodes; unforced, the present size is one of them."""
    found = {}
    if forced or running.may_shrink:
        accepted, giver = sizes(running.job), running.giver
        if forced or giver.slow:
            left = nodes_left(giver, forced)
        else:
            alike = tuple([(piece.kind, len(piece.nodes), piece.gpus_per_node) for piece in running.pieces])
            left = _nodes_left(running.job.request.via, running.state.releases, alike)
        found = {k: nodes for k, nodes in left.items() if k in accepted}
    if not forced:
        found[running.gpus] = sum(len(piece.nodes) for piece in running.pieces)
    return found


@lru_cache(maxsize=1 << 12)
def _nodes_left(
    via: tuple[str, ...], releases: tuple[bool, bool], alike: tuple[tuple[str, int, int], ...]
) -> Mapping[int, int]:
    """The same for all jobs with pieces of these kinds and sizes, as long as no node of theirs is slow."""
    pieces = tuple(
        Piece(number, kind, tuple(f"{number}.{node}" for node in range(count)), gpus)
        for number, (kind, count, gpus) in enumerate(alike)
    )
    return nodes_left(Giver(0, pieces, "", frozenset(), registry.drop_rules(via, *releases), {}))


def options(running: RunningJob, forced: frozenset[Unit], room: int, node_gpus: int) -> Options | None:
    """What the job may come to; None when it has no size to come to rest on. `room`: GPUs it could gain."""
    if not forced and not running.state.slow and registry.restarting(running, running.site) is None:
        grows = running.may_grow and running.can_add
        alike = tuple([(piece.kind, len(piece.nodes), piece.gpus_per_node) for piece in running.pieces])
        down = (running.job.request.via, running.state.releases, alike) if running.may_shrink else (alike,)
        reach = in_reach(running, forced, room) if grows else 0
        return _unforced(ascending_sizes(running.job), running.gpus, down, reach, max(1, node_gpus))
    downs = rests(running, forced)
    if not downs:
        return None
    rest = max(downs)
    if not running.may_shrink:
        downs = {rest: downs[rest]}
    choices = dict(downs)
    if running.may_grow and running.can_add:
        larger, per_node = ascending_sizes(running.job), max(1, node_gpus)
        for size in larger[bisect_right(larger, rest) : bisect_right(larger, rest + room)]:
            choices[size] = downs[rest] + -(-(size - rest) // per_node)
    restart = None if forced else registry.restarting(running, running.site)
    by_restart = _restart_sizes(running, choices, rest + room, node_gpus) if restart else {}
    every = _same(tuple(sorted({**choices, **by_restart}.items())))
    return Options(forced, downs, rest, every, frozenset(by_restart), restart if by_restart else None)


@lru_cache(maxsize=1 << 12)
def _unforced(accepted: tuple[int, ...], gpus: int, down: tuple[Any, ...], reach: int, node_gpus: int) -> Options:
    """The same for all jobs with pieces of these kinds and sizes, as long as no node of theirs is slow or needed by
    others. `down`: what `_nodes_left` takes, or the pieces alone of a job that may not shrink; `reach`: how many of the
    accepted sizes are in reach."""
    *how, alike = down
    nodes = sum(count for _, count, _ in alike)
    downs = {k: n for k, n in _nodes_left(*how, alike).items() if k in accepted} if how else {}
    downs[gpus] = nodes
    larger = accepted[bisect_right(accepted, gpus) : reach]
    choices = {**downs, **{size: nodes + -(-(size - gpus) // node_gpus) for size in larger}}
    return Options(_NO_UNITS, downs, gpus, _same(tuple(sorted(choices.items()))))


_NO_UNITS = frozenset[Unit]()


def member(
    running: RunningJob, made: Options, settings: Settings, factor: float = 1.0, horizon_s: float | None = None
) -> Member:
    """The job as the optimizer sees it.

    `factor`: what its weight is multiplied by to be fair; `horizon_s`: as `horizon` has it.
    """
    state, request, horizon_s = running.state, running.job.request, horizon_s or settings.horizon_s
    gpus, batch = state.reference or (running.gpus, running.batch)
    noise, pause = state.noise_scale, pause_s(running, settings)
    # Another batch needs a new world as well: it waits for the cooldown, and has to pay for the pause.
    waits = not (running.may_grow and running.may_shrink and running.may_rebatch)
    settled = waits or pause / horizon_s > BATCH_GAIN
    guard_noise = noise if request.guard else None
    view = JobView(
        label=str(running.job_id),
        model=state.model,
        choices=made.choices,
        batches=_batches(request, settled, running.gpus, running.batch, max(1, batch), guard_noise),
        current_gpus=running.gpus,
        current_batch=running.batch,
        reference_gpus=max(1, gpus),
        reference_batch=max(1, batch),
        weight=running.weight * factor,
        pause_s=pause,
        horizon_s=horizon_s,
        noise_scale=noise,
        quality=request.until == "quality",
        least_per_gpu=settings.awake_gain if running.site.power_saving else 0.0,
        restart_sizes=made.restart_sizes,
        restart_pause_s=made.restart.cost_s(running, settings) if made.restart else 0.0,
    )
    return Member(running, made, view)


@dataclass(slots=True)
class KeptMember:
    """A member of the round before, with what it was made from beside the running job and the settings."""

    member: Member
    state: JobState
    room: int
    reach: int
    """What `in_reach` made of it."""
    node_gpus: int
    factor: float
    horizon_s: float

    @classmethod
    def made(
        cls, before: KeptMember | None, running: RunningJob, forced: frozenset[Unit], settings: Settings,
        room: int, node_gpus: int, factor: float, horizon_s: float,
    ) -> KeptMember | None:  # fmt: skip
        """The member, with what of the one before is still so; None when the job has no size to come to rest on.

        `room`: GPUs it could gain; `factor`, `horizon_s`: as `member` has them.
        """
        reach = in_reach(running, forced, room)
        found = None
        if before is not None and before.member.running is running:
            own = before.member
            if (own.forced, before.reach, before.node_gpus) == (forced, reach, node_gpus):
                found = own.options
        if before is not None and found is not None and before.is_of(running.state, factor, horizon_s):
            return cls(before.member, running.state, room, reach, node_gpus, factor, horizon_s)
        found = found or options(running, forced, room, node_gpus)
        if found is None:
            return None
        made = member(running, found, settings, factor, horizon_s)
        return cls(made, running.state, room, reach, node_gpus, factor, horizon_s)

    def holds(
        self, running: RunningJob, forced: frozenset[Unit], room: int, node_gpus: int, factor: float, horizon_s: float
    ) -> bool:
        """Whether nothing of it has changed; False where that is to be looked at."""
        return (
            self.member.running is running and self.state is running.state and self.room == room
            and self.factor == factor and self.horizon_s == horizon_s and self.node_gpus == node_gpus
            and self.member.options.forced == forced
        )  # fmt: skip

    def is_of(self, state: JobState, factor: float, horizon_s: float) -> bool:
        """Whether the view of the same options would be the same."""
        view = self.member.view
        alike = self.factor == factor and self.horizon_s == horizon_s
        return alike and view.model == state.model and view.noise_scale == state.noise_scale


def in_reach(running: RunningJob, forced: frozenset[Unit], room: int) -> int:
    """What `member` makes of the room: how many accepted sizes are in reach; of a forced job, the room itself."""
    if forced:
        return room
    return bisect_right(ascending_sizes(running.job), running.gpus + room) if running.may_grow else 0


def _restart_sizes(running: RunningJob, reached: Mapping[int, int], most: int, node_gpus: int) -> dict[int, int]:
    """GPUs -> nodes of the sizes that only a requeue reaches."""
    if not (running.may_grow and running.may_shrink):
        return {}
    wanted = (size for size in sizes(running.job) if size not in reached and size <= most)
    return {size: next(whole_sizes(size, max(1, node_gpus))).nodes for size in wanted}


def remaining_s(running: RunningJob, now: float) -> float | None:
    """Seconds that the job would still train on one GPU at its reference batch; None where that is not known."""
    remaining, model = running.state.remaining, running.state.model
    if remaining is None or model is None:
        return None
    worth, speed = running.kept_pace or running.keep_pace(_pace(running, model))
    return remaining.after(now) * worth / speed


def _pace(running: RunningJob, model: Model) -> tuple[float, float]:
    """(worth of a sample, samples per second on one GPU), both at its reference batch."""
    state, worth = running.state, 1.0
    _, batch = state.reference or (1, running.batch)
    if running.job.request.until == "quality":
        worth = goodput.efficiency(running.batch, max(1, batch), state.noise_scale)
    return worth, model.throughput(1, 1, max(1, batch))


@dataclass(frozen=True, slots=True, eq=False)
class _Batches:
    """The request's batches; where only the batch could change and that is not to be, the present one.

    Equal ones are one object: what was planned for equal views is found again.
    """

    request: ElasticRequest
    settled: bool
    gpus: int
    batch: int
    reference: int
    noise_scale: float | None
    """Read only where the request guards its range."""

    def __call__(self, size: int) -> tuple[int, ...]:
        if self.settled and size == self.gpus and self.batch > 0:
            return (self.batch,)
        found = batches(self.request, size)
        if not self.request.guard:
            return found
        return goodput.guarded(found, self.reference, self.noise_scale, self.request.guard / 100)


_batches = lru_cache(maxsize=1 << 14)(_Batches)


@lru_cache(maxsize=1 << 12)
def _same(choices: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """The same object for equal ones: they are kept from round to round, and most jobs share a few."""
    return choices


def horizon(running: RunningJob, settings: Settings, at: float) -> float:
    """Seconds in which a pause has to be earned back: close to its time limit a job has little time for that."""
    ends_at = running.job.base.ends_at
    return max(1.0, settings.horizon_s if ends_at is None else min(settings.horizon_s, ends_at - at))


def share(
    pools: Sequence[Sequence[Member]],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    settings: Settings,
    cache: Cache | None = None,
    solver: Solver = plan_pools,
    layout: Layout | None = None,
) -> list[PoolAnswer]:
    """The best plan for every pool, or staying where everyone is when a pool's best plan gains too little. A planner
    decides that by itself: what it counts beside the values is not known here.

    `caps` count the members through all pools. Raises InfeasiblePlan, PlanInputError.
    """
    policy, cache = settings.policy, cache or Cache()
    bests = solver([[m.view for m in members] for members in pools], capacities, caps, policy, cache, layout)
    gains = []
    for members, best in zip(pools, bests, strict=True):
        stays = _values_of_staying(policy, cache, members, best.targets)
        gains.append(_gain(policy, members, [t.value for t in best.targets], stays))
    small = {g for g, gain in enumerate(gains) if gain < settings.min_gain and POLICIES[policy].planner is None}
    still = _held_back(pools, bests, caps, small)
    out = []
    for g, (members, best, gain) in enumerate(zip(pools, bests, gains, strict=True)):
        if g in still:
            (stay,) = plan_pools([[m.staying for m in members]], capacities[g : g + 1], (), policy, cache)
            out.append(_at_rest(members, best, stay, gain))
        else:
            out.append(PoolAnswer(best.targets, best.value, best.bound, gain, tuple(members)))
    return out


def _gain(policy: str, members: Sequence[Member], values: Sequence[float], stays: Sequence[float]) -> float:
    """What the terms gain against staying, in relative gains of one job's progress, whatever its weight.

    The sum of all jobs' own changes, each taken as a gain, times the share of them that is gained by weight when losses
    are taken off. Without losses that is the sum of their gains, and so it is with equal weights: a job that counts as
    much as fifty others together is not moved for a fiftieth of what they would be.
    """
    rows = zip(members, values, stays, strict=True)
    changes = [(v - stay, (v - stay) / m.view.weight) for m, v, stay in rows if v != stay]
    gross = math.fsum(abs(weighted) for weighted, _ in changes)
    if not gross:
        return 0.0
    net = math.fsum(weighted for weighted, _ in changes)
    return net / gross * math.fsum(abs(own) for _, own in changes) / _worth(policy, members, stays)


def _worth(policy: str, members: Sequence[Member], stays: Sequence[float]) -> float:
    """What a relative gain of progress is worth in the objective, in the mean over the jobs: u'(s) s.

    1 with logarithms. With sums it is the progress itself, with `harmonic` its inverse: a term's amount by its weight.
    """
    if POLICIES[policy].relative or not members:
        return 1.0
    each = (abs(stay) / m.view.weight for m, stay in zip(members, stays, strict=True))
    return max(1e-12, math.fsum(each) / len(members))


def _values_of_staying(policy: str, cache: Cache, members: Sequence[Member], targets: Sequence[Target]) -> list[float]:
    """Their terms where they stay: mostly one of the choices that each was offered; the others are made all at once."""
    found = [_offered_value(m, target) for m, target in zip(members, targets, strict=True)]
    asked = [m.staying for m, value in zip(members, found, strict=True) if value is None]
    made = iter(values_of_staying(asked, policy, cache) if asked else ())
    return [next(made) if value is None else value for value in found]


def _offered_value(m: Member, target: Target) -> float | None:
    """None: what it has is none of its choices."""
    size, batch = m.view.current_gpus, m.view.current_batch
    if m.forced:
        return None
    if target.gpus == size and target.batch == batch:
        return target.value
    offered = target.offered.of_size(size)
    return offered.value if offered is not None and offered.batch == batch else None


def _held_back(
    pools: Sequence[Sequence[Member]],
    bests: Sequence[PoolPlan],
    caps: Sequence[Cap],
    still: set[int],
) -> set[int]:
    """The pools in which nobody moves: those in `still`, less any whose staying would break a limit."""
    home = [g for g, members in enumerate(pools) for _ in members]
    best = [t.gpus for plan in bests for t in plan.targets]
    stay = [m.rest for members in pools for m in members]
    while True:
        over = [cap for cap in caps if sum((stay if home[j] in still else best)[j] for j in cap.members) > cap.limit]
        moved = still & {home[j] for cap in over for j in cap.members}
        if not moved:
            return still
        still = still - moved


def _at_rest(members: Sequence[Member], best: PoolPlan, stay: PoolPlan, gain: float) -> PoolAnswer:
    """Nobody moves, though the best plan would gain so much."""
    moved = any(_moves(m, t) for m, t in zip(members, best.targets, strict=True))
    rows = zip(stay.targets, best.targets, strict=True)
    kept = tuple(replace(own, limit=target.limit, unlimited=target.unlimited) for own, target in rows)
    return PoolAnswer(kept, stay.value, best.bound, gain if moved else 0.0, tuple(members), held_back=moved)


def _progress(m: Member, target: Target) -> float | None:
    """How much the job's speedup changes, against the size that it began with."""
    view, model = m.view, m.view.model
    if model is None or min(view.current_gpus, view.current_batch, target.gpus, target.batch) < 1:
        return None
    if (target.gpus, target.batch) == (view.current_gpus, view.current_batch):
        return 0.0
    known = m.progress.get((target.gpus, target.batch))
    if known is None:
        known = m.progress[target.gpus, target.batch] = _changed_progress(view, model, target)
    return known


def _changed_progress(view: JobView, model: Model, target: Target) -> float:
    nodes = dict(view.choices)
    dense = max(k / count for k, count in nodes.items())

    def speed(gpus: int, batch: int) -> float:
        return model.throughput(gpus, nodes.get(gpus) or max(1, round(gpus / dense)), batch)

    change = speed(target.gpus, target.batch) - speed(view.current_gpus, view.current_batch)
    return change / speed(view.reference_gpus, view.reference_batch)


def _moves(m: Member, target: Target) -> bool:
    return target.gpus != m.rest or (not m.forced and target.batch != m.running.batch)


def explored(m: Member, idle: int) -> tuple[int, int] | None:
    """(GPUs, batch) of a larger size, never measured, worth a try on GPUs that nobody wants; None: there is none.

    The optimizer does not bet on sizes that it knows too little of. Idle GPUs are no stake: a size that turns out
    badly costs two pauses, and is measured from then on. At most twice the present size at a time.
    """
    view, model = m.view, m.view.model
    if model is None or m.forced or view.current_gpus < 1 or view.current_batch < 1 or idle < 1:
        return None
    limit, known = min(2 * view.current_gpus, view.current_gpus + idle), model.sizes_seen
    untried = [(k, n) for k, n in view.choices if view.current_gpus < k <= limit and k not in known]
    if not untried:
        return None
    nodes = dict(view.choices)
    here = model.throughput(view.current_gpus, nodes.get(view.current_gpus, 1), view.current_batch)
    least = here * (1.0 + max(TRY_GAIN, 2.0 * view.pause_s / view.horizon_s))
    now = _at_best_batch(view, model) if view.least_per_gpu else 0.0
    best: tuple[float, int, int] | None = None
    for size, count in untried:
        if size in view.restart_sizes:
            continue
        enough = max(least, now * (1.0 + view.least_per_gpu * (size / view.current_gpus - 1.0)))
        for batch in view.batches(size):
            found = (model.throughput(size, count, batch), size, batch)
            if found[0] > enough and (best is None or found > best):
                best = found
    return None if best is None else (best[1], best[2])


def _at_best_batch(view: JobView, model: Model) -> float:
    """Samples/s at the present size."""
    gpus, nodes = view.current_gpus, nodes_at(view, view.current_gpus)
    return max(model.throughput(gpus, nodes, batch) for batch in {*view.batches(gpus), view.current_batch})
