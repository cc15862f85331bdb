"""Several pools under limits that cross them (a user's GPUs everywhere): exact, and as cheap as the limits allow.

Every pool is solved alone first. A limit that this breaks joins the pools that it reaches into one problem: by folding
(nested_caps.py) where the pool is one and the limits nest, else, or where that table would be huge, as one more
capacity beside the pools' own (multi_pool.py). An optimum of the relaxed problem that keeps every limit is an optimum
of the whole.
Promise: no limit is exceeded; values and bounds are those of the solvers used. Limit: many broken limits that cross
pools are as hard as many linked pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise

from .knapsack import Solution, solve
from .multi_pool import PoolChoice, solve_pools
from .nested_caps import Cap, check_cap, foldable, solve_capped
from .table import Choice

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
