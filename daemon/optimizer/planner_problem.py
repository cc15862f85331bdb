"""A plan's jobs and their choices as a planner's problem.

Promise: what nodes cost is each job's own model's word, of all jobs at once. Limit: one figure for each job, at the
size that the exact plan gives it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .job_view import JobView, nodes_at
from .models.configurations import Configurations
from .policies import Policy
from .problem import Problem
from .solver.nested_caps import Cap
from .solver.table import Columns
from .speedups import speedups

UNKNOWN_SPREAD = 0.1
"""Share of a job's progress that one node more is taken to cost where its model says nothing of it."""
MOST_SPREAD = 0.5


def problem_of(
    pools: Sequence[Sequence[JobView]],
    made: Sequence[Sequence[Columns]],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    exact: Sequence[int],
    policy: Policy,
) -> Problem:
    """What a planner is given of jobs with these choices, beside the layout. `exact`: the exact plan."""
    jobs, rows = [job for own in pools for job in own], [row for own in made for row in own]
    nodes = [_nodes(job, row) for job, row in zip(jobs, rows, strict=True)]
    return Problem(
        labels=[job.label for job in jobs],
        choices=rows,
        present=[job.current_gpus for job in jobs],
        pools=[g for g, own in enumerate(pools) for _ in own],
        capacities=capacities,
        caps=caps,
        exact=exact,
        weights=[job.weight for job in jobs],
        nodes=nodes,
        spread=_spreads(jobs, rows, exact, nodes, policy),
    )


def _nodes(job: JobView, row: Columns) -> list[int]:
    known, sizes = dict(job.choices), row.numbers[0].tolist()
    return [known.get(gpus) or nodes_at(job, int(gpus)) if gpus else 0 for gpus in sizes]


def _spreads(
    jobs: Sequence[JobView],
    rows: Sequence[Columns],
    exact: Sequence[int],
    nodes: Sequence[Sequence[int]],
    policy: Policy,
) -> list[float]:
    """Of each job the share of its progress that it would lose at its size of the exact plan on one node more."""
    gpus, _, batch, _ = np.array([row.numbers[:, i] for row, i in zip(rows, exact, strict=True)]).reshape(-1, 4).T
    on = np.array([own[i] for own, i in zip(nodes, exact, strict=True)])
    modelled = np.array([job.model is not None for job in jobs], dtype=bool)
    known = np.flatnonzero(modelled & (on > 0) & (on < gpus))
    found = np.full(len(jobs), UNKNOWN_SPREAD)
    if len(known):
        twice, here = known.repeat(2), on[known].repeat(2)
        here[1::2] += 1
        ones = np.ones(len(twice), dtype=np.int64)
        at = Configurations(gpus[twice], here.astype(float), batch[None, twice], ones, 2 * np.arange(len(known) + 1))
        speeds = speedups([jobs[j] for j in known.tolist()], policy, at)[0]
        found[known] = np.clip(1.0 - speeds[1::2] / speeds[::2], 0.0, MOST_SPREAD)
    return [float(one) for one in found]
