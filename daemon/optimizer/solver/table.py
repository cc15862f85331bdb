"""The jobs' choices as flat integer columns: what every solver here reads.

Promise: within a job, weights (GPUs) rise strictly and values are integers, so "equal" is exact and a result depends
on nothing but its input. Limit: values are rounded to `1/scale`, about 2**-40 of the largest (2**-35 at 10,000 jobs);
differences below that are ties.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import lt
from typing import Any, NamedTuple, Protocol

from ..errors import InfeasiblePlan, PlanInputError

try:  # an accelerator, never a need
    import numpy as np
except ImportError:  # pragma: no cover - exercised by the tests through the plain path's own entry
    np = None  # type: ignore[assignment]

NUMPY_FROM_OPTIONS = 2000
"""Below this many options the plain path is faster than the calls into numpy."""


class Choice(Protocol):
    """What `build` reads of an option: its GPUs and its value."""

    @property
    def gpus(self) -> int: ...
    @property
    def value(self) -> float: ...


@dataclass(frozen=True)
class Table:
    """Choices of J jobs: job j owns positions starts[j] .. starts[j+1]-1 of the columns.

    `weight` and `value` are lists of int, or int64 arrays on the accelerated path; `origin` maps a position to the
    index in the caller's list of that job (None: the identity).
    """

    starts: Any
    weight: Any
    value: Any
    scale: float
    origin: Any = None

    @property
    def jobs(self) -> int:
        return len(self.starts) - 1

    @property
    def accelerated(self) -> bool:
        return not isinstance(self.weight, list)

    @property
    def reach(self) -> int:
        """The widest span of weights within one job."""
        ends = self.starts[1:]
        if self.accelerated:
            return int((self.weight[ends - 1] - self.weight[self.starts[:-1]]).max())
        spans = (self.weight[e - 1] - self.weight[s] for s, e in zip(self.starts, ends, strict=False))
        return int(max(spans))

    def fits_64_bits(self, p: int, q: int) -> bool:
        """Whether every value * q - p * weight stays inside an int64."""
        largest: int = int(abs(self.value).max()) * q + abs(p) * int(self.weight.max())
        return largest < 1 << 62

    def plain(self) -> Table:
        """The same table in lists, for the path that needs nothing but the standard library."""
        if not self.accelerated:
            return self
        return Table(self.starts.tolist(), self.weight.tolist(), self.value.tolist(), self.scale, self.origin)

    def picked(self, positions: Sequence[int]) -> tuple[int, ...]:
        """The callers' option index of each job's chosen position."""
        if self.origin is None:
            return tuple(int(p) - int(s) for p, s in zip(positions, self.starts, strict=False))
        if isinstance(self.origin, list):
            return tuple(self.origin[p] for p in positions)
        return tuple(self.origin[np.asarray(positions)].tolist())


def scale_for(largest: float, jobs: int) -> float:
    """A power of two that keeps sums over `jobs` values, times a multiplier's denominator, inside 63 bits."""
    bits = min(40, 48 - max(1, jobs).bit_length())
    return math.ldexp(1.0, bits - math.frexp(largest)[1]) if largest > 0 else 1.0


Memo = dict[object, Any]
"""What was read of lists of options before, by their identity: for callers that keep their lists unchanged."""


class Read(NamedTuple):
    """What is kept of one list of options."""

    largest: float
    """Its largest value, by amount."""
    row: Sequence[Choice]
    """The list itself: as long as it is kept, its identity stays its own."""
    columns: Any = None
    """GPUs, strictly rising, over their best values, as one float64 array; None: not read into an array."""
    origin: Any = None
    """Indices in the list; None: the identity."""


def build(options: Sequence[Sequence[Choice]], labels: Sequence[str] | None = None, memo: Memo | None = None) -> Table:
    """Columns from option objects: sorted by GPUs, of equal sizes the best value only. Raises PlanInputError."""
    memo = {} if memo is None else memo
    if np is not None and sum(map(len, options)) >= NUMPY_FROM_OPTIONS:
        return _built_at_once(options, labels, memo)
    scale = common_scale(enumerate(options), len(options), labels, memo)
    parts = list[tuple[list[int], list[int], list[int]]]()
    for row in options:
        columns = memo.get((id(row), scale, "lists"))
        if columns is None:
            columns = memo[id(row), scale, "lists"] = scaled(row, scale)
        parts.append(columns)
    starts = [0, *accumulate(len(part[0]) for part in parts)]
    flat = [list(chain.from_iterable(part[c] for part in parts)) for c in range(3)]
    return Table(starts, flat[0], flat[1], scale, flat[2])


def _built_at_once(options: Sequence[Sequence[Choice]], labels: Sequence[str] | None, memo: Memo) -> Table:
    """`build` in arrays: lists read before are joined, and only what is new is looked at option by option."""
    _read_at_once(options, memo)
    scale = common_scale(enumerate(options), len(options), labels, memo)
    read: list[Read] = [memo[id(row)] for row in options]
    for at, known in enumerate(read):
        if known.columns is None:  # out of order
            read[at] = memo[id(known.row)] = _sorted(known)
    lengths = np.fromiter((known.columns.shape[1] for known in read), dtype=np.int64, count=len(read))
    starts = np.concatenate([[0], np.cumsum(lengths)])
    weight, value = np.concatenate([known.columns for known in read], axis=1)
    origin = np.arange(starts[-1], dtype=np.int64) - np.repeat(starts[:-1], lengths)
    for at, known in enumerate(read):
        if known.origin is not None:
            origin[starts[at] : starts[at + 1]] = known.origin
    return Table(starts, weight.astype(np.int64), np.rint(value * scale).astype(np.int64), scale, origin)


