"""Several pools (partition x GPU type): one choice per job, every pool within its capacity.

Pools that no job links are solved apart, each by the exact single-pool solver. Linked ones are solved with one
multiplier per pool (Dantzig-Wolfe on the relaxation), each choice's loss against them, and a search over the choices
that the gap leaves open. Promise: the bound is proven. Limit: with linked pools the search may stop at its work limit
with a gap it states; where scipy is installed its MILP solver then closes the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, isfinite

from ..errors import InfeasiblePlan, PlanInputError
from .knapsack import WORK, Solution, solve
from .multi_pool_search import solve_linked
from .table import Choice, name


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """One feasible choice of one job: GPUs taken from each pool."""

    gpus: tuple[int, ...]
    value: float
    batch: int = 0


def solve_pools(
    options: Sequence[Sequence[PoolChoice]],
    capacities: Sequence[int],
    labels: Sequence[str] | None = None,
    work: int = WORK,
) -> Solution:
    """The best choice for every job. Raises InfeasiblePlan naming the jobs of the pools concerned, PlanInputError."""
    _check(options, capacities, labels)
    choice, gap, stopped, price = [0] * len(options), 0.0, "", 0.0
    for pools, jobs in _components(options, len(capacities)):
        rows = [options[j] for j in jobs]
        names = [labels[j] if labels else str(j) for j in jobs]
        if len(pools) == 1:
            flat = [[Choice(o.gpus[pools[0]], o.value) for o in row] for row in rows]
            part = solve(flat, capacities[pools[0]], names, work)
        elif not pools:
            part = Solution(tuple(max(range(len(r)), key=lambda i: r[i].value) for r in rows), 0.0, 0.0)
        else:
            weights = [[tuple(o.gpus[p] for p in pools) for o in row] for row in rows]
            values = [[o.value for o in row] for row in rows]
            part = solve_linked(weights, values, [capacities[p] for p in pools], names, work)
        for j, i in zip(jobs, part.choice, strict=True):
            choice[j] = i
        gap, price, stopped = gap + part.gap, max(price, part.price), stopped or part.stopped
    value = fsum(row[i].value for row, i in zip(options, choice, strict=True))
    return Solution(tuple(choice), value, value + gap, price, stopped)


def _components(options: Sequence[Sequence[PoolChoice]], pools: int) -> list[tuple[list[int], list[int]]]:
    """(pools, jobs) of each set of pools that jobs link."""
    head = list(range(pools))

    def find(p: int) -> int:
        while head[p] != p:
            p = head[p]
        return p

    touched = [sorted({p for o in row for p, k in enumerate(o.gpus) if k}) for row in options]
    for linked in touched:
        for p in linked[1:]:
            head[find(p)] = find(linked[0])
    parts = dict[int, tuple[list[int], list[int]]]()
    for j, linked in enumerate(touched):
        parts.setdefault(find(linked[0]) if linked else -1, ([], []))[1].append(j)
    for p in range(pools):
        if find(p) in parts:
            parts[find(p)][0].append(p)
    return list(parts.values())


def _check(options: Sequence[Sequence[PoolChoice]], capacities: Sequence[int], labels: Sequence[str] | None) -> None:
    if any(c < 0 for c in capacities):
        raise PlanInputError(f"capacities {list(capacities)}: each must be 0 or more")
    for j, row in enumerate(options):
        if not row:
            raise PlanInputError(f"{name(labels, j)} has no choice at all: give every job at least one option")
        for o in row:
            if not isfinite(o.value):
                raise PlanInputError(f"{name(labels, j)}: value {o.value} at {o.gpus} GPUs is not finite")
            if len(o.gpus) != len(capacities) or any(k < 0 for k in o.gpus):
                raise PlanInputError(f"{name(labels, j)}: GPUs {o.gpus} must be {len(capacities)} numbers of 0 or more")
        if not any(all(k <= c for k, c in zip(o.gpus, capacities, strict=True)) for o in row):
            raise InfeasiblePlan(f"no choice of {name(labels, j)} fits into pools of {list(capacities)} GPUs", (j,))
