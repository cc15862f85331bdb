"""Many jobs, few distinct lists of options: the same exact solution, each distinct list looked at once.

Jobs of the same program, bounds and present size share their list. Multiplier, losses and open choices are made per
list (and kept while the price of a GPU stays what it was); jobs appear only where the core needs them one by one.
Promise: the plan that the general path finds, ties included. Limit: it pays when lists are shared; `sharing` says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import gcd
from operator import itemgetter

from .dual_plain import hull
from .exact_core import Finish, Move, finish
from .table import Choice, Memo, build, check_feasible, common_scale, scaled

Rows = Sequence[Sequence[Choice]]
FEWER = 2
"""Lists must be this many times fewer than jobs for the shared path."""


@dataclass(slots=True)
class Priced:
    """A list at one price p/q: its lightest best position, its heavier ties, every other (loss, weight, position)."""

    base: int
    ties: list[int]
    losses: list[tuple[int, int, int]]


@dataclass(slots=True)
class Column:
    """One list of options: weights rising strictly, scaled values, indices in the list, and its upper hull."""

    weight: list[int]
    value: list[int]
    origin: list[int]
    edges: list[tuple[float, int, int]] = field(default_factory=list)
    """(minus the slope, value gained, GPUs) from one corner of the hull to the next."""
    price: tuple[int, int] = (-1, 0)
    priced: Priced | None = None

    def at(self, p: int, q: int) -> Priced:
        """The list at a price; that of the last call is kept."""
        if self.priced is None or self.price != (p, q):
            reduced = [v * q - p * w for v, w in zip(self.value, self.weight, strict=True)]
            best = max(reduced)
            base = reduced.index(best)
            losses = [(best - r, w, i) for i, (r, w) in enumerate(zip(reduced, self.weight, strict=True))]
            ties = [i for loss, _, i in losses if not loss and i != base]
            self.price, self.priced = (p, q), Priced(base, ties, losses)
        return self.priced


@dataclass(slots=True)
class Group:
    """The jobs (ascending) that share a column."""

    column: Column
    jobs: list[int]


def sharing(options: Rows) -> dict[int, list[int]] | None:
    """Jobs by the identity of their list of options; None where too few share one."""
    found = dict[int, list[int]]()
    for job, key in enumerate(map(id, options)):
        if key in found:
            found[key].append(job)
        else:
            found[key] = [job]
    return found if FEWER * len(found) <= len(options) else None


def solve_shared(
    options: Rows,
    found: dict[int, list[int]],
    capacity: int,
    labels: Sequence[str] | None,
    work: int,
    memo: Memo,
) -> tuple[list[int], Finish, int, int, float]:
    """(option index per job, the finish, p, q, scale of the values); the errors of `solve`."""
    scale = common_scale(((jobs[0], options[jobs[0]]) for jobs in found.values()), len(options), labels, memo)
    groups = [Group(_column(options[jobs[0]], scale, memo), jobs) for jobs in found.values()]
    left = capacity - sum(group.column.weight[0] * len(group.jobs) for group in groups)
    if left < 0:
        check_feasible(build(options, labels, memo), capacity, labels)
    p, q = _multiplier(groups, left)
    base, slack, homes = _base(groups, len(options), capacity, p, q)
    moves = _group_moves(homes, p * slack, p, q)
    end = _finish(moves, slack, p, q, work)
    for _, _, job, at in end.moves:
        base[job] = at
    for group in groups:
        origin = group.column.origin
        for job in group.jobs:
            base[job] = origin[base[job]]
    return base, end, p, q, scale


def _column(row: Sequence[Choice], scale: float, memo: Memo) -> Column:
    key = id(row), scale
    known = memo.get(key)
    if known is None:
        weight, value, origin = scaled(row, scale)
        column = memo[key] = Column(weight, value, origin)
        for a, b in pairwise(hull(weight, value, 0, len(weight))):
            gain, step = value[b] - value[a], weight[b] - weight[a]
            column.edges.append((-gain / step, gain, step))
        return column
    assert isinstance(known, Column)
    return known


def _multiplier(groups: list[Group], left: int) -> tuple[int, int]:
    """The price of a GPU as a reduced fraction: the slope at which the hulls, steepest first, pass what is left."""
    edges = [(*edge, len(group.jobs)) for group in groups for edge in group.column.edges]
    edges.sort()
    for _, gain, step, jobs in edges:
        left -= step * jobs
        if left < 0:
            common = gcd(gain, step)
            return gain // common, step // common
    return 0, 1


Home = tuple[Column, int, list[int]]
"""(column, position its jobs start from, jobs ascending)"""


def _base(groups: list[Group], jobs: int, capacity: int, p: int, q: int) -> tuple[list[int], int, list[Home]]:
    """(position of each job, slack, jobs by column and position): lightest best choices, then ties while they fit."""
    base, slack = [0] * jobs, capacity
    tied, homes = list[tuple[int, Column, list[int]]](), list[Home]()
    for group in groups:
        priced = group.column.at(p, q)
        slack -= group.column.weight[priced.base] * len(group.jobs)
        if priced.ties and p:
            tied += [(job, group.column, priced.ties) for job in group.jobs]
        else:
            homes.append((group.column, priced.base, group.jobs))
        for job in group.jobs:
            base[job] = priced.base
    tied.sort(key=itemgetter(0))
    settled = dict[tuple[int, int], Home]()
    for job, column, ties in tied:
        weight, at = column.weight, base[job]
        for i in reversed(ties) if slack > 0 else ():
            if weight[i] - weight[at] <= slack:
                slack -= weight[i] - weight[at]
                base[job] = at = i
                break
        settled.setdefault((id(column), at), (column, at, []))[2].append(job)
    return base, slack, homes + list(settled.values())


GroupMove = tuple[int, int, int, list[int]]
"""(loss, change of weight, position, jobs ascending)"""


def _group_moves(homes: list[Home], limit: int, p: int, q: int) -> list[GroupMove]:
    """Every choice that a plan better than the base could take, for all jobs of a home at once."""
    moves = list[GroupMove]()
    for column, at, jobs in homes:
        own = column.weight[at]
        moves += [(loss, w - own, i, jobs) for loss, w, i in column.at(p, q).losses if loss < limit and w != own]
    moves.sort(key=itemgetter(0, 1))
    return moves


def _finish(moves: list[GroupMove], slack: int, price: int, unit: int, work: int) -> Finish:
    """`core.finish`, with jobs told apart only within the gap that a first incumbent leaves."""
    taken, loss = _fill(moves, slack, price)
    if loss < unit:
        return Finish(taken, loss, loss, work)
    single = [(m[0], m[1], job, m[2]) for m in moves if m[0] <= loss - unit for job in m[3]]
    return finish(single, slack, price, unit, work, (taken, loss))


def _fill(moves: list[GroupMove], slack: int, price: int) -> tuple[list[Move], int]:
    """`core.fill`: cheap upgrades that fit the slack, in the same order."""
    taken, total, used = list[Move](), price * slack, set[int]()
    for (loss, change), same in groupby(moves, itemgetter(0, 1)):
        if not 0 < change <= slack or loss >= price * change:
            continue
        candidates = [(job, move[2]) for move in same for job in move[3]]
        candidates.sort()
        for job, at in candidates:
            if job in used:
                continue
            taken.append((loss, change, job, at))
            used.add(job)
            slack -= change
            total += loss - price * change
            if change > slack:
                break
        if not slack:
            break
    return taken, total
