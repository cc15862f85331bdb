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

from ..errors import InfeasiblePlan, PlanInputError

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
    if not math.isfinite(sum(value)) or min(gpus) < 0:
        _check_each(row, name(labels, j))
    if not all(map(lt, gpus, gpus[1:])):
        best = dict[int, int]()
        for i in sorted(range(len(row)), key=lambda i: (gpus[i], -value[i], i)):
            best.setdefault(gpus[i], i)
        gpus, origin = list(best), list(best.values())
        value = [value[i] for i in origin]
    known = memo[id(row)] = Read(row, gpus, value, origin, max(max(value), -min(value)))
    return known


def _check_each(row: Sequence[Choice], job: str) -> None:
    for choice in row:
        if not math.isfinite(choice.value):
            raise PlanInputError(f"{job}: value {choice.value} at {choice.gpus} GPUs is not finite")
        if choice.gpus < 0:
            raise PlanInputError(f"{job}: {choice.gpus} GPUs is negative; sizes are 0 or more")


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
    scale = scale_for(max(known.largest for known in lists), len(lists))
    lengths = np.array([len(known.gpus) for known in lists])
    starts = np.zeros(len(lists) + 1, dtype=np.int64)
    lengths.cumsum(out=starts[1:])
    _make_columns([known for known in lists if known.columns is None])
    weight, value = np.concatenate([known.columns for known in lists], axis=1)
    origin = np.arange(starts[-1]) - starts[:-1].repeat(lengths)
    for at, known in enumerate(lists):
        if known.origin is not None:
            origin[starts[at] : starts[at + 1]] = known.origin
    return Table(starts, weight.astype(np.int64), np.rint(value * scale).astype(np.int64), scale, origin)


def _make_columns(lists: Sequence[Read]) -> None:
    """The arrays of these lists, all at once."""
    ends = list(accumulate(len(known.gpus) for known in lists))
    both = np.empty((2, ends[-1] if ends else 0))
    both[0] = np.fromiter(chain.from_iterable(known.gpus for known in lists), np.float64, both.shape[1])
    both[1] = np.fromiter(chain.from_iterable(known.value for known in lists), np.float64, both.shape[1])
    for known, start, end in zip(lists, [0, *ends], ends, strict=False):
        known.columns = both[:, start:end].copy()  # the lists are forgotten at different times


def scale_for(largest: float, jobs: int) -> float:
    """A power of two that keeps sums over `jobs` values, times a multiplier's denominator, inside 63 bits."""
    bits = min(40, 48 - max(1, jobs).bit_length())
    return math.ldexp(1.0, bits - math.frexp(largest)[1]) if largest > 0 else 1.0


def name(labels: Sequence[str] | None, j: int) -> str:
    """How a message calls job j."""
    return f"job {labels[j]}" if labels is not None else f"job #{j}"


def check_feasible(least: Sequence[int], capacity: int, labels: Sequence[str] | None = None) -> None:
    """Raise InfeasiblePlan naming the jobs, in arrival order, whose smallest sizes do not fit after those before."""
    if capacity < 0:
        raise PlanInputError(f"capacity {capacity} is negative; it must be 0 or more")
    total = sum(least)
    if total <= capacity:
        return
    left, over = capacity, list[int]()
    for j, need in enumerate(least):
        if need > left:
            over.append(j)
        else:
            left -= need
    shown = ", ".join(f"{name(labels, j)} ({least[j]} GPUs)" for j in over[:8])
    more = f" and {len(over) - 8} more" if len(over) > 8 else ""
    raise InfeasiblePlan(
        f"the jobs' smallest sizes need {total} GPUs and there are {capacity}; no room for {shown}{more}", tuple(over)
    )
