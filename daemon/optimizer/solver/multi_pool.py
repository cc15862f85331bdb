"""Several capacities at once: one choice per job, each takes something of each capacity, and none is exceeded.

One multiplier per capacity (Dantzig-Wolfe on the relaxation), each choice's loss against them, and a search over the
choices that the gap leaves open. Promise: the bound is proven. Limit: the search may stop at its work limit with a gap
it states; where scipy is installed its MILP solver then closes the rest.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from math import fsum

import numpy as np

from ..errors import InfeasiblePlan
from . import column_generation
from .exact_core import State, cheapest
from .inputs import acceptable, check_capacity, check_choice, name
from .knapsack import WORK, Solution, hidden_by_rounding
from .table import scale_for

Vector = tuple[int, ...]
Move = tuple[int, Vector, int, int]
"""(loss, change of weights, job, option)"""
UNIT = 1 << 12
"""Denominator of the multipliers."""
FIRST_WORK = 100_000
"""Steps of our own search before a MILP solver, where there is one, takes over."""
OLDEST_SCIPY = (1, 15)
"""The HiGHS of older ones calls plans optimal that are not: up to a fifth below the best on small instances."""


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """One feasible choice of one job: GPUs taken from each pool."""

    gpus: Vector
    value: float


def solve_pools(
    options: Sequence[Sequence[PoolChoice]], capacity: Sequence[int], labels: Sequence[str], work: int = WORK
) -> Solution:
    """The best choice for every job. Raises InfeasiblePlan naming the jobs, PlanInputError."""
    for k in capacity:
        check_capacity(k)
    weights = [[choice.gpus for choice in row] for row in options]
    values = [[choice.value for choice in row] for row in options]
    _check(options, labels)
    scale = scale_for(max(abs(v) for row in values for v in row), len(values))
    whole = [[round(v * scale) * UNIT for v in row] for row in values]
    hidden = partial(hidden_by_rounding, len(values), _residual(values, scale))
    prices = column_generation.multipliers(weights, [[v // UNIT for v in row] for row in whole], capacity, UNIT)
    if prices is None:
        names = ", ".join(labels[:8])
        raise InfeasiblePlan(f"the smallest choices of jobs {names} do not fit together into {list(capacity)} GPUs")
    base, slack, moves = open_choices(weights, whole, capacity, prices)
    search = _Search(moves, slack, prices, capacity, min(work, FIRST_WORK))
    search.run()
    if search.open:
        closed = _close(weights, whole, search, base, capacity)
        if closed is not None:
            value = fsum(row[i] for row, i in zip(values, closed, strict=True))
            return Solution(tuple(closed), value, 0.0, max(prices) / UNIT / scale, hidden(value))
        search.work += work - FIRST_WORK
        search.run()
    if search.moves is None:
        words = "do not fit together" if not search.open else "were not found to fit together within the work limit"
        raise InfeasiblePlan(f"the smallest choices of jobs {', '.join(labels[:8])} {words} into {list(capacity)} GPUs")
    for _, _, j, i in search.moves:
        base[j] = i
    value = fsum(row[i] for row, i in zip(values, base, strict=True))
    gap = ((search.loss or 0) - search.proven) // UNIT / scale if search.open else 0.0
    return Solution(tuple(base), value, gap, max(prices) / UNIT / scale, hidden(value))


def _check(options: Sequence[Sequence[PoolChoice]], labels: Sequence[str]) -> None:
    """PlanInputError for what is no size and no value."""
    sizes = np.fromiter(chain.from_iterable(choice.gpus for row in options for choice in row), np.float64)
    values = np.fromiter((choice.value for row in options for choice in row), np.float64)
    if not acceptable(sizes, values):
        for j, row in enumerate(options):
            for choice in row:
                check_choice(name(labels, j), choice.gpus, choice.value)


def _residual(values: Sequence[Sequence[float]], scale: float) -> float:
    """Most that one value is rounded by."""
    scaled = np.fromiter(chain.from_iterable(values), np.float64) * scale
    return float(np.abs(scaled - np.rint(scaled)).max()) / scale


def open_choices(
    weights: Sequence[Sequence[Vector]], whole: Sequence[Sequence[int]], capacity: Sequence[int], prices: Vector
) -> tuple[list[int], Vector, list[Move]]:
    """(base option per job, what it leaves of each pool (may be negative), every other option as a move by loss)."""
    base, moves, used = list[int](), list[Move](), [0] * len(capacity)
    for j, (row, vs) in enumerate(zip(weights, whole, strict=True)):
        reduced = [v - sum(p * k for p, k in zip(prices, w, strict=True)) for w, v in zip(row, vs, strict=True)]
        best = max(reduced)
        at = reduced.index(best)
        base.append(at)
        home = row[at]
        used = [u + k for u, k in zip(used, home, strict=True)]
        for i, w in enumerate(row):
            if w != home:
                moves.append((best - reduced[i], tuple(a - b for a, b in zip(w, home, strict=True)), j, i))
    moves.sort(key=lambda m: m[0])
    return base, tuple(c - u for c, u in zip(capacity, used, strict=True)), moves


class _Search:
    """Deepening search as in exact_core.py, over vectors of change."""

    def __init__(self, moves: list[Move], slack: Vector, prices: Vector, capacity: Sequence[int], work: int) -> None:
        self.all, self.slack, self.prices, self.work = moves, slack, prices, work
        self.losses = [m[0] for m in moves]
        self.loss: int | None = None
        self.moves: list[Move] | None = None
        self.proven, self.open = 0, True
        self.largest = sum(self.losses) + sum(p * c for p, c in zip(prices, capacity, strict=True)) + UNIT
        if all(s >= 0 for s in slack):
            self.moves, self.loss = [], sum(p * s for p, s in zip(prices, slack, strict=True))
        self.tau = self.losses[min(23, len(moves) - 1)] + UNIT if moves else UNIT

    def run(self) -> None:
        """Until proven, or out of work."""
        while self.loss is None or self.proven + UNIT <= self.loss:
            limit = self.tau if self.loss is None else min(self.tau, self.loss - UNIT)
            found = self._within(limit)
            if self.work < 0:
                return
            if found is not None:
                self.moves, self.loss = found
                break
            self.proven = limit + 1
            if limit >= self.largest:
                break
            self.tau *= 4
        self.open = False

    def _within(self, tau: int) -> tuple[list[Move], int] | None:
        """The least loss that is <= tau, over at most one move per job; None when there is none (or no work left)."""
        rows = dict[int, list[Move]]()
        for move in self.all[: bisect_right(self.losses, tau)]:
            rows.setdefault(move[2], []).append(move)
        ordered = sorted(rows.values(), key=lambda row: -max(max(map(abs, m[1])) for m in row))
        bounds = self._reach(ordered)
        states: dict[Vector, State] = {(0,) * len(self.slack): (0, None)}
        for (top, floor), row in zip(bounds, ordered, strict=True):
            fits = _fits(top, floor, self.prices)
            grown = dict[Vector, State]()
            for at, state in states.items():
                cost, link = state
                if fits(at, tau - cost) and (at not in grown or cost < grown[at][0]):
                    grown[at] = state
                for move in row:
                    paid = cost + move[0]
                    if paid > tau:
                        break
                    there = tuple([a + d for a, d in zip(at, move[1], strict=True)])
                    known = grown.get(there)
                    if (known is None or paid < known[0]) and fits(there, tau - paid):
                        grown[there] = (paid, (move, link))
            self.work -= len(states) * (len(row) + 1)
            if self.work < 0:
                return None
            states = grown
        ends = [(cost + self._unused(at), at) for at, (cost, _) in states.items() if self._unused(at) >= 0]
        return cheapest(ends, states, tau)

    def _unused(self, at: Vector) -> int:
        """What the GPUs left idle are worth; -1 when a pool is overfull."""
        if any(a > s for a, s in zip(at, self.slack, strict=True)):
            return -1
        return sum(p * (s - a) for p, s, a in zip(self.prices, self.slack, at, strict=True))

    def _reach(self, rows: list[list[Move]]) -> list[tuple[Vector, Vector]]:
        """After each row: the highest change from which the rest can come back, the lowest it can still fill up."""
        top, floor, out = list(self.slack), list(self.slack), list[tuple[Vector, Vector]]()
        for row in reversed(rows):
            out.append((tuple(top), tuple(floor)))
            for t in range(len(top)):
                top[t] += max(0, -min(m[1][t] for m in row))
                floor[t] -= max(0, max(m[1][t] for m in row))
        return out[::-1]


def _fits(top: Vector, floor: Vector, prices: Vector) -> Callable[[Vector, int], bool]:
    """Whether a change can still end within capacity, and what stays idle at least is within the budget."""

    def fits(at: Vector, budget: int) -> bool:
        idle = 0
        for a, t, f, p in zip(at, top, floor, prices, strict=True):
            if a > t:
                return False
            if a < f:
                idle += p * (f - a)
        return idle <= budget

    return fits


def _close(
    weights: Sequence[Sequence[Vector]],
    whole: Sequence[Sequence[int]],
    search: _Search,
    base: list[int],
    capacity: Sequence[int],
) -> list[int] | None:
    """The optimum by a MILP solver over as few choices as its own answer justifies; None without such a solver."""
    limit = search.tau * 8
    while True:
        if search.loss is not None:
            limit = min(limit, search.loss)
        choice = _milp(weights, whole, search.all[: bisect_right(search.losses, limit)], base, capacity)
        if choice is None:
            if limit >= search.losses[-1]:
                return None
            limit *= 16
            continue
        lost = {(j, i): loss for loss, _, j, i in search.all}
        used = [sum(weights[j][i][t] for j, i in enumerate(choice)) for t in range(len(capacity))]
        total = sum(lost.get((j, i), 0) for j, i in enumerate(choice))
        total += sum(p * (c - u) for p, c, u in zip(search.prices, capacity, used, strict=True))
        if total <= limit or limit >= search.losses[-1]:  # a choice not offered would lose more on its own
            return choice
        limit = total


def _milp(
    weights: Sequence[Sequence[Vector]],
    whole: Sequence[Sequence[int]],
    moves: list[Move],
    base: list[int],
    capacity: Sequence[int],
) -> list[int] | None:
    """The best plan of the base and these moves by scipy's HiGHS at gap 0; None without scipy, with one older than
    OLDEST_SCIPY, or without a plan."""
    try:
        import scipy
        from scipy import sparse
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError:
        return None
    if tuple(map(int, scipy.__version__.split(".")[:2])) < OLDEST_SCIPY:
        return None
    kept = [(j, i) for j, i in enumerate(base)]
    kept += [(j, i) for _, _, j, i in moves]
    position = np.arange(len(kept))
    jobs = np.array([j for j, _ in kept])
    one = sparse.csr_matrix((np.ones(len(kept)), (jobs, position)), shape=(len(base), len(kept)))
    usage = np.array([weights[j][i] for j, i in kept], dtype=float).T
    top = np.array([max(whole[j]) for j in range(len(base))], dtype=object)
    cost = np.array([float(top[j] - whole[j][i]) for j, i in kept])
    unit = max(cost.max(), 1.0)
    limits = [LinearConstraint(one, 1, 1), LinearConstraint(sparse.csr_matrix(usage), -np.inf, np.array(capacity))]
    found = milp(
        cost / unit * len(base), constraints=limits, integrality=1, bounds=Bounds(0, 1), options={"mip_rel_gap": 0.0}
    )
    if found.status != 0 or found.x is None:
        return None
    choice = list(base)
    for (j, i), x in zip(kept, found.x, strict=True):
        if x > 0.5:
            choice[j] = i
    used = [sum(weights[j][i][t] for j, i in enumerate(choice)) for t in range(len(capacity))]
    return choice if all(u <= c for u, c in zip(used, capacity, strict=True)) else None
