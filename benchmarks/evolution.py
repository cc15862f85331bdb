"""An evolutionary search over whole plans, in the manner of ONES: crossover, mutation, repair, the best survive.

After Bian et al., "Online evolutionary batch size orchestration", SC 2021; ours, after the description. Unlike theirs
the repair goes by the value of a GPU, and all plans of a generation are handled in arrays at once. A comparison for the
tables of bench_optimizer and bench_simulator. A plan is a row of positions in the arrays, one for each job; a
population is a matrix of them.

Promise: every plan kept is within all capacities and limits; the best never gets worse with more generations; the same
seeds and the same number give the same plan.
Limit: nothing is proven of the best. One choice up or down is a step of the repair: what lies behind a size that
brings nothing is found by mutation alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from slurm_elastic.daemon.optimizer.problem import Problem
from slurm_elastic.daemon.optimizer.solver.table import Choice, Columns

Array = Any

POPULATION = 48
MUTATIONS = 2.0
"""Jobs of a child that get another choice, in the mean."""
NEAR = 0.5
"""Share of mutations that go one choice up or down; the others go anywhere."""
FILLED = 0.75
"""Share of the children that are filled up after the repair: where GPUs lie, it may be better to leave some idle."""
NOISE = 0.5
"""By how much, relatively, the repair misjudges what a GPU is worth: without that all plans would come out alike."""


class ChoiceArrays:
    """The choices of all jobs in one row: job j owns positions start[j] .. start[j] + length[j] - 1, sizes rising."""

    def __init__(self, problem: Problem) -> None:
        rows = problem.choices
        self.length = np.array([len(row) for row in rows], dtype=np.int64)
        self.start = np.concatenate([[0], self.length.cumsum()[:-1]]).astype(np.int64)
        numbers = np.concatenate([_numbers(row) for row in rows], axis=1)
        self.gpus, self.value, self.speedup = numbers[0].astype(np.int64), numbers[1], numbers[3]
        self.job = np.repeat(np.arange(len(rows)), self.length)
        self.weight = np.array(problem.weights, dtype=np.float64)
        ends = self.start + self.length
        self.present = np.array(
            [
                start + max(0, int(self.gpus[start:end].searchsorted(gpus, side="right")) - 1)
                for start, end, gpus in zip(self.start.tolist(), ends.tolist(), problem.present, strict=True)
            ]
        )
        """The plan nearest to staying: the largest size that is at most the present one, else the smallest."""
        members = [np.flatnonzero(np.array(problem.pools) == pool) for pool in range(len(problem.capacities))]
        members += [np.array(sorted(cap.members), dtype=np.int64) for cap in problem.caps]
        self.members: list[Array] = members
        """The jobs under each capacity, and then under each limit."""
        self.under = np.zeros((len(rows), len(members)), dtype=np.int64)
        """Jobs x limits: 1 where the job is under the limit."""
        for limit, own in enumerate(members):
            self.under[own, limit] = 1
        self.most = np.array([*problem.capacities, *(cap.limit for cap in problem.caps)], dtype=np.int64)
        self.up, gain = self._steps(1)
        self.up_gain = np.where((self.up > 0) & (gain > 0), gain, 0.0)
        """Of each position, the value that each GPU of a step to the next size brings; 0: none."""
        down, gain = self._steps(-1)
        self.down = -down
        """GPUs that a step to the size before gives back."""
        self.down_loss = np.where(self.down > 0, -gain, np.inf)
        """The value that each of them costs; infinite: there is no smaller size."""

    def at(self, plan: Any) -> Array:
        """The positions of a plan of indices into each job's choices."""
        return self.start + np.array(plan, dtype=np.int64)

    def left(self, people: Array) -> Array:
        """What each plan leaves of every capacity and limit: people x limits; negative where it takes too much."""
        return self.most - self.gpus[people] @ self.under

    def room(self, left: Array) -> Array:
        """What each job of each plan may still take: people x jobs."""
        room = np.full((len(left), len(self.length)), np.iinfo(np.int64).max)
        for limit, own in enumerate(self.members):
            room[:, own] = np.minimum(room[:, own], left[:, limit, None])
        return room

    def _steps(self, way: int) -> tuple[Array, Array]:
        """(change of GPUs, change of value for each of them) of a step to the next choice above or below; GPUs 0: there
        is none."""
        there = np.clip(np.arange(len(self.gpus)) + way, 0, len(self.gpus) - 1)
        gpus = np.where(self.job[there] == self.job, self.gpus[there] - self.gpus, 0)
        gain = self.value[there] - self.value
        return gpus, gain / np.where(gpus == 0, 1, abs(gpus))


def _numbers(row: Sequence[Choice]) -> Array:
    """GPUs, values, batches and speedups of one job's choices."""
    if isinstance(row, Columns):
        return row.numbers
    return np.array([(choice.gpus, choice.value, choice.batch, choice.speedup) for choice in row]).T


