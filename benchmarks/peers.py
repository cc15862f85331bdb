"""Other ways to the same plan, as published: for the optimizer's table, never for the product.

Each takes an Instance and returns the value it reached (or None when it is not run at that size).
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Sequence

import numpy as np
from evolution import ChoiceArrays, Search
from instances import Instance

from slurm_elastic.daemon.optimizer.problem import Problem
from slurm_elastic.daemon.optimizer.solver.table import Choice


def recurrence_python(instance: Instance) -> float:
    """P(j, K) = max_k P(j-1, K-k) + s_j(k) in plain Python, value only."""
    capacity = instance.capacity
    best = [0.0] * (capacity + 1)
    for weights, values in instance.rows():
        grown = [float("-inf")] * (capacity + 1)
        for k, v in zip(weights.tolist(), values.tolist(), strict=True):
            for total in range(k, capacity + 1):
                value = best[total - k] + v
                if value > grown[total]:
                    grown[total] = value
        best = grown
    return best[capacity]


def recurrence_numpy(instance: Instance) -> float:
    """The same with one shifted maximum per option."""
    best = np.zeros(instance.capacity + 1)
    for weights, values in instance.rows():
        grown = np.full(len(best), -np.inf)
        for k, v in zip(weights.tolist(), values.tolist(), strict=True):
            if k < len(best):
                np.maximum(grown[k:], best[: len(best) - k] + v, out=grown[k:])
        best = grown
    return float(best[-1])


def highs(instance: Instance) -> float | None:
    """scipy's MILP solver at gap 0, one binary per option."""
    from scipy import sparse
    from scipy.optimize import Bounds, LinearConstraint, milp

    n = len(instance.weight)
    job = np.repeat(np.arange(instance.jobs), np.diff(instance.starts))
    one = sparse.csr_matrix((np.ones(n), (job, np.arange(n))), shape=(instance.jobs, n))
    total = sparse.csr_matrix(instance.weight.astype(float))
    limits = [LinearConstraint(one, 1, 1), LinearConstraint(total, 0, instance.capacity)]
    options = {"mip_rel_gap": 0.0, "time_limit": 120.0}
    found = milp(-instance.value, constraints=limits, integrality=1, bounds=Bounds(0, 1), options=options)
    return -float(found.fun) if found.x is not None else None


def greedy(instance: Instance) -> float:
    """Marginal gain per GPU to the next feasible size, while one fits (Optimus, EuroSys 2018, its heap form)."""
    rows = instance.rows()
    at, left, total = [0] * len(rows), instance.capacity - sum(int(w[0]) for w, _ in rows), 0.0
    heap = list[tuple[float, int]]()

    def push(j: int) -> None:
        weights, values = rows[j]
        if at[j] + 1 < len(weights):
            i = at[j]
            heapq.heappush(heap, (-(values[i + 1] - values[i]) / (weights[i + 1] - weights[i]), j))

    for j in range(len(rows)):
        push(j)
    while heap:
        gain, j = heapq.heappop(heap)
        weights, _ = rows[j]
        step = int(weights[at[j] + 1] - weights[at[j]])
        if gain < 0 and step <= left:
            left -= step
            at[j] += 1
            push(j)
    for j, (_, values) in enumerate(rows):
        total += float(values[at[j]])
    return total


def evolution(instance: Instance, seconds: float, seed: int = 0) -> float:
    """An evolutionary search in the manner of ONES (SC 2021), from random plans on; CPU seconds given."""
    given = as_problem(instance, [0] * instance.jobs)
    arrays = ChoiceArrays(given)
    search = Search(arrays, lambda people: arrays.value[people].sum(axis=1), [], seed)
    end = time.process_time() + seconds
    while time.process_time() < end:
        search.generation()
    return float(search.worth[0])


def as_problem(instance: Instance, exact: Sequence[int]) -> Problem:
    """What a planner is given of it: nobody runs, one pool, nothing known of nodes."""
    rows = [[Choice(int(k), float(v), 0, float(v)) for k, v in zip(w, x, strict=True)] for w, x in instance.rows()]
    zero = [0] * len(rows)
    return Problem(
        [str(j) for j in range(len(rows))], rows, zero, zero, [instance.capacity], (), exact, [1.0] * len(rows)
    )
