"""What a plan costs by where it would lie, and by how much it moves: nodes beyond those counted on, shared nodes,
further switches, moves beyond a round's.

Growths are placed as the planner places companions (node_counts.py), the largest gains of progress first.
Promise: the same plan costs the same. Limit: what is not looked at there; the planner's placement may turn out
otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ..problem import Problem
from .arrays import Array, ChoiceArrays
from .node_counts import NodeCounts

SHARED = 0.002
"""Progress lost, relatively, for each node that a growth shares with others: no more than a tie-breaker."""
LATE = 0.02
"""The same for each move beyond those that a round begins."""
SPREAD = 0.1
"""The same for each node beyond those counted on, of jobs of which it is not known."""
MOST_LOST = 0.95


class Placing:
    """The share of its progress that each job of each plan loses by where it would lie."""

    def __init__(self, problem: Problem, arrays: ChoiceArrays) -> None:
        layout, jobs = problem.layout, len(arrays.length)
        self.arrays, self.pool, self.most_moves = arrays, np.array(problem.pools), layout.most_moves
        self.known = bool(layout.free)
        if not self.known:
            return
        self.spread, self.switch_cost = np.array(problem.spread or [SPREAD] * jobs), layout.switch_cost
        self.nodes = NodeCounts(layout)
        self.needed = -(-arrays.gpus // np.maximum(1, self.nodes.whole[self.pool[arrays.job]]))
        if problem.nodes:
            self.needed = np.array([nodes for row in problem.nodes for nodes in row])
        self._hold(problem)

    def lost(self, people: Array) -> Array:
        """People x jobs, each from 0 to 0.95; moves beyond a round's are charged in `late`."""
        if not self.known:
            return np.zeros(people.shape)
        nodes, shared = self.kept[people], np.zeros(people.shape)
        counts, more, under = self._counts(people), self.more[people], self.under[people]
        order = np.argsort(np.where(more > 0, -self.gain[people], np.inf), axis=1, kind="stable")
        rows = np.arange(len(people))
        for turn in range(int((more > 0).sum(axis=1).max(initial=0))):
            jobs = order[:, turn]
            added, with_others, over = self.nodes.place(counts, self.pool[jobs], more[rows, jobs], under[rows, jobs])
            nodes[rows, jobs] += added
            shared[rows, jobs] = with_others
            under[rows, jobs] |= over
        lost = self.spread * np.maximum(0, nodes - self.needed[people]) + SHARED * shared
        lost += self.switch_cost * np.maximum(0, under.sum(axis=2) - 1)
        return np.minimum(MOST_LOST, np.where(self.arrays.gpus[people] > 0, lost, 0.0))

    def late(self, people: Array) -> Array:
        """What each plan loses by moves that wait for a later round."""
        if not self.most_moves:
            return np.zeros(len(people))
        moves = (people != self.arrays.present).sum(axis=1)
        return LATE * np.maximum(0, moves - self.most_moves) * float(self.arrays.weight.mean())

    def _hold(self, problem: Problem) -> None:
        """Of each choice: nodes and switches kept, GPUs to find a place for, the gain that orders growths, and what it
        frees."""
        arrays, count = self.arrays, len(self.arrays.gpus)
        self.kept, self.more = np.zeros(count, dtype=np.int64), np.zeros(count, dtype=np.int64)
        self.under = np.zeros((count, len(self.nodes.switches)), dtype=bool)
        self.gain = np.zeros(count)
        self.freed: dict[int, list[tuple[int, int]]] = {}
        """By position: (node, GPUs)."""
        held = problem.layout.held or [{}] * len(arrays.length)
        for j, (own, present) in enumerate(zip(held, problem.present, strict=True)):
            first = int(arrays.start[j])
            place = slice(first, first + int(arrays.length[j]))
            gpus, speedup = arrays.gpus[place], arrays.speedup[place]
            now = own.get(max(own, default=0), {})
            before = speedup[(gpus == present) & (speedup > 0)]
            self.kept[place], self.more[place] = len(now), np.maximum(0, gpus - sum(now.values()))
            self.under[place, self.nodes.under(now)] = True
            self.gain[place] = speedup / (before[0] if len(before) else 1.0)
            for size, rest in own.items():
                i = int(gpus.searchsorted(size))
                if i < len(gpus) and gpus[i] == size:
                    self.kept[first + i], self.more[first + i] = len(rest), 0
                    self.under[first + i] = False
                    self.under[first + i, self.nodes.under(rest)] = True
                    self._free(first + i, now, rest)
        self.freeing = np.zeros(count, dtype=bool)
        self.freeing[list(self.freed)] = True

    def _free(self, at: int, now: Mapping[str, int], rest: Mapping[str, int]) -> None:
        """Note what a choice at this position frees."""
        number = self.nodes.node
        given = [(number[name], gpus - rest.get(name, 0)) for name, gpus in now.items() if name in number]
        given = [(node, gpus) for node, gpus in given if gpus > 0]
        if given:
            self.freed[at] = given

    def _counts(self, people: Array) -> Array:
        """The free nodes of each plan, before anything grows."""
        at = zip(*np.nonzero(self.freeing[people]), strict=True)
        freed = ((row, *given) for row, job in at for given in self.freed[int(people[row, job])])
        return self.nodes.counts(len(people), freed)


class Objective:
    """What a search maximises: the sum of the jobs' values, less what placement costs of each one's progress and less
    what is late.

    relative: values are weighted logarithms of progress, so a lost share x costs weight * -ln(1 - x); else they are
    proportional to it.
    """

    def __init__(self, arrays: ChoiceArrays, placing: Placing, relative: bool) -> None:
        self.arrays, self.placing, self.relative = arrays, placing, relative

    def __call__(self, people: Array) -> Array:
        """The worth of each plan, from a matrix of positions."""
        return self.terms(people).sum(axis=1) - self.placing.late(people)

    def terms(self, people: Array) -> Array:
        """Each job's part of it: people x jobs."""
        values, lost = self.arrays.value[people], self.placing.lost(people)
        return values + self.arrays.weight * np.log1p(-lost) if self.relative else values * (1.0 - lost)