class Search:
    """A population of plans: positions in the arrays, people x jobs."""

    def __init__(
        self,
        arrays: ChoiceArrays,
        objective: Callable[[Array], Array],
        seeds: Sequence[Array],
        number: int = 0,
        population: int = POPULATION,
    ) -> None:
        """objective: the worth of each plan, from a matrix of positions. seeds: plans to begin with, each within the
        limits; none: at random. number: of the random sequence."""
        self.arrays, self.objective = arrays, objective
        self.random, self.size = np.random.default_rng(number), population
        first = np.array(seeds, dtype=np.int64).reshape(-1, len(arrays.length))
        missing = population - len(first)
        if len(first):
            others = self._mutated(first[self.random.integers(len(first), size=missing)])
        else:
            others = self._anything(missing)
        self.people = np.concatenate([first, self._repaired(others)])
        self.worth = np.asarray(objective(self.people))
        self._survive(self.people, self.worth)

    @property
    def best(self) -> Array:
        """Positions of the best plan so far; of equals the one found first."""
        return self.people[0]

    def generation(self) -> None:
        """As many children as there are plans; the best of both live on."""
        parents = self._tournament(), self._tournament()
        mask = self.random.random(self.people.shape) < 0.5
        children = self._repaired(self._mutated(np.where(mask, self.people[parents[0]], self.people[parents[1]])))
        worth = np.asarray(self.objective(children))
        self._survive(np.concatenate([self.people, children]), np.concatenate([self.worth, worth]))

    def _tournament(self) -> Array:
        """A parent for each child: the better of two."""
        return self.random.integers(self.size, size=(2, self.size)).min(axis=0)  # they are in order

    def _survive(self, people: Array, worth: Array) -> None:
        """The best, each plan once as long as there are enough."""
        order = np.argsort(-worth, kind="stable")
        people, worth = people[order], worth[order]
        again = np.zeros(len(people), dtype=bool)
        again[1:] = (worth[1:] == worth[:-1]) & (people[1:] == people[:-1]).all(axis=1)
        order = np.argsort(again, kind="stable")[: self.size]
        self.people, self.worth = people[order], worth[order]

    def _anything(self, count: int) -> Array:
        arrays = self.arrays
        pick = self.random.random((count, len(arrays.length))) * arrays.length
        return arrays.start + pick.astype(np.int64)

    def _mutated(self, people: Array) -> Array:
        arrays = self.arrays
        chosen = self.random.random(people.shape) < MUTATIONS / max(1, people.shape[1])
        step = np.where(self.random.random(people.shape) < 0.5, 1, -1)
        near = np.clip(people + step, arrays.start, arrays.start + arrays.length - 1)
        else_where = self._anything(len(people))
        there = np.where(self.random.random(people.shape) < NEAR, near, else_where)
        return np.where(chosen, there, people)

    def _repaired(self, people: Array) -> Array:
        """Within every limit by the steps down that cost least, then filled by the steps up that bring most."""
        people, arrays = people.copy(), self.arrays
        noise = 1.0 + NOISE * (self.random.random(people.shape) - 0.5)
        left = arrays.left(people)
        for limit, own in enumerate(arrays.members):
            rows = np.flatnonzero(left[:, limit] < 0)
            loss = arrays.down_loss[people[:, own]] * noise[:, own]
            while len(rows):
                at = loss[rows].argmin(axis=1)
                possible = loss[rows, at] < np.inf  # else the smallest sizes do not fit: no plan of this problem does
                rows, at = rows[possible], at[possible]
                jobs = own[at]
                here = people[rows, jobs]
                left[rows] += arrays.down[here][:, None] * arrays.under[jobs]
                people[rows, jobs] = here - 1
                loss[rows, at] = arrays.down_loss[here - 1] * noise[rows, jobs]
                rows = rows[left[rows, limit] < 0]
        filled = np.flatnonzero(self.random.random(len(people)) < FILLED)
        people[filled] = self._filled(people[filled], left[filled], noise[filled])
        return people

    def _filled(self, people: Array, left: Array, noise: Array) -> Array:
        arrays, rows = self.arrays, np.arange(len(people))
        step, gain = arrays.up[people], arrays.up_gain[people] * noise
        while len(rows):
            room = arrays.room(left[rows])
            now = np.where(step[rows] <= room, gain[rows], 0.0)
            at = now.argmax(axis=1)
            found = now[np.arange(len(rows)), at] > 0.0
            rows, at = rows[found], at[found]
            here = people[rows, at]
            left[rows] -= arrays.up[here][:, None] * arrays.under[at]
            people[rows, at] = here + 1
            step[rows, at], gain[rows, at] = arrays.up[here + 1], arrays.up_gain[here + 1] * noise[rows, at]
        return people


def indices(arrays: ChoiceArrays, plan: Any) -> list[int]:
    """A plan of positions as indices into each job's choices."""
    found: list[int] = (plan - arrays.start).tolist()
    return found


class EvolutionPlanner:
    """The search as a policy's planner, which never sees the exact plan: from what jobs have and random plans on, each
    decision with the next random sequence. ONES keeps a population from decision to decision."""

    def __init__(self, population: int = 20, generations: int = 30) -> None:
        self.population, self.generations, self.number = population, generations, 0

    def __call__(self, problem: Problem) -> list[int]:
        """The fittest plan found, as an index into each job's choices."""
        arrays = ChoiceArrays(problem)
        stays = bool(np.all(arrays.left(arrays.present[None, :]) >= 0))
        self.number += 1
        search = Search(
            arrays,
            lambda people: arrays.value[people].sum(axis=1),
            [arrays.present] if stays else [],
            self.number,
            self.population,
        )
        for _ in range(self.generations):
            search.generation()
        return indices(arrays, search.best)
