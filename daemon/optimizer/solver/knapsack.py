"""The plan's heart: one choice per job, sum of GPUs <= capacity, sum of values largest. Exact, with its proof.

A multiple-choice knapsack with small integer weights. Method: the linear relaxation's multiplier, each choice's loss
against it, and an exact dynamic program over the few choices the remaining gap leaves open (core.py). Promise: the
bound is proven, and meets the value unless `work` ran out. Limit: values are rounded to about 2**-35 of the largest.

    >>> solve([[Option(1, 1.0), Option(2, 1.9)], [Option(0, 0.0), Option(2, 1.2)]], capacity=3).choice
    (0, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum, isfinite
from typing import Any, NamedTuple

from . import dual_plain, shared_columns
from .exact_core import Finish, Move, finish
from .table import Memo, Table, build, check_feasible

WORK = 50_000_000
"""Steps of the exact finish before an answer is given with the gap it has then."""


@dataclass(frozen=True, slots=True)
class Option:
    """One feasible choice of one job."""

    gpus: int
    """0 or more."""
    value: float
    """Finite; larger is better."""
    batch: int = 0
    """Global batch this choice runs at; carried along, never read."""


@dataclass(frozen=True, slots=True)
class Solution:
    """An index into each job's options, what they are worth together, and what no plan can exceed."""

    choice: tuple[int, ...]
    value: float
    bound: float
    price: float = 0.0
    """What one more GPU is worth in this plan: the relaxation's multiplier. 0: GPUs are left over."""
    stopped: str = ""
    """Why the bound does not meet the value; empty when it does."""

    @property
    def gap(self) -> float:
        return self.bound - self.value


def solve(
    options: Sequence[Sequence[Option]],
    capacity: int,
    labels: Sequence[str] | None = None,
    work: int = WORK,
    memo: Memo | None = None,
) -> Solution:
    """The best choice for every job.

    A job that may get nothing carries an explicit Option(0, ...). Raises InfeasiblePlan naming the jobs whose
    smallest choices do not fit, PlanInputError for a value that is not finite or a negative size. `memo` keeps what
    is made of each list of options for the next call; lists in it must not change.
    """
    if not options:
        return Solution((), 0.0, 0.0)
    answer = pick(options, capacity, labels, work, memo)
    value = fsum(row[i].value for row, i in zip(options, answer.choice, strict=True))
    return Solution(answer.choice, value, value + answer.gap, answer.price, answer.stopped)


class Answer(NamedTuple):
    """A solution of a table: option index per job, proven gap and price in value units, why there is a gap."""

    choice: tuple[int, ...]
    gap: float
    price: float
    stopped: str


def pick(
    options: Sequence[Sequence[Option]],
    capacity: int,
    labels: Sequence[str] | None = None,
    work: int = WORK,
    memo: Memo | None = None,
) -> Answer:
    """`solve` without the sum of the values; with a memo, lists that jobs share are looked at once (shared.py)."""
    if all(len(row) == 1 for row in options) and _fits(options, capacity):
        return Answer((0,) * len(options), 0.0, 0.0, "")  # everyone stays
    found = shared_columns.sharing(options) if memo is not None and capacity >= 0 else None
    if found is None or memo is None:
        return solve_table(build(options, labels, memo), capacity, labels, work)
    choice, end, p, q, scale = shared_columns.solve_shared(options, found, capacity, labels, work, memo)
    return _answer(tuple(choice), end, p, q, scale, work)


def _fits(options: Sequence[Sequence[Option]], capacity: int) -> bool:
    """Whether the jobs' first options, which have to be values and sizes, fit the capacity."""
    sane = all(isfinite(row[0].value) and row[0].gpus >= 0 for row in options)
    return sane and sum(row[0].gpus for row in options) <= capacity


def _answer(choice: tuple[int, ...], end: Finish, p: int, q: int, scale: float, work: int) -> Answer:
    gap = (end.loss - end.proven) // q
    return Answer(choice, gap / scale, p / q / scale, f"stopped after {work} steps" if gap else "")


def solve_table(columns: Table, capacity: int, labels: Sequence[str] | None = None, work: int = WORK) -> Answer:
    """The best choice for every job of columns built before."""
    check_feasible(columns, capacity, labels)
    p, q, base, slack, moves = _open(columns, capacity)
    end = finish(moves, slack, p, q, work)
    chosen = [int(i) for i in base]
    for _, _, job, at in end.moves:
        chosen[job] = at
    return _answer(columns.picked(chosen), end, p, q, columns.scale, work)


def _open(columns: Table, capacity: int) -> tuple[int, int, Any, int, list[Move]]:
    """(p, q, base positions, slack, open moves), accelerated where the columns are."""
    if columns.accelerated:
        from . import dual_numpy

        p, q = dual_numpy.multiplier(columns, capacity)
        if columns.fits_64_bits(p, q):
            base, slack, moves = dual_numpy.open_choices(columns, capacity, p, q)
            if slack >= 0 and (not p or slack <= columns.reach):
                return p, q, base, slack, moves
        columns = columns.plain()  # rounding missed the multiplier: the exact, slower way
    p, q = dual_plain.multiplier(columns, capacity)
    return p, q, *dual_plain.open_choices(columns, capacity, p, q)
