"""The multiplier in Python's integers, for numbers that an int64 or a double cannot hold.

Integers and one reduced fraction are exact whatever their size. The dual's minimum lies at a slope of some job's upper
hull (Dyer 1984, Zemel 1984): the hulls' edges are walked, steepest first, until the capacity is passed.
Promise: exact. Limit: Python's speed, several times slower than `dual`.
"""

from __future__ import annotations

from functools import cmp_to_key
from itertools import pairwise
from math import gcd

from .table import Table

Edge = tuple[int, int]
"""(value gained, GPUs) from one corner of a hull to the next."""


def multiplier(table: Table, capacity: int) -> tuple[int, int]:
    """The dual's best multiplier as a reduced fraction p/q, in value units per GPU; (0, 1): nothing is scarce."""
    left, edges = capacity, list[Edge]()
    for start, end in pairwise(table.starts.tolist()):
        weight, value = table.weight[start:end].tolist(), table.value[start:end].tolist()
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
