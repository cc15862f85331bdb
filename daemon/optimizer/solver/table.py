"""The jobs' lists of choices, read and checked once, and as flat integer columns in arrays.

Promise: within a job, weights (GPUs) rise strictly and values are integers, so "equal" is exact and a result depends
on nothing but its input. Limit: values are rounded to `1/scale`, about 2**-40 of the largest (2**-35 at 10,000 jobs);
differences below that are ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from operator import lt
from typing import Any

import numpy as np

from slurm_elastic.protocol.records import record

from ..errors import PlanInputError
from .inputs import acceptable, check_choice, name

Array = Any


@record(frozen=True, slots=True)
class Choice:
    """One feasible choice of one job."""

    gpus: int
    """0 or more."""
    value: float
    """Its term in the objective, finite; larger is better."""
    batch: int = 0
    """Global batch; the solver carries it along and never reads it."""
    speedup: float = 0.0
    """Progress relative to the job's reference, what a move costs left out; never read by the solver."""


@dataclass(slots=True)
class Read:
    """What is kept of one list of choices: GPUs strictly rising, of each size the best value, the first of equals."""

    row: Sequence[Choice]
    """The list itself: as long as it is kept, its identity stays its own."""
    gpus: list[int]
    value: list[float]
    origin: list[int] | None
    """Positions in the list; None: all of them."""
    largest: float
    """The largest value by amount."""
    columns: Array = field(default=None, repr=False)
    """GPUs over values, once an array of them was needed."""


Memo = dict[int, Read]
"""What was read of lists of choices before, by their identity: for callers that keep their lists unchanged."""


def read(row: Sequence[Choice], labels: Sequence[str] | None, j: int, memo: Memo) -> Read:
    """The list of choices of job j. Raises PlanInputError."""
    known = memo.get(id(row))
    if known is not None:
        return known
    if not row:
        raise PlanInputError(f"{name(labels, j)} has no choice at all: give every job at least one option")
    gpus, value, origin = [choice.gpus for choice in row], [choice.value for choice in row], None
    if not all(map(lt, gpus, gpus[1:])):
        _check(row, name(labels, j))
        best = dict[int, int]()
        for i in sorted(range(len(row)), key=lambda i: (gpus[i], -value[i], i)):
            best.setdefault(gpus[i], i)
        gpus, origin = list(best), list(best.values())
        value = [value[i] for i in origin]
    known = memo[id(row)] = Read(row, gpus, value, origin, max(max(value), -min(value)))
    return known


def _check(row: Sequence[Choice], job: str) -> None:
    for choice in row:
        check_choice(job, (choice.gpus,), choice.value)


@dataclass(frozen=True)
class Table:
    """Choices of J jobs: job j owns positions starts[j] .. starts[j+1]-1 of the columns, arrays of int64.

    `origin` maps a position to the index in the caller's list of that job.
    """

    starts: Array
    weight: Array
    value: Array
    scale: float
    origin: Array
    residual: float = 0.0
    """Most that one value was rounded by, in its own unit, not `1/scale`."""

    @property
    def jobs(self) -> int:
        return len(self.starts) - 1

    @property
    def reach(self) -> int:
        """The widest span of weights within one job."""
        return int((self.weight[self.starts[1:] - 1] - self.weight[self.starts[:-1]]).max())

    def fits_64_bits(self, p: int, q: int) -> bool:
        """Whether every value * q - p * weight stays inside an int64."""
        largest: int = int(abs(self.value).max()) * q + abs(p) * int(self.weight.max())
        return largest < 1 << 62

    def of_python_integers(self) -> Table:
        """The same with columns of Python's integers: slow, and no number is too large."""
        return replace(self, weight=self.weight.astype(object), value=self.value.astype(object))


def build(options: Sequence[Sequence[Choice]], labels: Sequence[str] | None = None, memo: Memo | None = None) -> Table:
    """The table of these lists. Raises PlanInputError."""
    memo = {} if memo is None else memo
    lists = [read(row, labels, j, memo) for j, row in enumerate(options)]
    lengths = np.array([len(known.gpus) for known in lists])
    starts = np.zeros(len(lists) + 1, dtype=np.int64)
    lengths.cumsum(out=starts[1:])
    if not _make_columns([known for known in lists if known.columns is None]):
        for j, known in enumerate(lists):
            _check(known.row, name(labels, j))
    scale = scale_for(max(known.largest for known in lists), len(lists))
    weight, value = np.concatenate([known.columns for known in lists], axis=1)
    value *= scale
    rounded = np.rint(value)
    value -= rounded
    residual = max(float(value.max()), -float(value.min())) / scale
    origin = np.arange(starts[-1]) - starts[:-1].repeat(lengths)
    for at, known in enumerate(lists):
        if known.origin is not None:
            origin[starts[at] : starts[at + 1]] = known.origin
    return Table(starts, weight.astype(np.int64), rounded.astype(np.int64), scale, origin, residual)


def _make_columns(lists: Sequence[Read]) -> bool:
    """The arrays of these lists, all at once; False, and none is made, where no plan can be made from them."""
    ends = list(accumulate(len(known.gpus) for known in lists))
    both = np.empty((2, ends[-1] if ends else 0))
    both[0] = np.fromiter(chain.from_iterable(known.gpus for known in lists), np.float64, both.shape[1])
    both[1] = np.fromiter(chain.from_iterable(known.value for known in lists), np.float64, both.shape[1])
    if not acceptable(*both):
        return False
    for known, start, end in zip(lists, [0, *ends], ends, strict=False):
        known.columns = both[:, start:end].copy()  # the lists are forgotten at different times
    return True


def scale_for(largest: float, jobs: int) -> float:
    """A power of two that keeps sums over `jobs` values, times a multiplier's denominator, inside 63 bits."""
    bits = min(40, 48 - max(1, jobs).bit_length())
    return math.ldexp(1.0, min(1000, bits - math.frexp(largest)[1])) if largest > 0 else 1.0
