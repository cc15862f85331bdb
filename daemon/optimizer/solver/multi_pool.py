"""Several capacities at once: one choice per job, each takes something of each capacity, and none is exceeded.

One multiplier per capacity (Dantzig-Wolfe on the relaxation), each choice's loss against them, and a search over the
choices that the gap leaves open (halves.py). Promise: the bound is proven. Limit: the search may stop at its work limit
with a gap it states; where scipy is installed its MILP solver then closes the rest.
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
from .halves import Moves, Search, Vector
from .inputs import acceptable, check_capacity, check_choice, name
from .knapsack import Solution, hidden_by_rounding
from .table import scale_for

Array = Any
UNIT = 1 << 12
"""Denominator of the multipliers."""
FIRST_WORK = 4_000_000
"""Sums that our own search makes before a MILP solver, where there is one, takes over."""
WORK = 20_000_000
"""Sums that it makes without one before an answer is given with the gap it has then."""
OLDEST_SCIPY = (1, 15)
"""The HiGHS of older ones calls plans optimal that are not: up to a fifth below the best on small instances."""


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

    def position(self, choice: Sequence[int]) -> Array:
        """The places of one choice of each job."""
        return self.starts[:-1] + np.array(choice)

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
    _check(options, labels)
    values = np.array([choice.value for row in options for choice in row], dtype=np.float64)
    scale = scale_for(float(abs(values).max()), len(options))
    scaled = values * scale
    rounded = np.rint(scaled)
    hidden = partial(hidden_by_rounding, len(options), float(abs(scaled - rounded).max()) / scale)
    starts = np.cumsum([0, *map(len, options)])
    usage = np.array([choice.gpus for row in options for choice in row], dtype=np.int64)
    prices = column_generation.multipliers(starts, usage, rounded, capacity, UNIT)
    if prices is None:
        names = ", ".join(labels[:8])
        raise InfeasiblePlan(f"the smallest choices of jobs {names} do not fit together into {list(capacity)} GPUs")
    table = _Table(starts, usage, rounded.astype(np.int64) * UNIT)
    base, moves = open_choices(table, prices)
    slack = tuple(k - used for k, used in zip(capacity, table.used(base), strict=True))
    search = Search(moves, slack, prices, capacity, UNIT)
    search.run(min(work, FIRST_WORK))
    closed = _close(table, search, base, capacity) if search.open else None
    if closed is None and search.open:
        search.run(work - FIRST_WORK)
    if closed is None and search.loss is None:
        words = "do not fit together" if not search.open else "were not found to fit together within the work limit"
        raise InfeasiblePlan(f"the smallest choices of jobs {', '.join(labels[:8])} {words} into {list(capacity)} GPUs")
    if closed is None:
        base[moves.job[search.found]] = moves.at[search.found]
    at = base if closed is None else closed
    value = fsum(values[at].tolist())
    gap = ((search.loss or 0) - search.proven) // UNIT / scale if search.open and closed is None else 0.0
    return Solution(tuple((at - starts[:-1]).tolist()), value, gap, max(prices) / UNIT / scale, hidden(value))


def _check(options: Sequence[Sequence[PoolChoice]], labels: Sequence[str]) -> None:
    """PlanInputError for what is no size, no value or no list."""
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


def _close(table: _Table, search: Search, base: Array, capacity: Sequence[int]) -> Array | None:
    """The optimum by a MILP solver over as few choices as its own answer justifies; None without such a solver."""
    limit, moves = search.tau * 8, search.moves
    lost = dict(zip(moves.at.tolist(), moves.loss.tolist(), strict=True))
    while len(moves.loss):
        if search.loss is not None:
            limit = min(limit, search.loss)
        open_ = moves.at[: moves.loss.searchsorted(limit, side="right")]
        at = _milp(table, np.concatenate([base, open_]), capacity)
        if at is None:
            if limit >= moves.loss[-1]:
                return None
            limit *= 16
            continue
        total = sum(lost.get(i, 0) for i in at.tolist())
        total += sum(p * (c - u) for p, c, u in zip(search.prices, capacity, table.used(at), strict=True))
        if total <= limit or limit >= moves.loss[-1]:  # a choice not offered would lose more on its own
            return at
        limit = total
    return None


def _milp(table: _Table, offered: Array, capacity: Sequence[int]) -> Array | None:
    """The best plan of the choices at these places by scipy's HiGHS at gap 0; None without scipy, with one older than
    OLDEST_SCIPY, or without a plan."""
    try:
        import scipy
        from scipy import sparse
        from scipy.optimize import Bounds, LinearConstraint, milp
    except ImportError:
        return None
    if tuple(map(int, scipy.__version__.split(".")[:2])) < OLDEST_SCIPY:
        return None
    jobs = table.starts.searchsorted(offered, side="right") - 1
    count = len(table.starts) - 1
    one = sparse.csr_matrix((np.ones(len(offered)), (jobs, np.arange(len(offered)))), shape=(count, len(offered)))
    usage = table.usage[offered].T.astype(float)
    top = np.maximum.reduceat(table.whole, table.starts[:-1])
    cost = (top[jobs] - table.whole[offered]).astype(float)
    limits = [LinearConstraint(one, 1, 1), LinearConstraint(sparse.csr_matrix(usage), -np.inf, np.array(capacity))]
    found = milp(
        cost / max(cost.max(), 1.0) * count,
        constraints=limits, integrality=1, bounds=Bounds(0, 1), options={"mip_rel_gap": 0.0},
    )  # fmt: skip
    if found.status != 0 or found.x is None:
        return None
    at, picked = np.full(count, -1), found.x > 0.5
    at[jobs[picked]] = offered[picked]
    fits = at.min() >= 0 and all(u <= c for u, c in zip(table.used(at), capacity, strict=True))
    return at if fits else None
