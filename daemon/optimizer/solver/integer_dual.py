"""The multiplier and the open choices in Python's integers, each distinct list of choices looked at once.

For jobs that share few lists (those of one program, bounds and present size do), for problems too small to be worth
arrays, and for numbers that an int64 cannot hold: integers and one reduced fraction are exact whatever their size.
What is made of a list is kept while the price of a GPU stays what it was; jobs appear only where the core needs them
one by one. The dual's minimum lies at a slope of some list's upper hull (Dyer 1984, Zemel 1984).
Promise: the plan that `dual` leads to. Limit: Python's speed, for every choice of every distinct list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from math import gcd
from operator import itemgetter

from .exact_core import Finish, Move, finish


@dataclass(slots=True)
class Reduced:
    """A list at one price p/q: its lightest best position, its heavier ties, every other (loss, weight, position)."""

    base: int
    ties: list[int]
    losses: list[tuple[int, int, int]]


@dataclass(slots=True)
class Column:
    """One list of choices: weights rising strictly, scaled values, and its upper hull."""

    weight: list[int]
    value: list[int]
    edges: list[tuple[float, int, int]] = field(init=False)
    """(minus the slope, value gained, GPUs) from one corner of the hull to the next."""
    price: tuple[int, int] = (-1, 0)
    reduced: Reduced | None = None

    def __post_init__(self) -> None:
        self.edges = []
        for a, b in pairwise(hull(self.weight, self.value)):
            gain, step = self.value[b] - self.value[a], self.weight[b] - self.weight[a]
            self.edges.append((-gain / step, gain, step))

    def at(self, p: int, q: int) -> Reduced:
        """The list at a price; that of the last call is kept."""
        if self.reduced is None or self.price != (p, q):
            net = [v * q - p * w for v, w in zip(self.value, self.weight, strict=True)]
            best = max(net)
            base = net.index(best)
            losses = [(best - r, w, i) for i, (r, w) in enumerate(zip(net, self.weight, strict=True))]
            ties = [i for loss, _, i in losses if not loss and i != base]
            self.price, self.reduced = (p, q), Reduced(base, ties, losses)
        return self.reduced


def hull(weight: Sequence[int], value: Sequence[int]) -> list[int]:
    """Positions on the upper concave hull, from the lightest to the first best; slopes fall strictly."""
    on = [0]
    for i in range(1, len(weight)):
        if value[i] <= value[on[-1]]:
            continue
        while len(on) > 1:
            a, b = on[-2], on[-1]
            if (value[b] - value[a]) * (weight[i] - weight[b]) > (value[i] - value[b]) * (weight[b] - weight[a]):
                break
            on.pop()
        on.append(i)
    return on


@dataclass(slots=True)
class Sharers:
    """The jobs (ascending) that share a column."""

    column: Column
    jobs: list[int]


def by_list(options: Sequence[object]) -> dict[int, list[int]]:
    """Jobs by the identity of their list of choices."""
    found = dict[int, list[int]]()
    for job, key in enumerate(map(id, options)):
        if key in found:
            found[key].append(job)
        else:
            found[key] = [job]
    return found


def solve_columns(groups: list[Sharers], jobs: int, capacity: int, work: int) -> tuple[list[int], Finish, int, int]:
    """(position of each job in its column, the finish, p, q); the smallest sizes have to fit."""
    left = capacity - sum(group.column.weight[0] * len(group.jobs) for group in groups)
    p, q = _multiplier(groups, left)
    base, slack, homes = _base(groups, jobs, capacity, p, q)
    end = _finish(_shared_moves(homes, p * slack, p, q), slack, p, q, work)
    for _, _, job, at in end.moves:
        base[job] = at
    return base, end, p, q


def _multiplier(groups: list[Sharers], left: int) -> tuple[int, int]:
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


def _base(groups: list[Sharers], jobs: int, capacity: int, p: int, q: int) -> tuple[list[int], int, list[Home]]:
    """(position of each job, slack, jobs by column and position): lightest best choices, then ties while they fit."""
    base, slack = [0] * jobs, capacity
    tied, homes = list[tuple[int, Column, list[int]]](), list[Home]()
    for group in groups:
        reduced = group.column.at(p, q)
        slack -= group.column.weight[reduced.base] * len(group.jobs)
        if reduced.ties and p:
            tied += [(job, group.column, reduced.ties) for job in group.jobs]
        else:
            homes.append((group.column, reduced.base, group.jobs))
        for job in group.jobs:
            base[job] = reduced.base
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


SharedMove = tuple[int, int, int, list[int]]
"""(loss, change of weight, position, jobs ascending)"""


def _shared_moves(homes: list[Home], limit: int, p: int, q: int) -> list[SharedMove]:
    """Every choice that a plan better than the base could take, for all jobs of a home at once."""
    moves = list[SharedMove]()
    for column, at, jobs in homes:
        own = column.weight[at]
        moves += [(loss, w - own, i, jobs) for loss, w, i in column.at(p, q).losses if loss < limit and w != own]
    moves.sort(key=itemgetter(0, 1))
    return moves


def _finish(moves: list[SharedMove], slack: int, price: int, unit: int, work: int) -> Finish:
    """`exact_core.finish`, with jobs told apart only within the gap that a first incumbent leaves."""
    taken, loss = _fill(moves, slack, price)
    if loss < unit:
        return Finish(taken, loss, loss, work)
    single = [(m[0], m[1], job, m[2]) for m in moves if m[0] <= loss - unit for job in m[3]]
    return finish(single, slack, price, unit, work, (taken, loss))


def _fill(moves: list[SharedMove], slack: int, price: int) -> tuple[list[Move], int]:
    """`exact_core.fill`: cheap upgrades that fit the slack, in the same order."""
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
