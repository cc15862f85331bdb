"""Limits per user, account or any group, of one pool or across pools (a user's GPUs everywhere): exact, and as cheap as
the limits allow.

Every pool is solved alone first. A limit that this breaks joins the pools that it reaches into one problem. Where the
pool is one and the limits nest, as Slurm's associations do, a group is folded into a table "best value of the group
with c GPUs", c = 0 .. limit, which enters the outer problem like one job's options. Else, or where that table would be
huge, a limit is one more capacity beside the pools' own (multi_pool.py). An optimum of the relaxed problem that keeps
every limit is an optimum of the whole.
Promise: no limit is exceeded; values and bounds are those of the solvers used. Limit: many broken limits that cross
pools are as hard as many linked pools; folding costs options x limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise
from math import fsum, ulp

import numpy as np

from ..errors import InfeasiblePlan, PlanInputError
from .knapsack import Solution, solve
from .multi_pool import PoolChoice, solve_pools
from .table import Choice, check_capacity

NONE = float("-inf")
MOST_ENTRIES = 10**8
"""Most jobs x limit that a group is folded at: it takes so many places in memory."""


@dataclass(frozen=True, slots=True)
class Cap:
    """At most `limit` GPUs for the jobs at these positions together."""

    limit: int
    members: frozenset[int]
    label: str = ""


@dataclass(frozen=True)
class _Group:
    """A folded group: its options, and for each of them the members' choices."""

    options: list[Choice]
    picks: list[dict[int, int]]


def solve_capped(
    options: Sequence[Sequence[Choice]],
    capacity: int,
    caps: Sequence[Cap],
    labels: Sequence[str] | None = None,
) -> Solution:
    """The best choice for every job with no group above its limit.

    Raises InfeasiblePlan (naming the group whose members' smallest sizes exceed its limit), PlanInputError.
    """
    check_capacity(capacity)
    _check(caps, len(options))
    binding = set[int]()
    while True:
        choice, answer = _solve_folded(options, capacity, [caps[i] for i in sorted(binding)], labels)
        broken = {i for i, cap in enumerate(caps) if _held(options, choice, cap) > cap.limit}
        if not broken:
            value = fsum(row[i].value for row, i in zip(options, choice, strict=True))
            summed = len(options) * ulp(fsum(max(abs(o.value) for o in row) for row in options)) if binding else 0.0
            return Solution(choice, value, answer.gap, answer.price, answer.rounding + 2 * summed)
        binding |= broken


def foldable(options: Sequence[Sequence[Choice]], cap: Cap, capacity: int) -> bool:
    """Whether a group's table is small enough to be made."""
    return len(cap.members) * _reachable(options, cap, capacity) <= MOST_ENTRIES


def _reachable(options: Sequence[Sequence[Choice]], cap: Cap, capacity: int) -> int:
    """The most GPUs that the group can have."""
    return min(cap.limit, capacity, sum(max(o.gpus for o in options[j]) for j in cap.members))


def _held(options: Sequence[Sequence[Choice]], choice: Sequence[int], cap: Cap) -> int:
    return sum(options[j][choice[j]].gpus for j in cap.members)


def _solve_folded(
    options: Sequence[Sequence[Choice]], capacity: int, caps: list[Cap], labels: Sequence[str] | None
) -> tuple[tuple[int, ...], Solution]:
    """The optimum when only these caps hold: (choice, the outer problem's solution)."""
    groups = [(cap, _fold(options, cap, [c for c in caps if c.members < cap.members], capacity)) for cap in _top(caps)]
    inside = frozenset[int]().union(*(cap.members for cap, _ in groups))
    free = [j for j in range(len(options)) if j not in inside]
    rows: list[Sequence[Choice]] = [options[j] for j in free]
    names = [labels[j] if labels else str(j) for j in free] + [cap.label or "group" for cap, _ in groups]
    answer = solve([*rows, *(group.options for _, group in groups)], capacity, names)
    choice = [0] * len(options)
    for j, i in zip(free, answer.choice, strict=False):
        choice[j] = i
    for (_, group), i in zip(groups, answer.choice[len(free) :], strict=True):
        for j, picked in group.picks[i].items():
            choice[j] = picked
    return tuple(choice), answer


