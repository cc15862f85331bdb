"""An evolutionary search in the manner of ONES in the exact solver's place: a comparison, not a recommendation.

It begins each decision with what jobs have and with random plans, and never sees the exact plan. The search itself is
that of the policy `evolve` (optimizer/evolution).
Limit: what it found before lives on only in what jobs have; ONES keeps a population. No limits of users or accounts, of
which the simulation has none.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...optimizer.evolution.arrays import ChoiceArrays
from ...optimizer.evolution.refine import within
from ...optimizer.evolution.search import Search, indices
from ...optimizer.job_view import JobView
from ...optimizer.plan import Cache, choices_of
from ...optimizer.policies import POLICIES
from ...optimizer.posing import problem_of
from ...optimizer.problem import Layout
from ...optimizer.solver.knapsack import Solution, value_at
from ...optimizer.solver.nested_caps import Cap
from ...optimizer.targets import PoolPlan, explained

OBJECTIVE = "log-goodput"
POPULATION, GENERATIONS = 20, 30


class Evolution:
    """A solver for the planner in the place of the exact one; each decision has the next random sequence."""

    def __init__(self, seed: int = 0) -> None:
        self.number = 1_000_003 * seed

    def __call__(
        self,
        pools: Sequence[Sequence[JobView]],
        capacities: Sequence[int],
        caps: Sequence[Cap],
        policy: str,
        cache: Cache | None = None,
        layout: Layout | None = None,
    ) -> list[PoolPlan]:
        """The fittest schedule of each pool found within the generations given."""
        return [self._fittest(jobs, capacity, policy, cache) for jobs, capacity in zip(pools, capacities, strict=True)]

    def _fittest(self, jobs: Sequence[JobView], capacity: int, policy: str, cache: Cache | None) -> PoolPlan:
        made = choices_of(jobs, policy, cache)
        arrays = ChoiceArrays(problem_of([jobs], [made], [capacity], (), [0] * len(jobs), POLICIES[policy]))
        seeds = [arrays.present] if within(arrays, arrays.present) else []
        self.number += 1
        search = Search(arrays, lambda people: arrays.value[people].sum(axis=1), seeds, self.number, POPULATION)
        for _ in range(GENERATIONS):
            search.generation()
        choice = tuple(indices(arrays, search.best))
        value = sum(value_at(row, i) for row, i in zip(made, choice, strict=True))
        return explained(jobs, made, Solution(choice, value), capacity, policy)
