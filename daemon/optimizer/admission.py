"""Who may start: waiting jobs in arrival order, while everybody's smallest size still fits.

The paper's rule. A plan is feasible exactly when the smallest sizes fit together, so admission is a running sum; no
older job is ever overtaken by one that needs fewer GPUs unless `overtake` says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from .errors import PlanInputError


def admitted(held: Sequence[int], waiting: Sequence[int], capacity: int, overtake: bool = False) -> tuple[int, ...]:
    """Positions in `waiting` (smallest sizes, arrival order) that fit beside the smallest sizes `held` now.

    `overtake`: later, smaller jobs may start past one that does not fit.
    """
    if any(size < 0 for size in (*held, *waiting)):
        raise PlanInputError("a smallest size is 0 or more")
    left, fits = capacity - sum(held), list[int]()
    for position, size in enumerate(waiting):
        if size <= left:
            fits.append(position)
            left -= size
        elif not overtake:
            break
    return tuple(fits)