def _top(caps: list[Cap]) -> list[Cap]:
    """The caps inside no other; of equal groups the first stands for the tightest."""
    tight = dict[frozenset[int], Cap]()
    for cap in caps:
        known = tight.get(cap.members)
        if known is None or cap.limit < known.limit:
            tight[cap.members] = cap
    return [c for c in tight.values() if not any(c.members < o.members for o in tight.values())]


def _fold(options: Sequence[Sequence[Choice]], cap: Cap, inner: list[Cap], capacity: int) -> _Group:
    """The group's best value at each number of GPUs up to its limit, by the plain recurrence."""
    limit = _reachable(options, cap, capacity)
    if not foldable(options, cap, capacity):
        raise PlanInputError(
            f"limit {cap.limit} of {cap.label or 'a group'} is too large to fold its {len(cap.members)} jobs under"
        )
    children = [(c, _fold(options, c, [i for i in inner if i.members < c.members], limit)) for c in _top(inner)]
    inside = frozenset[int]().union(*(c.members for c, _ in children))
    single = [j for j in sorted(cap.members) if j not in inside]
    rows = [(j, list(options[j]), None) for j in single] + [(-1, g.options, g.picks) for _, g in children]
    best: list[float] = [0.0] * (limit + 1)
    steps = list[list[int]]()
    for _, row, _ in rows:
        best, step = _append(best, row)
        steps.append(step)
    out = _Group([], [])
    for total in range(limit + 1):
        if best[total] == NONE or (total and best[total] <= best[total - 1]):
            continue
        at, picks = total, dict[int, int]()
        for (j, row, inner_picks), step in zip(reversed(rows), reversed(steps), strict=True):
            index = step[at]
            picks.update(inner_picks[index] if inner_picks is not None else {j: index})
            at -= row[index].gpus
        out.options.append(Choice(total, best[total]))
        out.picks.append(picks)
    if not out.options:
        raise InfeasiblePlan(
            f"{cap.label or 'a group'}: its jobs' smallest sizes need more than its limit of {cap.limit} GPUs",
            tuple(sorted(cap.members)),
        )
    return out


def _append(best: list[float], row: Sequence[Choice]) -> tuple[list[float], list[int]]:
    """One step of the recurrence: (best value within each total, index of the option taken there)."""
    old = np.asarray(best)
    grown, step = np.full(len(old), NONE), np.full(len(old), -1)
    for index, option in enumerate(row):
        if option.gpus < len(old):
            shifted = old[: len(old) - option.gpus] + option.value
            better = shifted > grown[option.gpus :]
            grown[option.gpus :][better] = shifted[better]
            step[option.gpus :][better] = index
    return grown.tolist(), step.tolist()


def check_cap(cap: Cap, jobs: int) -> None:
    """PlanInputError for what is no limit."""
    group = cap.label or "a group"
    check_capacity(cap.limit, f"limit of {group}:")
    if any(not 0 <= j < jobs for j in cap.members):
        raise PlanInputError(f"limit of {group}: its jobs are numbered from 0 to {jobs - 1}, not {sorted(cap.members)}")


def _check(caps: Sequence[Cap], jobs: int) -> None:
    for i, cap in enumerate(caps):
        check_cap(cap, jobs)
        for other in caps[:i]:
            common = cap.members & other.members
            if common and common not in (cap.members, other.members):
                raise PlanInputError(f"groups {other.label or '?'} and {cap.label or i} overlap; groups must nest")


Rows = Sequence[Sequence[Choice]]


@dataclass(frozen=True, slots=True)
class Limited:
    """A solution for each pool; what they would be without limits; which limits had to be added."""

    solutions: list[Solution]
    unlimited: list[Solution]
    binding: tuple[int, ...]