def _sorted(known: Read) -> Read:
    """A list whose GPUs do not rise: of each size its best option, the first of equals."""
    best = dict[int, int]()
    for at in sorted(range(len(known.row)), key=lambda i: (known.row[i].gpus, -known.row[i].value, i)):
        best.setdefault(known.row[at].gpus, at)
    columns = np.array([list(best), [known.row[at].value for at in best.values()]], dtype=np.float64)
    return known._replace(columns=columns, origin=np.array(list(best.values()), dtype=np.int64))


def _read_at_once(options: Sequence[Sequence[Choice]], memo: Memo) -> None:
    """Read every list not read before into arrays.

    A list that is out of order, or that has to be refused, is left to the careful way.
    """
    unread = (row for row in options if (known := memo.get(id(row))) is None or known.columns is None)
    new = list({id(row): row for row in unread}.values())
    if not new or not all(new):
        return
    lengths = list(map(len, new))
    ends: Any = np.cumsum(lengths)
    starts = ends - lengths
    columns = np.empty((2, int(ends[-1])))
    columns[0] = np.fromiter((o.gpus for row in new for o in row), dtype=np.float64, count=int(ends[-1]))
    columns[1] = np.fromiter((o.value for row in new for o in row), dtype=np.float64, count=int(ends[-1]))
    good = np.isfinite(columns[1]) & (columns[0] >= 0)
    rising = np.ones(len(good), dtype=bool)
    rising[1:] = np.diff(columns[0]) > 0
    rising[starts] = True
    good = np.minimum.reduceat(good & rising, starts).tolist()
    largest = np.maximum.reduceat(np.abs(columns[1]), starts).tolist()
    for row, fine, most, start, end in zip(new, good, largest, starts.tolist(), ends.tolist(), strict=True):
        if fine:
            memo[id(row)] = Read(most, row, columns[:, start:end].copy())


def common_scale(
    rows: Iterable[tuple[int, Sequence[Choice]]], jobs: int, labels: Sequence[str] | None, memo: Memo
) -> float:
    """The scale of a table of these (job, row), each list once at least, for so many jobs; `memo` keeps the rows."""
    largest = 0.0
    for j, row in rows:  # jobs may share a list of options
        known = memo.get(id(row))
        if known is None:
            known = memo[id(row)] = Read(_largest(row, labels, j), row)
        if known.largest > largest:
            largest = known.largest
    return scale_for(largest, jobs)


def _largest(row: Sequence[Choice], labels: Sequence[str] | None, j: int) -> float:
    """The largest value by amount; PlanInputError for a row that is no list of choices."""
    if not row:
        raise PlanInputError(f"{name(labels, j)} has no choice at all: give every job at least one option")
    for option in row:
        if not math.isfinite(option.value):
            raise PlanInputError(f"{name(labels, j)}: value {option.value} at {option.gpus} GPUs is not finite")
        if option.gpus < 0:
            raise PlanInputError(f"{name(labels, j)}: {option.gpus} GPUs is negative; sizes are 0 or more")
    return max(abs(option.value) for option in row)


def scaled(row: Sequence[Choice], scale: float) -> tuple[list[int], list[int], list[int]]:
    """(weights strictly rising, scaled values, index in the row) of one job's choices."""
    weights = [option.gpus for option in row]
    if all(map(lt, weights, weights[1:])):  # as most lists come
        return weights, [round(option.value * scale) for option in row], list(range(len(row)))
    weights, values, indices, last = list[int](), list[int](), list[int](), -1
    for gpus, negated, index in sorted((o.gpus, -round(o.value * scale), i) for i, o in enumerate(row)):
        if gpus != last:
            weights.append(gpus)
            values.append(-negated)
            indices.append(index)
            last = gpus
    return weights, values, indices


def name(labels: Sequence[str] | None, j: int) -> str:
    """How a message calls job j."""
    return f"job {labels[j]}" if labels is not None else f"job #{j}"


def check_feasible(table: Table, capacity: int, labels: Sequence[str] | None = None) -> None:
    """Raise InfeasiblePlan naming the jobs, in arrival order, whose minima do not fit after those before them."""
    if capacity < 0:
        raise PlanInputError(f"capacity {capacity} is negative; it must be 0 or more")
    needs = [int(table.weight[s]) for s in table.starts[:-1]]
    total = sum(needs)
    if total <= capacity:
        return
    left, over = capacity, list[int]()
    for j, need in enumerate(needs):
        if need > left:
            over.append(j)
        else:
            left -= need
    shown = ", ".join(f"{name(labels, j)} ({needs[j]} GPUs)" for j in over[:8])
    more = f" and {len(over) - 8} more" if len(over) > 8 else ""
    raise InfeasiblePlan(
        f"the jobs' smallest sizes need {total} GPUs and there are {capacity}; no room for {shown}{more}", tuple(over)
    )
