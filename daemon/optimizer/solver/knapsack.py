"""The plan's heart: one choice per job, sum of GPUs <= capacity, sum of values largest. Exact, with its proof.

A multiple-choice knapsack with small integer weights. Method: the linear relaxation's multiplier, each choice's loss
against it (dual, integer_dual), and an exact dynamic program over the few choices the remaining gap leaves open
(exact_core). Promise: the bound is proven, and meets the value unless `work` ran out. Limit: values are rounded to
about 2**-35 of the largest.

    >>> solve([[Choice(1, 1.0), Choice(2, 1.9)], [Choice(0, 0.0), Choice(2, 1.2)]], capacity=3).choice
    (0, 1)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from math import fsum

from . import dual
from .exact_core import Finish, finish
from .integer_dual import Column, Sharers, by_list, solve_columns
from .table import Choice, Memo, Table, build, check_feasible, read, scale_for

WORK = 50_000_000
"""Steps of the exact finish before an answer is given with the gap it has then."""
ARRAYS_FROM = 2000
"""Below so many choices in distinct lists, integers are faster than the calls into numpy."""
FEWER = 2
"""Jobs that share lists this many times fewer than they are solved list by list."""


@dataclass(frozen=True, slots=True)
class Solution:
    """An index into each job's choices, what they are worth together, and what no plan can exceed."""

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
    options: Sequence[Sequence[Choice]],
    capacity: int,
    labels: Sequence[str] | None = None,
    work: int = WORK,
    memo: Memo | None = None,
) -> Solution:
    """The best choice for every job.

    A job that may get nothing carries an explicit Choice(0, ...). Raises InfeasiblePlan naming the jobs whose
    smallest choices do not fit, PlanInputError for a value that is not finite or a negative size. `memo` keeps what
    is made of each list of choices for the next call; lists in it must not change.
    """
    if not options:
        return Solution((), 0.0, 0.0)
    memo = {} if memo is None else memo
    if max(map(len, options)) == 1:  # everyone stays
        least = [read(row, labels, j, memo).gpus[0] for j, row in enumerate(options)]
        check_feasible(least, capacity, labels)
        value = fsum([row[0].value for row in options])
        return Solution((0,) * len(options), value, value)
    sharers = by_list(options)
    distinct = sum(len(options[jobs[0]]) for jobs in sharers.values())
    if distinct < ARRAYS_FROM or FEWER * len(sharers) <= len(options):
        found = _solve_lists(options, list(sharers.values()), capacity, labels, work, memo)
    else:
        found = solve_table(build(options, labels, memo), capacity, labels, work)
    value = fsum([row[i].value for row, i in zip(options, found.choice, strict=True)])
    return replace(found, value=value, bound=value + found.gap)


def solve_table(table: Table, capacity: int, labels: Sequence[str] | None = None, work: int = WORK) -> Solution:
    """The best choice for every job of a table, in arrays. Its values are the rounded ones."""
    check_feasible(table.weight[table.starts[:-1]].tolist(), capacity, labels)
    p, q = dual.multiplier(table, capacity)
    if not table.fits_64_bits(p, q):
        return solve_table_exactly(table, capacity, work)
    base, slack, moves = dual.open_choices(table, capacity, p, q)
    if slack < 0 or (p and slack > table.reach):  # rounding missed the multiplier
        return solve_table_exactly(table, capacity, work)
    end = finish(moves, slack, p, q, work)
    chosen = base.tolist()
    for _, _, job, at in end.moves:
        chosen[job] = at
    return _of_table(table, chosen, end, p, q, work)


def solve_table_exactly(table: Table, capacity: int, work: int = WORK) -> Solution:
    """The same in Python's integers, whatever the size of the numbers; the smallest sizes have to fit."""
    starts, weight, value = table.starts.tolist(), table.weight.tolist(), table.value.tolist()
    groups = [Sharers(Column(weight[s:e], value[s:e]), [j]) for j, (s, e) in enumerate(pairwise(starts))]
    at, end, p, q = solve_columns(groups, table.jobs, capacity, work)
    return _of_table(table, [s + i for s, i in zip(starts, at, strict=False)], end, p, q, work)


def _of_table(table: Table, chosen: list[int], end: Finish, p: int, q: int, work: int) -> Solution:
    value = sum(table.value[chosen].tolist()) / table.scale
    return _solution(table.origin[chosen].tolist(), value, end, p, q, table.scale, work)


def _solve_lists(
    options: Sequence[Sequence[Choice]],
    sharers: list[list[int]],
    capacity: int,
    labels: Sequence[str] | None,
    work: int,
    memo: Memo,
) -> Solution:
    """The best choice for every job, each distinct list looked at once, in Python's integers."""
    lists = [read(options[jobs[0]], labels, jobs[0], memo) for jobs in sharers]
    scale = scale_for(max(known.largest for known in lists), len(options))
    groups, least = list[Sharers](), [0] * len(options)
    for known, jobs in zip(lists, sharers, strict=True):
        key = id(known.row), scale
        column = memo.get(key)
        if column is None:
            column = memo[key] = Column(known.gpus, [round(value * scale) for value in known.value])
        groups.append(Sharers(column, jobs))
        for job in jobs:
            least[job] = known.gpus[0]
    check_feasible(least, capacity, labels)
    chosen, end, p, q = solve_columns(groups, len(options), capacity, work)
    for known, jobs in zip(lists, sharers, strict=True):
        if known.origin is not None:
            for job in jobs:
                chosen[job] = known.origin[chosen[job]]
    return _solution(chosen, 0.0, end, p, q, scale, work)


def _solution(choice: list[int], value: float, end: Finish, p: int, q: int, scale: float, work: int) -> Solution:
    gap = (end.loss - end.proven) // q / scale
    return Solution(tuple(choice), value, value + gap, p / q / scale, f"stopped after {work} steps" if gap else "")