def solve_limited(
    pools: Sequence[Rows],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    labels: Sequence[str],
) -> Limited:
    """The best choice for every job of every pool.

    `caps` and `labels` count the jobs through all pools, in order. Raises InfeasiblePlan, PlanInputError.
    """
    for cap in caps:
        check_cap(cap, len(labels))
    starts = [0, *accumulate(len(rows) for rows in pools)]
    names = [labels[a:b] for a, b in pairwise(starts)]
    alone = [solve(rows, k, n) for rows, k, n in zip(pools, capacities, names, strict=True)]
    answers, binding = list(alone), set[int]()
    home = [g for g, rows in enumerate(pools) for _ in rows]
    while True:
        broken = {c for c, cap in enumerate(caps) if _used(pools, starts, home, answers, cap) > cap.limit}
        if not broken:
            return Limited(answers, alone, tuple(sorted(binding)))
        binding |= broken
        for groups, limits in _components(home, caps, sorted(binding)):
            if not broken.isdisjoint(limits):
                found = _joint(pools, capacities, starts, groups, [caps[c] for c in limits], labels)
                for g, answer in zip(groups, found, strict=True):
                    answers[g] = answer


def _used(pools: Sequence[Rows], starts: list[int], home: list[int], answers: list[Solution], cap: Cap) -> int:
    total = 0
    for j in cap.members:
        g, at = home[j], j - starts[home[j]]
        total += pools[g][at][answers[g].choice[at]].gpus
    return total


def _components(home: list[int], caps: Sequence[Cap], binding: list[int]) -> list[tuple[list[int], list[int]]]:
    """(pools, limits) of each set of pools that these limits tie together."""
    parts = list[tuple[set[int], list[int]]]()
    for c in binding:
        groups, limits = {home[j] for j in caps[c].members}, [c]
        for part in [p for p in parts if p[0] & groups]:
            parts.remove(part)
            groups |= part[0]
            limits += part[1]
        parts.append((groups, limits))
    return [(sorted(groups), sorted(limits)) for groups, limits in parts]


def _joint(
    pools: Sequence[Rows],
    capacities: Sequence[int],
    starts: list[int],
    groups: list[int],
    caps: list[Cap],
    labels: Sequence[str],
) -> list[Solution]:
    """These pools under these limits: a solution for each; the first states the gap and rounding of all of them."""
    jobs = [(g, j) for g in groups for j in range(starts[g], starts[g + 1])]
    place = {j: i for i, (_, j) in enumerate(jobs)}
    rows = [pools[g][j - starts[g]] for g, j in jobs]
    names = [labels[j] for _, j in jobs]
    local = [Cap(cap.limit, frozenset(place[j] for j in cap.members), cap.label) for cap in caps]
    if len(groups) == 1 and _nested(local) and all(foldable(rows, cap, capacities[groups[0]]) for cap in local):
        return [solve_capped(rows, capacities[groups[0]], local, names)]
    inside = [[i for i, cap in enumerate(local) if n in cap.members] for n in range(len(jobs))]
    vectors = [
        [PoolChoice(_vector(o.gpus, groups.index(g), own, len(groups), len(local)), o.value) for o in row]
        for (g, _), row, own in zip(jobs, rows, inside, strict=True)
    ]
    whole = solve_pools(vectors, [*(capacities[g] for g in groups), *(cap.limit for cap in local)], names)
    out, at, gap, rounding = list[Solution](), 0, whole.gap, whole.rounding
    for g in groups:
        choice = whole.choice[at : at + len(pools[g])]
        value = sum(row[i].value for row, i in zip(pools[g], choice, strict=True))
        out.append(Solution(choice, value, gap, whole.price, rounding))
        at, gap, rounding = at + len(pools[g]), 0.0, 0.0
    return out


def _vector(gpus: int, group: int, inside: list[int], groups: int, limits: int) -> tuple[int, ...]:
    """What a choice takes of each pool and of each limit."""
    taken = [0] * (groups + limits)
    taken[group] = gpus
    for i in inside:
        taken[groups + i] = gpus
    return tuple(taken)


def _nested(caps: Sequence[Cap]) -> bool:
    """Whether of any two limits one lies inside the other or they are apart."""
    return all(a.members & b.members in (frozenset(), a.members, b.members) for a, b in combinations(caps, 2))
