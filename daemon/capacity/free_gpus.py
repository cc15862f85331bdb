"""The free GPUs of nodes, and where jobs would start on them. Pure.

Promise: no GPU is given twice; the same calls give the same places. Limit: cores and memory never run out before GPUs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from copy import copy
from heapq import nsmallest

Part = tuple[int, int, Sequence[int]]
"""What a job, or a component of one, asks for: nodes, GPUs on each, and the nodes that must be among them."""


class FreeGpus:
    """Free GPUs node by node; nodes are numbered from 0."""

    def __init__(self, sizes: Iterable[int]) -> None:
        self.free = list(sizes)
        self.idle = sum(self.free)
        self._with = [set[int]() for _ in range(max(self.free, default=0) + 1)]
        for node, free in enumerate(self.free):
            self._with[free].add(node)

    def copy(self) -> FreeGpus:
        other = copy(self)
        other.free, other._with = list(self.free), [set(nodes) for nodes in self._with]
        return other

    def places(self, parts: Sequence[Part], shut: Collection[int] = ()) -> list[list[int]] | None:
        """The nodes of each part, all of which start together on nodes that are not `shut`; None: there is no room.

        Smaller parts are placed first, each on the fullest nodes with room for it, the lowest of these.
        """
        if sum(nodes * gpus for nodes, gpus, _ in parts) > self.idle:
            return None
        found = dict[int, list[int]]()
        for number in sorted(range(len(parts)), key=lambda number: parts[number][1]):
            here = self._fullest(*parts[number], shut)
            if here is None:
                break
            found[number] = here
            self.take(here, parts[number][1])
        for number, here in found.items():
            self.take(here, -parts[number][1])
        return [found[number] for number in range(len(parts))] if len(found) == len(parts) else None

    def take(self, nodes: Iterable[int], gpus: int) -> None:
        """Take so many GPUs of each of these nodes, which must be free; below 0: give them back."""
        for node in nodes:
            free = self.free[node] - gpus
            if free < 0:
                raise ValueError(f"node {node} has {self.free[node]} free GPUs, not {gpus}")
            self._with[self.free[node]].discard(node)
            self._with[free].add(node)
            self.free[node] = free
            self.idle -= gpus

    def _fullest(self, nodes: int, gpus: int, required: Sequence[int], shut: Collection[int]) -> list[int] | None:
        found = list(required[:nodes])
        if any(self.free[node] < gpus or node in shut for node in found):
            return None
        for alike in self._with[gpus:]:
            if len(found) == nodes:
                break
            found += nsmallest(nodes - len(found), alike.difference(shut, found) if shut or found else alike)
        return sorted(found) if len(found) == nodes else None
