"""Several capacities at once: one choice per job, each takes something of each capacity, and none is exceeded.

One multiplier per capacity (Dantzig-Wolfe on the relaxation), each choice's loss against them, and a search over the
choices that the gap leaves open (meet_in_the_middle.py).

Promise: the bound is proven. Limit: the search may stop at its work limit, with a gap that it states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import fsum
from typing import Any

import numpy as np

from ..errors import InfeasiblePlan, PlanInputError
from . import column_generation
from .inputs import acceptable, check_capacity, check_choice, name
from .knapsack import Solution, hidden_by_rounding
from .meet_in_the_middle import Moves, Search, Vector
from .table import scale_for

Array = Any
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
    prices = column_generation.multipliers(starts, usage, rounded, room, UNIT)
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
