"""Several capacities at once: one choice per job, each takes something of each capacity, and none is exceeded.

One multiplier per capacity (the linear relaxation by Dantzig and Wolfe's decomposition, in a tiny basis), each choice's
loss against them, and a search over the choices that the gap leaves open (meet_in_the_middle.py). The relaxation's
master problem mixes whole plans: maximise sum mu_i V_i, sum mu_i W_i <= K, sum mu_i = 1, with one row per pool and one
more. Each round prices out the best plan at the present multipliers. Any multipliers >= 0 give a valid bound, so
stopping early or rounding costs sharpness, never truth.

Promise: the bound is proven. Limit: the search may stop at its work limit, with a gap that it states.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum
from typing import Any

import numpy as np

from ..errors import InfeasiblePlan, PlanInputError
from .knapsack import Solution, hidden_by_rounding
from .meet_in_the_middle import Moves, Search
from .table import acceptable, check_capacity, check_choice, name, scale_for

Array = Any

ROUNDS = 200
Vector = tuple[int, ...]
Plan = tuple[float, list[float]]
"""(value, weight per pool)"""


def multipliers(starts: Array, usage: Array, values: Array, capacity: Sequence[int], unit: int) -> Vector | None:
    """Integers p with p / unit the multipliers in value units per GPU; None when no mix of plans fits.

    `starts`: where each job's choices begin, and the end; `usage`: choice x capacity; `values` as integers in doubles.
    """
    best_plan = _oracle(starts, usage.astype(np.float64), values)
    pools = len(capacity)
    most, least = np.maximum.reduceat(values, starts[:-1]), np.minimum.reduceat(values, starts[:-1])
    spread = float((most - least).sum() + abs(most).sum()) + 1.0
    basis = _Basis([float(c) for c in capacity], -4.0 * spread)
    for _ in range(ROUNDS):
        prices, level = basis.prices()
        short = next((t for t in range(pools) if prices[t] < -1e-9 * spread), None)
        if short is not None:  # an idle GPU is worth something: let the slack in
            basis.enter([1.0 if r == short else 0.0 for r in range(pools)] + [0.0], 0.0, False)
            continue
        value, used = best_plan([max(0.0, p) for p in prices])
        reduced = value - sum(p * u for p, u in zip(prices, used, strict=True)) - level
        if reduced <= 1e-12 * spread or not basis.enter([*used, 1.0], value, False):
            break
    if basis.artificial() > 1e-7:
        return None
    return tuple(max(0, round(p * unit)) for p in basis.prices()[0])


class _Basis:
    """Primal simplex on pools + 1 rows, the inverse kept whole."""

    def __init__(self, capacity: list[float], penalty: float) -> None:
        self.size = len(capacity) + 1
        self.inverse = [[float(i == j) for j in range(self.size)] for i in range(self.size)]
        self.amount = [*capacity, 1.0]
        self.worth = [0.0] * len(capacity) + [penalty]
        self.made_up = [False] * len(capacity) + [True]

    def prices(self) -> tuple[list[float], float]:
        dual = [sum(w * row[c] for w, row in zip(self.worth, self.inverse, strict=True)) for c in range(self.size)]
        return dual[:-1], dual[-1]

    def artificial(self) -> float:
        """The share of the made-up plan that fits everywhere: above 0, nothing real does."""
        return sum(a for a, made_up in zip(self.amount, self.made_up, strict=True) if made_up)

    def enter(self, column: list[float], worth: float, made_up: bool) -> bool:
        """Bring a column in; False when nothing changes by it."""
        moved = [sum(a * b for a, b in zip(row, column, strict=True)) for row in self.inverse]
        ratios = [(self.amount[r] / moved[r], -moved[r], r) for r in range(self.size) if moved[r] > 1e-9]
        if not ratios:
            return False
        _, _, out = min(ratios)
        pivot = moved[out]
        self.inverse[out] = [x / pivot for x in self.inverse[out]]
        self.amount[out] /= pivot
        for r in range(self.size):
            if r != out and moved[r]:
                self.inverse[r] = [a - moved[r] * b for a, b in zip(self.inverse[r], self.inverse[out], strict=True)]
                self.amount[r] = max(0.0, self.amount[r] - moved[r] * self.amount[out])
        self.worth[out], self.made_up[out] = worth, made_up
        return True


def _oracle(starts: Array, usage: Array, values: Array) -> Callable[[list[float]], Plan]:
    """The plan that is best at given prices."""
    lengths = starts[1:] - starts[:-1]

    def best(prices: list[float]) -> Plan:
        reduced = values - usage @ np.array(prices)
        at_best = np.flatnonzero(reduced >= np.maximum.reduceat(reduced, starts[:-1]).repeat(lengths))
        pick = at_best[np.searchsorted(at_best, starts[:-1])]
        return float(values[pick].sum()), usage[pick].sum(axis=0).tolist()

    return best


UNIT = 1 << 12
"""Denominator of the multipliers."""
WORK = 20_000_000
"""Sums that the search makes before an answer is given with the gap it has then."""


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """One feasible choice of one job: GPUs taken from each pool."""

    gpus: Vector
    value: float


@dataclass(frozen=True, eq=False)
class _Table:
    """All choices of all jobs, in the jobs' order."""

    starts: Array
    """Where each job's choices begin, and the end of the last one's."""
    usage: Array
    """Choice x capacity."""
    whole: Array
    """Values as integers, in units of 1 / UNIT of the scale's."""

    def used(self, at: Array) -> list[int]:
        """What these choices take of each capacity."""
        taken: list[int] = self.usage[at].sum(0).tolist()
        return taken


