"""An online evolutionary search over the same choices, in the manner of ONES: a comparison, not a recommendation.

After Bian et al., "Online evolutionary batch size orchestration", SC 2021: a population of schedules that survives from
one decision to the next, uniform crossover, mutation, repair. Ours, after the description; their code is not public.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ...optimizer.job_view import JobView
from ...optimizer.plan import Cache, choices_of
from ...optimizer.solver.knapsack import Solution
from ...optimizer.solver.nested_caps import Cap
from ...optimizer.targets import PoolPlan, explained

OBJECTIVE = "log-goodput"


class Evolution:
    """A solver for the planner in the place of the exact one; it keeps its population by job label.

    Limit: of one pool, and without limits, of which the simulation has none.
    """

    def __init__(self, seed: int = 0, population: int = 20, generations: int = 30) -> None:
        self.random, self.size, self.generations = random.Random(seed), population, generations
        self.people: list[dict[str, int]] = []

    def __call__(
        self,
        pools: Sequence[Sequence[JobView]],
        capacities: Sequence[int],
        caps: Sequence[Cap],
        policy: str,
        cache: Cache | None = None,
    ) -> list[PoolPlan]:
        """The fittest schedule of each pool found within the generations given."""
        return [self._fittest(jobs, capacity, policy, cache) for jobs, capacity in zip(pools, capacities, strict=True)]

    def _fittest(self, jobs: Sequence[JobView], capacity: int, policy: str, cache: Cache | None) -> PoolPlan:
        made = choices_of(jobs, policy, cache)
        sizes = [[o.gpus for o in column] for column in made]
        values = [[o.value for o in column] for column in made]
        keep = [_index_at(row, job.current_gpus) for job, row in zip(jobs, sizes, strict=True)]
        people = [self._known(person, jobs, sizes, keep) for person in self.people] or [list(keep)]
        while len(people) < self.size:
            people.append([self.random.randrange(len(row)) for row in sizes])
        people = [self._repair(person, sizes, capacity) for person in people]
        for _ in range(self.generations):
            for _ in range(self.size):
                a, b = self.random.choice(people), self.random.choice(people)
                child = [x if self.random.random() < 0.5 else y for x, y in zip(a, b, strict=True)]
                for j in range(len(child)):
                    if self.random.random() < 1.5 / len(child):
                        child[j] = self.random.randrange(len(sizes[j]))
                people.append(self._repair(child, sizes, capacity))
            people.sort(key=lambda person: -sum(row[i] for row, i in zip(values, person, strict=True)))
            people = people[: self.size]
        self.people = [
            {job.label: row[i] for job, row, i in zip(jobs, sizes, person, strict=True)} for person in people
        ]
        value = sum(row[i] for row, i in zip(values, people[0], strict=True))
        return explained(jobs, made, Solution(tuple(people[0]), value), capacity, policy)

    def _known(
        self, person: dict[str, int], jobs: Sequence[JobView], sizes: list[list[int]], keep: list[int]
    ) -> list[int]:
        """A schedule of the last decision over today's jobs."""
        return [
            row.index(person[job.label]) if person.get(job.label) in row else stay
            for job, row, stay in zip(jobs, sizes, keep, strict=True)
        ]

    def _repair(self, person: list[int], sizes: list[list[int]], capacity: int) -> list[int]:
        """Within capacity by steps down at random, then filled by steps up at random."""
        order = list(range(len(person)))
        self.random.shuffle(order)
        used = sum(row[i] for row, i in zip(sizes, person, strict=True))
        for j in order:
            while used > capacity and person[j] > 0:
                used -= sizes[j][person[j]] - sizes[j][person[j] - 1]
                person[j] -= 1
        for j in order:
            while person[j] + 1 < len(sizes[j]) and used + sizes[j][person[j] + 1] - sizes[j][person[j]] <= capacity:
                used += sizes[j][person[j] + 1] - sizes[j][person[j]]
                person[j] += 1
                if self.random.random() < 0.5:
                    break
        return person


def _index_at(sizes: list[int], gpus: int) -> int:
    """The largest size that is at most `gpus`; the smallest when none is."""
    return max((i for i, k in enumerate(sizes) if k <= gpus), default=0)
