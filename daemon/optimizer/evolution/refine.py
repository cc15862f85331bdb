"""The policy `evolve`: the exact plan, refined for what does not separate by job.

The exact plan maximises a sum over jobs. Fragments of nodes, nodes that jobs share, leaf switches and the number of
moves in a round depend on all sizes together. The search starts from the exact plan and from staying, and counts them.

Promise: pure and deterministic; the plan is worth at least as much as the exact one, placement counted; where nothing
gains `min_gain` over staying, everyone stays. Limit: GENERATIONS, fewer for many jobs; above MOST_JOBS the exact plan
or staying is all that there is to choose from.
"""

from __future__ import annotations

import numpy as np

from ..problem import Problem
from .arrays import Array, ChoiceArrays
from .placing import Objective, Placing
from .search import POPULATION, Search, indices

GENERATIONS = 80
WORK = 5_000
"""Generations x jobs at most, so that a round of many jobs does not wait for long."""
MOST_JOBS = 1_000
"""Above that there is no search: one generation of 5,000 jobs takes longer than a round may."""


def evolve(problem: Problem, generations: int | None = None, number: int = 0, relative: bool = True) -> list[int]:
    """The plan, as an index into each job's choices. `number`: of the random sequence."""
    arrays = ChoiceArrays(problem)
    objective = Objective(arrays, Placing(problem, arrays), relative)
    exact, stay = arrays.at(problem.exact), arrays.present
    seeds = [exact, stay] if within(arrays, stay) else [exact]
    if generations is None:
        layout = problem.layout
        counted = len(set(layout.switches.values())) if layout.switch_cost else 0
        generations = generations_for(len(problem.choices), counted)
    if not generations or not (arrays.length > 1).any():
        found = max(seeds, key=lambda plan: float(objective(plan[None, :])[0]))
    else:
        search = Search(arrays, objective, seeds, number, POPULATION)
        for _ in range(generations):
            search.generation()
        found = search.best
    if len(seeds) > 1 and gain(objective, stay, found) < problem.layout.min_gain:
        found = stay
    return indices(arrays, found)


def generations_for(jobs: int, switches: int = 0) -> int:
    """How long the search lasts. A generation takes twice as long with some switches, longer with many."""
    work = WORK // (2 + switches // 16) if switches else WORK
    return min(GENERATIONS, work // max(1, jobs)) if jobs <= MOST_JOBS else 0


def gain(objective: Objective, stay: Array, found: Array) -> float:
    """What a plan gains over staying, in relative gains of one job's progress, whatever its weight: the sum of all
    jobs' own changes, times the share of them that is left when losses are taken off. As the planner has it of the
    exact plan."""
    before, after = objective.terms(np.stack([stay, found]))
    late = float(np.diff(objective.placing.late(np.stack([stay, found])))[0])
    changes = after - before
    gross = float(abs(changes).sum())
    if not gross:
        return 0.0
    return (float(changes.sum()) - late) / gross * float((abs(changes) / objective.arrays.weight).sum())


def within(arrays: ChoiceArrays, plan: Array) -> bool:
    """Whether a plan keeps every capacity and every limit."""
    return bool(np.all(arrays.left(plan[None, :]) >= 0))
