"""The multiplier and the open choices in arrays: a handful of passes over the columns, each over fewer of them.

The search for the multiplier brackets it between two supporting lines and evaluates their crossing; a job whose
choice is the same at both ends is done, and choices outside a job's bracket are dropped. It runs in floating point;
what it returns is then evaluated exactly, so rounding can cost speed but never exactness. Methods of arrays, where
there are any: on the few jobs of a small cluster the functions of numpy's own names take twice as long.

For numbers that an int64 or a double cannot hold the same is there in Python's integers, several times slower. The
dual's minimum lies at a slope of some job's upper hull (Dyer 1984, Zemel 1984): the hulls' edges are walked, steepest
first, until the capacity is passed.
"""

from fractions import Fraction
from functools import cmp_to_key
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np

from .exact_core import Move, fill
from .table import Table

ROUNDS = 60
MANY = 2000
Array = Any


def multiplier(table: Table, capacity: int) -> tuple[int, int]:
    """The dual's best multiplier p/q (q at most the widest step between two sizes), or (0, 1): nothing is scarce."""
    w, v = table.weight.astype(np.float64), table.value.astype(np.float64)
    starts = table.starts[:-1]
    heavy = _first(v == np.maximum.reduceat(v, starts).repeat(_lengths(table.starts)), table.starts)
    light = starts
    w_lo, v_lo = int(table.weight[heavy].sum()), int(table.value[heavy].sum())
    if w_lo <= capacity:
        return 0, 1
    w_hi, v_hi = int(table.weight[light].sum()), int(table.value[light].sum())
    lo, hi, ends = heavy, light, table.starts
    w_fix = v_fix = 0.0
    for _ in range(ROUNDS):
        lam = (v_lo - v_hi) / (w_lo - w_hi)
        w, v, ends, lo, hi, w_fix, v_fix = _shrink(w, v, ends, lo, hi, w_fix, v_fix)
        if not len(lo):
            break
        reduced = v - lam * w
        at_best = reduced >= np.maximum.reduceat(reduced, ends[:-1]).repeat(_lengths(ends))
        first, last = _first(at_best, ends), _last(at_best, ends)
        w_first, w_last = w[first].sum() + w_fix, w[last].sum() + w_fix
        if w_first <= capacity <= w_last:
            break
        if w_first > capacity:
            if w_first >= w_lo:
                break
            lo, w_lo, v_lo = first, w_first, v[first].sum() + v_fix
        else:
            if w_last <= w_hi:
                break
            hi, w_hi, v_hi = last, w_last, v[last].sum() + v_fix
    exact = Fraction(int(v_lo - v_hi), int(w_lo - w_hi))
    if exact.denominator > table.reach:  # a slope of one job's hull has no larger one
        exact = exact.limit_denominator(table.reach)
    return exact.numerator, exact.denominator


def _first(mask: Array, ends: Array) -> Array:
    """Of each job, the first position where mask holds (it holds at least once)."""
    hits = mask.nonzero()[0]
    return hits[hits.searchsorted(ends[:-1])]


def _last(mask: Array, ends: Array) -> Array:
    hits = mask.nonzero()[0]
    return hits[hits.searchsorted(ends[1:]) - 1]


def _lengths(ends: Array) -> Array:
    """How many positions each job has."""
    return ends[1:] - ends[:-1]


def _shrink(w: Array, v: Array, ends: Array, lo: Array, hi: Array, w_fix: float, v_fix: float) -> tuple[Any, ...]:
    """Drop the jobs whose choice is settled and the choices outside the others' brackets."""
    open_ = hi < lo
    done = hi[~open_]
    w_fix += w[done].sum()
    v_fix += v[done].sum()
    lo, hi = lo[open_], hi[open_]
    lengths = lo - hi + 1
    new_ends = np.zeros(len(lo) + 1, dtype=np.int64)
    lengths.cumsum(out=new_ends[1:])
    pick = np.arange(int(new_ends[-1])) + (hi - new_ends[:-1]).repeat(lengths)
    return w[pick], v[pick], new_ends, new_ends[1:] - 1, new_ends[:-1].copy(), w_fix, v_fix


def open_choices(table: Table, capacity: int, p: int, q: int) -> tuple[Array, int, list[Move]]:
    """(base positions, slack, moves): every choice that a plan better than the base could take."""
    weight, ends = table.weight, table.starts
    reduced = table.value * q - p * weight
    bests = np.maximum.reduceat(reduced, ends[:-1])
    loss = bests.repeat(_lengths(ends))
    loss -= reduced
    zero = (loss == 0).nonzero()[0]
    first = zero.searchsorted(ends[:-1])
    base = zero[first]
    slack = capacity - int(weight[base].sum())
    if p and len(zero) > len(base) and slack > 0:
        slack = _take_ties(zero, first, base, weight, ends, slack)
    limit = p * max(slack, 0)
    near = (loss < limit).nonzero()[0]
    if len(near) > MANY:
        near = near[loss[near] <= _gap_after_fill(near, loss, weight, base, ends, slack, p)]
    job = ends.searchsorted(near, side="right") - 1
    change = weight[near] - weight[base[job]]
    real = change != 0
    near, job, change = near[real], job[real], change[real]
    moves = list(zip(loss[near].tolist(), change.tolist(), job.tolist(), near.tolist(), strict=True))
    return base, slack, moves


def _gap_after_fill(near: Array, loss: Array, weight: Array, base: Array, ends: Array, slack: int, p: int) -> int:
    """The gap that is left once cheap upgrades took the slack: choices that lose more need not leave the arrays."""
    some = min(len(near), 10 * MANY)
    cheap = np.sort(near[np.argpartition(loss[near], some - 1)[:some]])
    job = np.searchsorted(ends, cheap, side="right") - 1
    change = weight[cheap] - weight[base[job]]
    up = np.flatnonzero((change > 0) & (change <= slack))
    up = up[np.argsort(loss[cheap[up]], kind="stable")][:MANY]
    cheap, change, job = cheap[up], change[up], job[up]
    moves = zip(loss[cheap].tolist(), change.tolist(), job.tolist(), cheap.tolist(), strict=True)
    return fill(list(moves), slack, p)[1]


def _take_ties(zero: Array, first: Array, base: Array, weight: Array, ends: Array, slack: int) -> int:
    """Move jobs to their heaviest choice without loss while it fits (in place); returns what slack is left."""
    last = np.searchsorted(zero, ends[1:]) - 1
    tied = np.flatnonzero(last > first)
    steps = weight[zero[last[tied]]] - weight[base[tied]]
    fits = np.cumsum(steps) <= slack
    whole = int(fits.argmin()) if not fits.all() else len(fits)
    base[tied[:whole]] = zero[last[tied[:whole]]]
    slack -= int(steps[:whole].sum())
    for j in tied[whole:].tolist():
        if slack <= 0:
            break
        for i in zero[first[j] + 1 : last[j] + 1].tolist():
            step = int(weight[i] - weight[base[j]])
            if 0 < step <= slack:
                slack -= step
                base[j] = i
    return slack


Edge = tuple[int, int]
"""(value gained, GPUs) from one corner of a hull to the next."""


def exact_multiplier(table: Table, capacity: int) -> tuple[int, int]:
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
