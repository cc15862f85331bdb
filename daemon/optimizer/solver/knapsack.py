"""The plan's heart: one choice per job, sum of GPUs <= capacity, sum of values largest. Exact, with its proof.

A multiple-choice knapsack with small integer weights. Method: the linear relaxation's multiplier, each choice's loss
against it (dual, in Python's integers where an int64 would overflow), and an exact dynamic program over the few choices
that the remaining gap leaves open (exact_core). Promise: the bound is proven, and meets the value unless `work` ran
out.
Limit: values are rounded to about 2**-35 of the largest; the bound counts what that can hide.

    >>> solve([[Choice(1, 1.0), Choice(2, 1.9)], [Choice(0, 0.0), Choice(2, 1.2)]], capacity=3).choice
    (0, 1)
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import fsum, ulp

from . import dual
from .exact_core import Move, finish
from .table import Choice, Columns, Table, build, check_capacity, check_feasible

WORK = 50_000_000
"""Steps of the exact finish before an answer is given with the gap it has then."""


@dataclass(frozen=True, slots=True)
class Solution:
    """An index into each job's choices, and what they are worth together."""

    choice: tuple[int, ...]
    value: float
    gap: float = 0.0
    """How much more a plan may be worth by the rounded values; 0: none is worth more."""
    price: float = 0.0
    """What one more GPU is worth in this plan: the relaxation's multiplier. 0: GPUs are left over."""
    rounding: float = 0.0
    """How much more a plan may be worth by what the rounding of values hides."""

    @property
    def bound(self) -> float:
        """What no plan can exceed."""
        return self.value + (self.gap + self.rounding)


def hidden_by_rounding(jobs: int, residual: float, value: float) -> float:
    """What the rounding of each value by at most `residual` can hide of the difference of a plan to one of `value`."""
    return 2 * (jobs * residual + ulp(value)) if residual else 0.0


def solve(
    options: Sequence[Sequence[Choice]],
    capacity: int,
    labels: Sequence[str] | None = None,
    work: int = WORK,
) -> Solution:
    """The best choice for every job.

    A job that may get nothing carries an explicit Choice(0, ...). Raises InfeasiblePlan naming the jobs whose
    smallest choices do not fit, PlanInputError for what is no size, no value or no capacity.
    """
    check_capacity(capacity)
    if not options:
        return Solution((), 0.0)
    table = build(options, labels)
    found = solve_table(table, capacity, labels, work)
    value = fsum([value_at(row, i) for row, i in zip(options, found.choice, strict=True)])
    return replace(found, value=value, rounding=hidden_by_rounding(table.jobs, table.residual, value))


def value_at(row: Sequence[Choice], at: int) -> float:
    """The value of one choice of a list."""
    return row.value_at(at) if isinstance(row, Columns) else row[at].value


def solve_table(table: Table, capacity: int, labels: Sequence[str] | None = None, work: int = WORK) -> Solution:
    """The best choice for every job of a table. Its values are the rounded ones."""
    check_feasible(table.weight[table.starts[:-1]].tolist(), capacity, labels)
    p, q = dual.multiplier(table, capacity)
    if table.fits_64_bits(p, q):
        base, slack, moves = dual.open_choices(table, capacity, p, q)
        if slack >= 0 and (not p or slack <= table.reach):  # else rounding missed the multiplier
            return _finished(table, base.tolist(), slack, moves, p, q, work)
    return solve_table_exactly(table, capacity, work)


def solve_table_exactly(table: Table, capacity: int, work: int = WORK) -> Solution:
    """The same in Python's integers, whatever the size of the numbers; the smallest sizes have to fit."""
    p, q = dual.exact_multiplier(table, capacity)
    base, slack, moves = dual.open_choices(table.of_python_integers(), capacity, p, q)
    return _finished(table, base.tolist(), slack, moves, p, q, work)


def _finished(table: Table, chosen: list[int], slack: int, moves: list[Move], p: int, q: int, work: int) -> Solution:
    """The solution from the base positions and the moves open to a better plan, at the multiplier p/q."""
    end = finish(moves, slack, p, q, work)
    for _, _, job, at in end.moves:
        chosen[job] = at
    value = sum(table.value[chosen].tolist()) / table.scale
    gap = (end.loss - end.proven) // q / table.scale
    return Solution(tuple(table.origin[chosen].tolist()), value, gap, p / q / table.scale)
