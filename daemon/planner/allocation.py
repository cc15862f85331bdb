"""The optimizer's part of a plan: every pool's GPUs divided among its movable jobs, as target sizes with their reasons.

Promise: target sizes keep within the pools' capacities and the limits; pools that no plan can be made for stay as they
are, and the others get theirs all the same.
Limit: a target size says how many GPUs, not which; whether nodes can be found for it is decided with the moves.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from slurm_elastic.protocol.codes import Reason

from ..capacity.ledger import Pool
from ..capacity.shrink_options import Unit
from ..mechanisms import registry
from ..optimizer.errors import InfeasiblePlan, PlanInputError, PolicyFailed
from ..optimizer.plan import PoolPlan, Target, plan_pools, values_of_staying
from ..optimizer.policies import DEFAULT_POLICY, POLICIES
from ..optimizer.problem import Layout
from ..optimizer.solver.limits import Cap
from .context import RoundContext
from .fixed_targets import failed_lately
from .free_capacity import layout
from .moves import Move, TargetSize, nearest_batch
from .pools.candidate import Candidate, CandidateInputs, gain_of
from .pools.size_exploration import explore
from .running.job import RunningJob
from .settings import PlannerSettings
from .tables import Tables
from .user_limits import reach


@dataclass(frozen=True, slots=True)
class Group:
    """The movable jobs of a pool, and the GPUs that they share."""

    pool: Pool
    members: list[Candidate]
    capacity: int


def candidates_of(context: RoundContext, pool: Pool, movable: list[RunningJob], idle: int) -> list[Candidate]:
    """The movable jobs of a pool as the optimizer takes them, the oldest first."""
    nodes, settings, factors = context.inputs.snapshot.nodes, context.inputs.settings, context.weights.factors
    node_gpus = max((nodes[name].gpus for name in pool.nodes), default=1)
    everything = idle + sum(running.gpus for running in movable)
    everything = 1 << everything.bit_length()  # the same sizes from round to round; no plan gives more than there is
    at, gives = context.inputs.snapshot.at, context.gives
    asked: dict[int, CandidateInputs] = {}
    for running in sorted(movable, key=_age):
        job_id, state, ends_at = running.job_id, running.state, running.job.base.ends_at
        # Close to its time limit a job has little time to earn back a pause.
        horizon_s = max(1.0, settings.horizon_s if ends_at is None else min(settings.horizon_s, ends_at - at))
        asked[job_id] = (
            *(running, state.model, state.noise_scale, context.forced(running) if gives else _NO_UNITS),
            *(min(everything, running.accepted.largest), node_gpus, factors.get(job_id, 1.0), horizon_s, settings),
        )
    return [m for m in context.inputs.tables.candidates.of(asked).values() if m is not None]


_age = attrgetter("age")
_NO_UNITS = frozenset[Unit]()


def share(
    pools: Sequence[Sequence[Candidate]],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    settings: PlannerSettings,
    tables: Tables,
    layout: Layout | None = None,
) -> list[PoolPlan]:
    """The best plan for every pool, or staying where everyone is when a pool's best plan gains too little; a batch that
    is worth its change is no move. A planner decides that by itself: what it counts beside the values is not known.

    `caps` count the members through all pools. Raises InfeasiblePlan, PlanInputError.
    """
    policy, choices = settings.policy, tables.choices
    bests = plan_pools(pools, capacities, caps, policy, choices, layout)
    planned = []
    for members, best in zip(pools, bests, strict=True):
        stays = _staying_values(policy, tables, members, best.targets)
        planned.append(replace(best, gain=gain_of(policy, members, [t.value for t in best.targets], stays)))
    small = {g for g, one in enumerate(planned) if one.gain < settings.min_gain and POLICIES[policy].planner is None}
    small -= {g for g in small if not any(m.forced for m in pools[g]) and not _moves(pools[g], planned[g])}
    for g in _held_back(pools, bests, caps, small):
        still = list(tables.in_place.of({m.running.job_id: m for m in pools[g]}).values())
        (stay,) = plan_pools([still], capacities[g : g + 1], (), policy, choices)
        planned[g] = _at_rest(pools[g], planned[g], stay)
    return planned


def _staying_values(
    policy: str, tables: Tables, members: Sequence[Candidate], targets: Sequence[Target]
) -> list[float]:
    """Their terms where they stay, known with their choices but for a few; those are made all at once."""
    found = [math.nan if m.forced else t.offered.staying for m, t in zip(members, targets, strict=True)]
    asked = {m.running.job_id: m for m, value in zip(members, found, strict=True) if math.isnan(value)}
    still = list(tables.staying.of(asked).values())
    made = iter(values_of_staying(still, policy, tables.choices) if still else ())
    return [next(made) if math.isnan(value) else value for value in found]


def _held_back(
    pools: Sequence[Sequence[Candidate]],
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


def _moves(members: Sequence[Candidate], best: PoolPlan) -> bool:
    """Whether anybody is to have another size or batch than it comes to rest on."""
    both = zip(members, best.targets, strict=True)
    return any(t.gpus != m.rest or (not m.forced and t.batch != m.current_batch) for m, t in both)


def _at_rest(members: Sequence[Candidate], best: PoolPlan, stay: PoolPlan) -> PoolPlan:
    """Nobody moves, though the best plan would gain something; with what keeps each from more in that."""
    moved = _moves(members, best)
    kept = tuple([
        replace(own, limit=target.limit, unlimited=target.unlimited) if target.limit else own
        for own, target in zip(stay.targets, best.targets, strict=True)
    ])  # fmt: skip
    return PoolPlan(kept, stay.value, best.bound, best.gain if moved else 0.0, held_back=moved)


class PoolAllocation:
    """What comes of dividing once: `allocate` gives the target sizes and fills the rest in."""

    def __init__(self, context: RoundContext) -> None:
        self.context, self.inputs, self.limits = context, context.inputs, context.limits
        self.value = self.bound = 0.0
        self.trouble: list[str] = []
        """Pools for which no plan could be made, with the reason."""
        self.fell_back: str | None = None
        """Why the site's policy did not plan and the built-in one did; empty: it planned; None: it was not asked."""
        self._plans = POLICIES[self.inputs.settings.policy].planner is not None
        self.plans: dict[str, tuple[list[Candidate], PoolPlan]] = {}
        """By pool, what the optimizer said, and of whom."""
        self.unchanged: dict[int, Move] = {}
        """Of the jobs that stay as they are and that no limit keeps from more: nothing is to be placed."""

    def allocate(self, groups: list[Group], nodes: Mapping[int, frozenset[str]]) -> list[TargetSize]:
        """The optimizer's answer for all pools; one that it refuses is left as it is, for the reason given."""
        target_sizes: list[TargetSize] = []
        try:
            shared = self._solve(groups, nodes)
        except (InfeasiblePlan, PlanInputError):
            good = []
            for group in groups:
                try:
                    self._solve([group], nodes)
                except (InfeasiblePlan, PlanInputError) as error:
                    self.trouble.append(f"{group.pool.name}: {error}")
                    target_sizes += [self._at_rest(m) for m in group.members]
                else:
                    good.append(group)
            groups, shared = good, self._solve(good, nodes)
        for group, plan in zip(groups, shared, strict=True):
            for m, target in zip(group.members, plan.targets, strict=True) if self.limits.limits else ():
                self.limits.give(m.running.job_id, max(target.gpus, m.running.gpus))
            self.plans[group.pool.name] = group.members, plan
            target_sizes += self._target_sizes(group.members, group.capacity, plan)
        return target_sizes

    def _solve(self, groups: list[Group], nodes: Mapping[int, frozenset[str]]) -> list[PoolPlan]:
        ledger = self.context.room.ledger
        caps, first = self.limits.caps([m for group in groups for m in group.members]), 0
        for group in groups:
            for cap in reach(group.members, nodes, group.pool.nodes, ledger):
                caps.append(replace(cap, members=frozenset(first + i for i in cap.members)))
            first += len(group.members)
        pools, capacities, inputs = [g.members for g in groups], [g.capacity for g in groups], self.inputs
        try:
            laid = layout([(g.pool, g.members) for g in groups], ledger, inputs) if self._plans else None
            answers = share(pools, capacities, caps, inputs.settings, inputs.tables, laid)
            self.fell_back = "" if groups and not self.fell_back else self.fell_back
            return answers
        except PolicyFailed as error:
            self.fell_back = f"policy {inputs.settings.policy} {error}"
            built_in = replace(inputs.settings, policy=DEFAULT_POLICY)
            return share(pools, capacities, caps, built_in, inputs.tables)

    def _target_sizes(self, members: list[Candidate], capacity: int, plan: PoolPlan) -> list[TargetSize]:
        """The optimizer's answer for one pool, sizes worth a try on what stays idle among them."""
        self.value += plan.value
        self.bound += plan.bound
        target_sizes = []
        inputs, tables = self.inputs, self.inputs.tables
        idle = capacity - sum(target.gpus for target in plan.targets)
        taken = any(target.gpus > m.running.gpus for m, target in zip(members, plan.targets, strict=True))
        for m, target in zip(members, plan.targets, strict=True):
            running = m.running
            stays = not m.forced and target.gpus == running.gpus and target.batch == running.batch
            free = min(idle, self.context.more(running, idle)) if idle > 0 and stays else 0
            if free:
                at = inputs.now, inputs.snapshot.at
                tried = explore(m, free, idle, inputs.settings, *at, tables.untried, tables.paces)
                if tried is not None:
                    idle -= tried[0] - running.gpus
                    self.limits.give(running.job_id, tried[0])
                    target_sizes.append(TargetSize(running, *tried, Reason.GROW_IDLE, 0.0, candidate=m, target=target))
                    continue
            reason = self._reason(m, target.gpus, target.batch, target.reason)
            if reason is Reason.KEEP_BEST:
                reason = self._best_awake(m, idle)
            if target.limit:
                self.context.limiting_reasons[running.job_id] = (
                    f"{target.limit} in all: without that it would have {target.unlimited}"
                )
                if reason in (Reason.KEEP_BEST, Reason.KEEP_ASLEEP):
                    reason = Reason.KEEP_LIMIT
                elif not m.forced and target.gpus < running.gpus <= target.unlimited:
                    reason = Reason.SHRINK_LIMIT
            if reason is Reason.SHRINK_SHARE and not taken:
                reason = Reason.SHRINK_NO_GAIN
            elif reason is Reason.SHRINK_CAPACITY and any(other.forced for other in members):
                # The room is made by another job, which this one makes up for.
                reason = self.context.why_forced(next(other.running for other in members if other.forced))
            change = 0.0 if stays and not target.limit else target.progress_change
            found = TargetSize(running, target.gpus, target.batch, reason, change, m.forced, False, (), m, target)
            if stays and not target.limit:
                self.unchanged[running.job_id] = Move(found, running.pieces)
            else:
                target_sizes.append(found)
        return target_sizes

    def _best_awake(self, m: Candidate, idle: int) -> Reason:
        """Why a job stays that nothing keeps from moving: it may be that the GPUs which it could gain are asleep."""
        running = m.running
        if idle > 0 and m.least_per_gpu and m.choices[-1][0] > running.gpus:
            self.context.limiting_reasons[running.job_id] = (
                f"{idle} idle GPUs may go to sleep: it grows only where each of them brings"
                f" {m.least_per_gpu:g} of what a GPU brings it at its best size (awake_gain)"
            )
        asleep = self.context.asleep.get(running.job_id, 0)
        if not asleep or idle > 0 or not (running.may_grow and running.can_add):
            return Reason.KEEP_BEST
        return Reason.KEEP_ASLEEP if running.accepted.largest > running.gpus else Reason.KEEP_BEST

    def _at_rest(self, m: Candidate) -> TargetSize:
        """Without a plan nobody moves, but for waiting jobs."""
        reason = self.context.why_forced(m.running) if m.forced else Reason.KEEP_BEST
        batch = nearest_batch(m.running.job.request.batches(m.rest), m.running.batch) if m.forced else m.running.batch
        return TargetSize(m.running, m.rest, batch, reason, 0.0, m.forced)

    def _reason(self, m: Candidate, gpus: int, batch: int, said: str) -> Reason:
        if m.forced and gpus <= m.running.gpus:
            return self.context.why_forced(m.running)
        if gpus == m.running.gpus:
            if batch != m.running.batch:
                return Reason.BATCH
            return self._why_kept(m.running)
        try:
            return Reason(said)
        except ValueError:
            return Reason.GROW_SHARE if gpus > m.running.gpus else Reason.SHRINK_SHARE

    def _why_kept(self, running: RunningJob) -> Reason:
        if running.state.given_nothing:
            return running.state.given_nothing
        if running.until is None or self.inputs.now >= running.until:
            needless = running.can_add or running.gpus >= running.job.request.max_gpus
            why = "" if needless else registry.no_addition(running, running.site)
            if not why:
                return Reason.KEEP_BEST
            self.context.limiting_reasons[running.job_id] = why
            return Reason.KEEP_REQUEST
        return Reason.KEEP_FAILED if failed_lately(running) else Reason.KEEP_COOLDOWN