def solve_pools(
    options: Sequence[Sequence[PoolChoice]], capacity: Sequence[int], labels: Sequence[str], work: int = WORK
) -> Solution:
    """The best choice for every job. Raises InfeasiblePlan naming the jobs, PlanInputError."""
    for k in capacity:
        check_capacity(k)
    if not options:
        return Solution((), 0.0)
    _check(options, labels, len(capacity))
    values = np.array([choice.value for row in options for choice in row], dtype=np.float64)
    scale = scale_for(float(abs(values).max()), len(options))
    scaled = values * scale
    rounded = np.rint(scaled)
    hidden = partial(hidden_by_rounding, len(options), float(abs(scaled - rounded).max()) / scale)
    starts = np.cumsum([0, *map(len, options)])
    usage = np.array([choice.gpus for row in options for choice in row], dtype=np.int64)
    # In nodes, say, where all take whole nodes: the search counts what is left unused, and there is less to count.
    common = np.maximum(1, np.gcd.reduce(usage, axis=0))
    usage, room = usage // common, [k // c for k, c in zip(capacity, common.tolist(), strict=True)]
    prices = multipliers(starts, usage, rounded, room, UNIT)
    if prices is None:
        names = ", ".join(labels[:8])
        raise InfeasiblePlan(f"the smallest choices of jobs {names} do not fit together into {list(capacity)} GPUs")
    table = _Table(starts, usage, rounded.astype(np.int64) * UNIT)
    base, moves = open_choices(table, prices)
    slack = tuple(k - used for k, used in zip(room, table.used(base), strict=True))
    search = Search(moves, slack, prices, room, UNIT)
    search.run(work)
    if search.loss is None:
        words = "do not fit together" if not search.open else "were not found to fit together within the work limit"
        raise InfeasiblePlan(f"the smallest choices of jobs {', '.join(labels[:8])} {words} into {list(capacity)} GPUs")
    base[moves.job[search.found]] = moves.at[search.found]
    value = fsum(values[base].tolist())
    gap = (search.loss - search.proven) // UNIT / scale if search.open else 0.0
    price = max(p / c for p, c in zip(prices, common.tolist(), strict=True)) / UNIT / scale
    return Solution(tuple((base - starts[:-1]).tolist()), value, gap, price, hidden(value))


def _check(options: Sequence[Sequence[PoolChoice]], labels: Sequence[str], pools: int) -> None:
    """PlanInputError for what is no size, no value, no list, or not as many sizes as there are pools."""
    for j, choice in ((j, choice) for j, row in enumerate(options) for choice in row if len(choice.gpus) != pools):
        shown = " + ".join(map(str, choice.gpus))
        words = f"a choice of {shown or 'no'} GPUs is of {len(choice.gpus)} pools, and there are {pools}"
        raise PlanInputError(f"{name(labels, j)}: {words}; accepted: one size for each pool")
    try:
        sizes = np.array([choice.gpus for row in options for choice in row], dtype=np.float64)
        fine = acceptable(sizes, np.array([choice.value for row in options for choice in row], dtype=np.float64))
    except OverflowError:  # an integer beyond all doubles
        fine = False
    for j, row in enumerate(options if not fine or not all(options) else ()):
        if not row:
            raise PlanInputError(f"{name(labels, j)} has no choice at all: give every job at least one option")
        for choice in row:
            check_choice(name(labels, j), choice.gpus, choice.value)


def open_choices(table: _Table, prices: Vector) -> tuple[Array, Moves]:
    """(the place of each job's base choice, every other choice as a move)."""
    starts, usage, whole = table.starts, table.usage, table.whole
    largest = int(abs(whole).max()) + sum(p * int(u) for p, u in zip(prices, usage.max(0), strict=True))
    if largest >= 1 << 61:  # Python's integers: slow, and no number is too large
        usage, whole = usage.astype(object), whole.astype(object)
    reduced = whole - usage @ np.array(prices, dtype=usage.dtype)
    lengths = starts[1:] - starts[:-1]
    loss = np.maximum.reduceat(reduced, starts[:-1]).repeat(lengths) - reduced
    best = (loss == 0).nonzero()[0]
    base = best[best.searchsorted(starts[:-1])]
    job = np.arange(len(base)).repeat(lengths)
    change = table.usage - table.usage[base[job]]
    at = change.any(1).nonzero()[0]
    at = at[loss[at].argsort(kind="stable")]
    return base, Moves(loss[at], change[at], job[at], at)
