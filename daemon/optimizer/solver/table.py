"""The jobs' lists of choices, all of them together as flat integer columns, and what the solvers refuse, in one
sentence that names the job or the limit, the value and what is accepted.

Promise: within a job, weights (GPUs) rise strictly and values are integers, so "equal" is exact and a result depends on
nothing but its input. A size that brings no more than a smaller one is left out: no plan needs it. What passes keeps
every sum of sizes inside 63 bits and every sum of values inside a double.
Limit: values are rounded to `1/scale`, about 2**-40 of the largest (2**-35 at 10,000 jobs); differences below that are
ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from numbers import Integral
from typing import Any, overload

import numpy as np

from slurm_elastic.protocol.records import record

from ..errors import InfeasiblePlan, PlanInputError

Array = Any

MOST_GPUS = 10**9
"""Largest size of a job."""
MOST_CAPACITY = 10**15
"""Largest capacity, largest limit."""
LARGEST = 1e290
"""Largest value by amount: a million of them still add up to a number."""


def name(labels: Sequence[str] | None, j: int) -> str:
    """How a message calls job j."""
    return f"job {labels[j]}" if labels is not None else f"job #{j}"


def check_capacity(capacity: Any, what: str = "capacity") -> None:
    """PlanInputError for anything but a whole number of GPUs."""
    if isinstance(capacity, Integral) and 0 <= int(capacity) <= MOST_CAPACITY:
        return
    why = "is negative" if capacity < 0 else "is no number of GPUs"
    raise PlanInputError(f"{what} {capacity} {why}; accepted: a whole number from 0 to {MOST_CAPACITY:.0e}")


def acceptable(sizes: Array, values: Array) -> bool:
    """Whether all of these columns are sizes, and values, that a plan can be made from."""
    if not sizes.size:
        return True
    whole = sizes.min() >= 0 and sizes.max() <= MOST_GPUS and bool((sizes == np.rint(sizes)).all())
    return bool(whole) and bool(values.min() >= -LARGEST and values.max() <= LARGEST)


def check_choice(job: str, sizes: Sequence[float], value: float) -> None:
    """PlanInputError for a size or a value that no plan can be made from; `sizes` are of one choice, by pool."""
    for gpus in sizes:
        if gpus < 0:
            raise PlanInputError(f"{job}: {gpus} GPUs is negative; sizes are 0 or more")
        if not (gpus <= MOST_GPUS and gpus == int(gpus)):
            raise PlanInputError(f"{job}: {gpus} GPUs is no size; accepted: whole numbers up to {MOST_GPUS:.0e}")
    at = " + ".join(str(gpus) for gpus in sizes)
    if abs(value) > LARGEST and value not in (inf, -inf):
        raise PlanInputError(f"{job}: value {value} at {at} GPUs is too large; accepted: up to {LARGEST:.0e}")
    if not isfinite(value):
        raise PlanInputError(f"{job}: value {value} at {at} GPUs is not finite")


def check_feasible(least: Sequence[int], capacity: int, labels: Sequence[str] | None = None) -> None:
    """Raise InfeasiblePlan naming the jobs, in arrival order, whose smallest sizes do not fit after those before."""
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


class Columns(Sequence[Choice]):
    """The choices of one job, GPUs strictly rising."""

    __slots__ = ("_stays", "present", "unweighted", "weight")

    def __init__(
        self, unweighted: Array, present: float = math.nan, weight: float = 1.0, stays: float = math.nan
    ) -> None:
        self.unweighted = unweighted
        """GPUs, values of a job that counts as one, batches, speedups: one row of doubles each."""
        self.present = present
        """The speedup at the size and the batch that the job has; nan: not known."""
        self.weight = weight
        """What its values are multiplied by."""
        self._stays = stays

    def at_weight(self, weight: float) -> Columns:
        """The same choices of a job that counts by so much; the numbers are shared."""
        return self if weight == self.weight else Columns(self.unweighted, self.present, weight, self._stays)

    @property
    def numbers(self) -> Array:
        """GPUs, values, batches, speedups: one row of doubles each."""
        if self.weight == 1.0:
            return self.unweighted
        weighted = self.unweighted.copy()
        weighted[1] *= self.weight
        return weighted

    @property
    def staying(self) -> float:
        """The value of what the job has, offered or not; nan: not known."""
        return self._stays * self.weight

    def value_at(self, at: int) -> float:
        """The value of one choice."""
        return float(self.unweighted.item(1, at) * self.weight)

    def __len__(self) -> int:
        return int(self.unweighted.shape[1])

    @overload
    def __getitem__(self, at: int) -> Choice: ...
    @overload
    def __getitem__(self, at: slice) -> list[Choice]: ...
    def __getitem__(self, at: int | slice) -> Choice | list[Choice]:
        if isinstance(at, slice):
            return list(self)[at]
        gpus, value, batch, speedup = self.unweighted[:, at].tolist()
        return Choice(int(gpus), value * self.weight, int(batch), speedup)

    def __iter__(self) -> Iterator[Choice]:
        for gpus, value, batch, speedup in zip(*self.numbers.tolist(), strict=True):
            yield Choice(int(gpus), value, int(batch), speedup)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Columns) and np.array_equal(self.numbers, other.numbers)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Columns({list(self)})"


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


def build(options: Sequence[Sequence[Choice]], labels: Sequence[str] | None = None) -> Table:
    """The table of these lists. Raises PlanInputError."""
    origins = dict[int, list[int]]()
    each = [row if isinstance(row, Columns) else _columns(row, labels, j, origins) for j, row in enumerate(options)]
    starts = np.zeros(len(each) + 1, dtype=np.int64)
    np.cumsum([len(own) for own in each], out=starts[1:])
    weight, value, _, _ = np.concatenate([own.unweighted for own in each], axis=1)
    with np.errstate(over="ignore"):  # what is not finite is refused by its job
        value *= np.array([own.weight for own in each]).repeat(starts[1:] - starts[:-1])
    if not acceptable(weight, value):
        for j, row in enumerate(options):
            _check(row, name(labels, j))
    scale = scale_for(max(float(value.max()), -float(value.min())), len(each))
    value *= scale
    rounded = np.rint(value)
    value -= rounded
    residual = max(float(value.max()), -float(value.min())) / scale
    origin = np.arange(starts[-1]) - starts[:-1].repeat(starts[1:] - starts[:-1])
    for j, own_origin in origins.items():
        origin[starts[j] : starts[j + 1]] = own_origin
    whole = Table(starts, weight.astype(np.int64), rounded.astype(np.int64), scale, origin, residual)
    return _without_dominated(whole)


def _columns(row: Sequence[Choice], labels: Sequence[str] | None, j: int, origins: dict[int, list[int]]) -> Columns:
    """Columns of a list, and where they come from: of each size the best choice, the first of equals."""
    if not row:
        raise PlanInputError(f"{name(labels, j)} has no choice at all: give every job at least one option")
    _check(row, name(labels, j))
    best = dict[int, int]()
    for i in sorted(range(len(row)), key=lambda i: (row[i].gpus, -row[i].value, i)):
        best.setdefault(row[i].gpus, i)
    origins[j] = list(best.values())
    return Columns(np.array([(k, row[i].value, 0.0, 0.0) for k, i in best.items()], dtype=np.float64).T)


def _check(row: Sequence[Choice], job: str) -> None:
    for choice in row:
        check_choice(job, (choice.gpus,), choice.value)


def _without_dominated(table: Table) -> Table:
    """Without the sizes that bring no more than the size before them, again and again until there is none."""
    while True:
        kept = np.ones(len(table.value), dtype=bool)
        kept[1:] = table.value[1:] > table.value[:-1]
        kept[table.starts[:-1]] = True
        if kept.all():
            return table
        ends = np.zeros(len(table.starts), dtype=np.int64)
        np.cumsum(np.add.reduceat(kept, table.starts[:-1], dtype=np.int64), out=ends[1:])
        table = replace(
            table, starts=ends, weight=table.weight[kept], value=table.value[kept], origin=table.origin[kept]
        )


def scale_for(largest: float, jobs: int) -> float:
    """A power of two that keeps sums over `jobs` values, times a multiplier's denominator, inside 63 bits."""
    bits = min(40, 48 - max(1, jobs).bit_length())
    return math.ldexp(1.0, min(1000, bits - math.frexp(largest)[1])) if largest > 0 else 1.0
