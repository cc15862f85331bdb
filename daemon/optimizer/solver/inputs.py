"""What the solvers refuse, in one sentence that names the job or the limit, the value and what is accepted.

Promise: what passes keeps every sum of sizes inside 63 bits and every sum of values inside a double. Limit: a list of
choices is checked in arrays once it is read; a job's own sentence is made only where that found something.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite
from numbers import Integral
from typing import Any

import numpy as np

from ..errors import InfeasiblePlan, PlanInputError

MOST_GPUS = 10**9
"""Largest size of a job."""
MOST_CAPACITY = 10**15
"""Largest capacity, largest limit."""
LARGEST = 1e290
"""Largest value by amount: a million of them still add up to a number."""
Array = Any


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
