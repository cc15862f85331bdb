"""The free nodes that a population of plans has, and how a growth takes them: as the planner places companions.

Nodes are counted by pool, by the leaf switch over them and by how many GPUs are free on them; which is which is not
followed. The largest free shares go first, what is left over goes where it leaves least. Where switches count, a growth
is placed under its job's own ones, or under those and the smallest further one that holds the rest, or under those and
the largest further ones: whichever takes the fewest nodes and further switches together, the first of equals.
Promise: the same growths in the same order take the same nodes. Limit: cores, memory and constraints are not looked at,
nor whether a growth lands on a node that its job is on already.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ..problem import Layout
from .arrays import Array


class NodeCounts:
    """The free nodes of a layout, and counts of them for each plan of a population."""

    def __init__(self, layout: Layout) -> None:
        names = sorted({name for free in layout.free for name in free})
        self.over = layout.switches if layout.switch_cost else {}
        """Node -> switch; empty where switches do not count."""
        held = {name for own in layout.held for where in own.values() for name in where}
        self.switches = {
            name: i for i, name in enumerate(sorted({self.over.get(node, "") for node in {*names, *held}}))
        }
        self.node = {name: number for number, name in enumerate(names)}
        self.whole = np.array(layout.node_gpus)
        self.most = max([*layout.node_gpus, *(gpus for free in layout.free for gpus in free.values()), 1])
        self.free = np.zeros(len(names), dtype=np.int64)
        self.home = np.zeros(len(names), dtype=np.int64)
        """The pool and the switch of each, as one number."""
        for pool, free in enumerate(layout.free):
            for name, gpus in free.items():
                number = self.node[name]
                self.free[number] = gpus
                self.home[number] = pool * len(self.switches) + self.switches[self.over.get(name, "")]

    def under(self, nodes: Iterable[str]) -> list[int]:
        """The switches over these nodes."""
        return [self.switches[self.over.get(name, "")] for name in nodes]

    def counts(self, people: int, freed: Iterable[tuple[int, int, int]]) -> Array:
        """Nodes by free GPUs: pools x switches x (GPUs + 1) x people. `freed`: (plan, node, GPUs given back)."""
        free = np.repeat(self.free[None, :], people, axis=0)
        for row, node, gpus in freed:
            free[row, node] += gpus
        shape = len(self.whole), len(self.switches), self.most + 1, people
        at = (self.home * shape[2] + np.minimum(free, self.most)) * people + np.arange(people)[:, None]
        return np.bincount(at.ravel(), minlength=int(np.prod(shape))).reshape(shape)

    def place(self, counts: Array, pools: Array, more: Array, own: Array) -> tuple[Array, Array, Array]:
        """(nodes, nodes shared with others, switches that they are under) that the further GPUs of one job in each plan
        take; used up in place. `own`, and what is found: people x switches."""
        rows, whole = np.arange(len(more)), self.whole[pools]
        if len(self.switches) == 1:
            only = counts[pools, 0, :, rows]
            taken, best, left, nodes, shared = _filled(only.T, whole, more)
            only -= taken.T
            some = np.flatnonzero(best)
            only[some, best[some]] -= 1
            only[some, best[some] - left[some]] += 1
            counts[pools, 0, :, rows] = only
            return nodes, shared, own
        free = counts[pools, :, :, rows]
        open_to, found = _cheapest(free, whole, more, own)
        used = _spend(free, open_to, own, *found[:3])
        counts[pools, :, :, rows] = free
        return found[3], found[4], used


def _filled(free: Array, whole: Array, more: Array) -> tuple[Array, Array, Array, Array, Array]:
    """Of nodes that one growth of each plan may use, (GPUs + 1) x plans: those taken as they are; the free GPUs of the
    one that takes the rest (0: none), the rest; nodes and shared nodes in all."""
    left, taken = more.copy(), np.zeros_like(free)
    nodes, shared = np.zeros_like(left), np.zeros_like(left)
    for size in np.flatnonzero(free[1:].any(axis=1))[::-1] + 1:
        taken[size] = np.minimum(free[size], left // size)
        left -= taken[size] * size
        nodes += taken[size]
        shared += np.where(size < whole, taken[size], 0)
    fits = (free > taken) & (np.arange(len(free))[:, None] >= left)
    rest = (left > 0) & fits.any(axis=0)
    best = np.where(rest, fits.argmax(axis=0), 0)
    nodes += rest + np.where(rest, 0, left)  # no node has it: counted as one for each GPU
    shared += rest & (best < whole)
    return taken, best, left, nodes, shared


def _cheapest(free: Array, whole: Array, more: Array, own: Array) -> tuple[Array, list[Array]]:
    """The switches under which each plan's growth is placed, people x switches, and what `_filled` finds there."""
    ways, possible = _ways(free @ np.arange(free.shape[2]), more, own)
    people, count, _ = ways.shape
    inside = (ways[:, :, :, None] * free[:, None]).sum(axis=2)
    tried = _filled(inside.reshape(people * count, -1).T, whole.repeat(count), more.repeat(count))
    further = (ways & ~own[:, None]).sum(axis=2)
    best = np.where(possible, tried[3].reshape(people, count) + further, _MANY).argmin(axis=1)
    rows = np.arange(people)
    at = rows * count + best
    return ways[rows, best], [tried[0][:, at].T, *(one[at] for one in tried[1:])]


def _ways(room: Array, more: Array, own: Array) -> tuple[Array, Array]:
    """The three ways to choose switches, people x 3 x switches, and which of them there are. room: free GPUs."""
    rows = np.arange(len(more))
    others = np.where(own, 0, room)
    rest = more - (room - others).sum(axis=1)
    lacks = np.maximum(1, rest)[:, None]
    holds = others >= lacks
    ways, possible = np.repeat(own[:, None], 3, axis=1), np.ones((len(more), 3), dtype=bool)
    ways[rows, 1, np.where(holds, others, _MANY).argmin(axis=1)] = True
    order = np.argsort(-others, axis=1, kind="stable")
    at = rows[:, None], order
    before = others[at]
    ways[:, 2][at] |= (before.cumsum(axis=1) - before < lacks) & (before > 0)
    possible[:, 0], possible[:, 1] = rest <= 0, holds.any(axis=1)
    return ways, possible


def _spend(free: Array, open_to: Array, own: Array, taken: Array, best: Array, left: Array) -> Array:
    """Take nodes from `free` (people x switches x (GPUs + 1)), of the open switches the job's own first; the switches
    that they are under."""
    rows = np.arange(len(best))
    order = np.argsort(~own, axis=1, kind="stable")
    at = rows[:, None], order
    there = free[at] * open_to[at][:, :, None]
    got = np.minimum(there, np.maximum(0, taken[:, None] - (there.cumsum(axis=1) - there)))
    used = np.zeros_like(own)
    used[at] = got.any(axis=2)
    free[at] -= got
    some = np.flatnonzero(best)
    last = (there - got)[some, :, best[some]].astype(bool).argmax(axis=1)
    switch = order[some, last]
    used[some, switch] = True
    free[some, switch, best[some]] -= 1
    free[some, switch, best[some] - left[some]] += 1
    return used


_MANY = 1 << 62
