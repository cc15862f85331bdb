"""The multiplier and the open choices in Python's integers, for numbers that an int64 cannot hold.

Integers and one reduced fraction are exact whatever their size. The dual's minimum lies at a slope of some job's upper
hull (Dyer 1984, Zemel 1984): the hulls' edges are walked, steepest first, until the capacity is passed.
Promise: the base never needs more than the capacity. Limit: Python's speed, several times slower than `dual`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cmp_to_key
from itertools import pairwise
from math import gcd

from .exact_core import Move
from .table import Table

Edge = tuple[int, int]
"""(value gained, GPUs) from one corner of a hull to the next."""


def multiplier(table: Table, capacity: int) -> tuple[int, int]:
    """The dual's best multiplier as a reduced fraction p/q, in value units per GPU; (0, 1): nothing is scarce."""
    left, edges = capacity, list[Edge]()
    for _, weight, value in _jobs(table):
        left -= weight[0]
        edges += [(value[b] - value[a], weight[b] - weight[a]) for a, b in pairwise(hull(weight, value))]
    edges.sort(key=lambda edge: -edge[0] / edge[1])  # to rounding, so that the exact sort finds little to do
    edges.sort(key=cmp_to_key(_by_slope))
    for gain, step in edges:
        left -= step
        if left < 0:
            common = gcd(gain, step)
            return gain // common, step // common
    return 0, 1


def open_choices(table: Table, capacity: int, p: int, q: int) -> tuple[list[int], int, list[Move]]:
    """(base positions, slack, moves): every choice that a plan better than the base could take."""
    losses, base, ties, slack = list[list[int]](), list[int](), list[tuple[int, int, int]](), capacity
    for j, (start, weight, value) in enumerate(_jobs(table)):
        net = [v * q - p * w for v, w in zip(value, weight, strict=True)]
        best = max(net)
        at = net.index(best)
        losses.append([best - n for n in net])
        base.append(start + at)
        slack -= weight[at]
        ties += [(j, start + i, weight[i] - weight[at]) for i in range(at + 1, len(net)) if net[i] == best]
    moved = dict[int, int]()
    for j, at, step in ties if p else ():  # a heavier choice at no loss, while it fits
        more = step - moved.get(j, 0)
        if more <= slack:
            slack -= more
            base[j], moved[j] = at, step
    moves = list[Move]()
    for j, (start, weight, _) in enumerate(_jobs(table)):
        own = weight[base[j] - start]
        rows = enumerate(zip(losses[j], weight, strict=True), start)
        moves += [(loss, w - own, j, at) for at, (loss, w) in rows if loss < p * slack and w != own]
    return base, slack, moves


def _by_slope(a: Edge, b: Edge) -> int:
    return b[0] * a[1] - a[0] * b[1]


def hull(weight: list[int], value: list[int]) -> list[int]:
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


def _jobs(table: Table) -> Iterator[tuple[int, list[int], list[int]]]:
    """(first position, weights, values) of each job."""
    for start, end in pairwise(table.starts.tolist()):
        yield start, table.weight[start:end].tolist(), table.value[start:end].tolist()
