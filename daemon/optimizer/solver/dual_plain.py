"""The multiplier and the open choices, on the standard library alone. Exact: integers and one reduced fraction.

The dual's minimum lies at a slope of some job's upper hull (Dyer 1984, Zemel 1984): sort all hull edges by slope,
walk down until the capacity is passed.
"""

from __future__ import annotations

from itertools import pairwise
from math import gcd

from .exact_core import Move
from .table import Table


def hull(weight: list[int], value: list[int], start: int, end: int) -> list[int]:
    """Positions start..end-1 on the upper concave hull, from the lightest to the first best; slopes fall strictly."""
    on = [start]
    for i in range(start + 1, end):
        if value[i] <= value[on[-1]]:
            continue
        while len(on) > 1:
            a, b = on[-2], on[-1]
            if (value[b] - value[a]) * (weight[i] - weight[b]) > (value[i] - value[b]) * (weight[b] - weight[a]):
                break
            on.pop()
        on.append(i)
    return on


def multiplier(table: Table, capacity: int) -> tuple[int, int]:
    """The dual's best multiplier as a reduced fraction p/q, in value units per GPU; (0, 1) when nothing is scarce."""
    weight, value, starts = table.weight, table.value, table.starts
    left = capacity
    edges = list[tuple[float, int, int]]()
    for j in range(table.jobs):
        on = hull(weight, value, starts[j], starts[j + 1])
        left -= weight[on[0]]
        for a, b in pairwise(on):
            gain, step = value[b] - value[a], weight[b] - weight[a]
            edges.append((-gain / step, gain, step))
    edges.sort()
    for _, gain, step in edges:
        left -= step
        if left < 0:
            common = gcd(gain, step)
            return gain // common, step // common
    return 0, 1


def open_choices(table: Table, capacity: int, p: int, q: int) -> tuple[list[int], int, list[Move]]:
    """(base positions, slack, moves): every choice that a plan better than the base could take."""
    weight, value, starts = table.weight, table.value, table.starts
    base, bests, ties = list[int](), list[int](), list[tuple[int, int]]()
    slack = capacity
    for j in range(table.jobs):
        s, e = starts[j], starts[j + 1]
        reduced = [value[i] * q - p * weight[i] for i in range(s, e)]
        best = max(reduced)
        at = s + reduced.index(best)
        base.append(at)
        bests.append(best)
        slack -= weight[at]
        for i in range(at + 1, e):
            if reduced[i - s] == best:
                ties.append((j, i))
    for j, i in ties if p else ():  # a heavier choice at no loss, while it fits
        step = weight[i] - weight[base[j]]
        if 0 < step <= slack:
            slack -= step
            base[j] = i
    limit = p * slack
    moves = list[Move]()
    for j in range(table.jobs):
        best, at = bests[j], base[j]
        home = weight[at]
        for i in range(starts[j], starts[j + 1]):
            loss = best - value[i] * q + p * weight[i]
            if loss < limit and weight[i] != home:
                moves.append((loss, weight[i] - home, j, i))
    return base, slack, moves
