"""The recurrence every faster form is tested against: P(j, K) = max over k of P(j-1, K-k) + s_j(k).

Exact, and plain enough to be checked by eye. Limit: time O(N * K), memory J * K choices.
"""

from __future__ import annotations

from collections.abc import Sequence

from slurm_elastic.daemon.optimizer.errors import InfeasiblePlan, PlanInputError
from slurm_elastic.daemon.optimizer.solver.knapsack import Solution
from slurm_elastic.daemon.optimizer.solver.table import Choice

UNREACHED = float("-inf")


def solve_reference(options: Sequence[Sequence[Choice]], capacity: int) -> Solution:
    """The best choice for every job by the plain recurrence; raises like `solver.solve`."""
    if capacity < 0:
        raise PlanInputError(f"capacity {capacity} is negative; it must be 0 or more")
    best = [0.0] * (capacity + 1)
    steps = list[list[int]]()
    for row in options:
        grown, step = [UNREACHED] * (capacity + 1), [-1] * (capacity + 1)
        for index, option in enumerate(row):
            for total in range(option.gpus, capacity + 1):
                value = best[total - option.gpus] + option.value
                if value > grown[total]:
                    grown[total], step[total] = value, index
        best = grown
        steps.append(step)
    if best[capacity] == UNREACHED:
        raise InfeasiblePlan(f"the jobs' smallest sizes do not fit into {capacity} GPUs")
    at, choice = capacity, list[int]()
    for row, step in zip(reversed(options), reversed(steps), strict=True):
        choice.append(step[at])
        at -= row[step[at]].gpus
    return Solution(tuple(reversed(choice)), best[capacity])
