"""A problem's choices as arrays, and what a population of plans may still take within its capacities and limits.

A plan is a row of positions in the arrays, one for each job; a population is a matrix of them.
Promise: nothing is rounded; the same problem gives the same arrays. Limit: one entry for each choice of each job.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..problem import Problem
from ..solver.table import Choice, Columns

Array = Any


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
