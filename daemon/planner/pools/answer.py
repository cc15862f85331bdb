"""Who gets how much: the optimizer's answer for each pool, or staying where it gains too little. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ...optimizer.plan import Cache, plan_pools
from ...optimizer.policies import POLICIES
from ...optimizer.problem import Layout
from ...optimizer.solver.nested_caps import Cap
from ...optimizer.targets import PoolPlan, Target
from ..settings import PlannerSettings
from .candidate import Candidate
from .gain import gain_of, progress_of, staying_values


@dataclass(frozen=True)
class PoolAnswer:
    """The optimizer's answer for one pool."""

    targets: tuple[Target, ...]
    value: float
    bound: float
    objective_gain: float
    """Against leaving everyone where it is, in relative gains of one job's progress."""
    members: tuple[Candidate, ...]
    held_back: bool = False
    """The gain was below the least one worth moving for: everyone stays, with a batch that is better there."""

    @cached_property
    def progress(self) -> float | None:
        """The gain in jobs' worth of progress: speedups, pauses left out; None where a model is missing."""
        changes = progress_of(self.members, self.targets)
        known = [change for change in changes if change is not None]
        return sum(known) if len(known) == len(changes) else None


def share(
    pools: Sequence[Sequence[Candidate]],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    settings: PlannerSettings,
    cache: Cache | None = None,
    layout: Layout | None = None,
) -> list[PoolAnswer]:
    """The best plan for every pool, or staying where everyone is when a pool's best plan gains too little; a batch that
    is worth its change is no move. A planner decides that by itself: what it counts beside the values is not known.

    `caps` count the members through all pools. Raises InfeasiblePlan, PlanInputError.
    """
    policy, cache = settings.policy, cache or Cache()
    bests = plan_pools([[m.view for m in members] for members in pools], capacities, caps, policy, cache, layout)
    gains = []
    for members, best in zip(pools, bests, strict=True):
        stays = staying_values(policy, cache, members, best.targets)
        gains.append(gain_of(policy, members, [t.value for t in best.targets], stays))
    small = {g for g, gain in enumerate(gains) if gain < settings.min_gain and POLICIES[policy].planner is None}
    still = _held_back(pools, bests, caps, small)
    out = []
    for g, (members, best, gain) in enumerate(zip(pools, bests, gains, strict=True)):
        if g in still:
            (stay,) = plan_pools([[m.in_place for m in members]], capacities[g : g + 1], (), policy, cache)
            out.append(_at_rest(members, best, stay, gain))
        else:
            out.append(PoolAnswer(best.targets, best.value, best.bound, gain, tuple(members)))
    return out


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


def _at_rest(members: Sequence[Candidate], best: PoolPlan, stay: PoolPlan, gain: float) -> PoolAnswer:
    """Nobody moves, though the best plan would gain so much."""
    moved = any(_moves(m, t) for m, t in zip(members, best.targets, strict=True))
    rows = zip(stay.targets, best.targets, strict=True)
    kept = tuple([_limited(own, target) for own, target in rows])
    return PoolAnswer(kept, stay.value, best.bound, gain if moved else 0.0, tuple(members), held_back=moved)


def _limited(own: Target, best: Target) -> Target:
    """The target with what keeps it from more in the best plan."""
    return replace(own, limit=best.limit, unlimited=best.unlimited) if best.limit else own


def _moves(m: Candidate, target: Target) -> bool:
    return target.gpus != m.rest or (not m.forced and target.batch != m.running.batch)
