"""Where simulated jobs sit: GPUs on nodes, given and taken back piece by piece as companions would be. Pure.

Promise: no GPU is held twice; the same calls give the same places. Limit: all nodes are of one kind, and cores and
memory never run out before GPUs do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

Outlook = tuple[tuple[int, ...], int]
Taken = dict[int, int]
"""Node -> GPUs."""


class Places:
    """The nodes of a cluster and who holds what on them."""

    def __init__(self, gpus: int, per_node: int) -> None:
        self.per_node = per_node
        self.free = [min(per_node, gpus - start) for start in range(0, gpus, per_node)]
        self.held: dict[int, Taken] = {}
        self.changed = set[int]()
        """Jobs whose outlook may have changed; the reader takes out those that it has looked at."""
        self._on = [set[int]() for _ in self.free]
        self._with = [set[int]() for _ in range(per_node + 1)]
        for node, free in enumerate(self.free):
            self._with[free].add(node)

    def nodes(self, job: int) -> int:
        """Nodes that a job sits on."""
        return len(self.held.get(job, ()))

    def outlook(self, job: int) -> Outlook:
        """What a job's next sizes depend on: its pieces, the smallest first, and the GPUs free beside them."""
        own = self.held.get(job, {})
        return tuple(sorted(own.values())), sum(map(self.free.__getitem__, own))

    def nodes_at(self, outlook: Outlook, gpus: int) -> int:
        """Nodes that a job with this outlook would sit on at another size, by the rules of `shrink` and `grow`."""
        pieces, beside = outlook
        spare = sum(pieces) - gpus
        if spare <= 0:
            return len(pieces) + max(0, -(-(-spare - beside) // self.per_node))
        left = len(pieces)
        for piece in pieces:
            if piece > spare:
                break
            spare -= piece
            left -= 1
        return left

    def grow(self, job: int, gpus: int) -> None:
        """Add GPUs: on its own nodes, whole nodes, then what fits best; in as many pieces as it takes."""
        for node in sorted(self.held.get(job, ())):
            take = min(self.free[node], gpus)
            if take:
                self._take(job, node, take)
                gpus -= take
        while gpus > 0:
            node = self._node(gpus)
            take = min(self.free[node], gpus)
            self._take(job, node, take)
            gpus -= take

    def shrink(self, job: int, gpus: int) -> None:
        """Give GPUs back: the smallest pieces first."""
        for node, own in sorted(self.held[job].items(), key=lambda item: (item[1], -item[0])):
            give = min(own, gpus)
            self._give(job, node, give)
            gpus -= give
            if not gpus:
                return

    def leave(self, job: int) -> None:
        """Give everything back."""
        for node, own in list(self.held.get(job, {}).items()):
            self._give(job, node, own)

    def start(self, job: int, gpus: int, movable: Callable[[int], bool]) -> list[int] | None:
        """Place a job that needs its shape, whole nodes and one remainder: who had to move over for it.

        `movable` says whose GPUs may be put elsewhere. None: the shape cannot be had, and nothing was changed.
        """
        whole, rest = divmod(gpus, self.per_node)
        needs = [self.per_node] * whole + ([rest] if rest else [])
        chosen = self._shape(needs, ())
        if chosen is None:
            chosen = self._shape(needs, [j for j in self.held if movable(j)])
        if chosen is None:
            return None
        moved = dict[int, int]()
        for node, need in zip(chosen, needs, strict=True):
            for other in sorted((j for j in self.held if movable(j) and node in self.held[j]), reverse=True):
                give = min(self.held[other][node], need - self.free[node])
                if give > 0:
                    self._give(other, node, give)
                    moved[other] = moved.get(other, 0) + give
            self._take(job, node, need)
        for other, lost in sorted(moved.items()):
            self.grow(other, lost)
        return sorted(moved)

    def _shape(self, needs: list[int], movable: Iterable[int]) -> list[int] | None:
        """A node for each need, the least disturbed first, then the fullest; None when there are not enough."""
        able = dict[int, int]()
        for job in movable:
            for node, own in self.held[job].items():
                able[node] = able.get(node, 0) + own
        chosen = list[int]()
        for need in needs:
            fit = [
                (max(0, need - free), free, node)
                for node, free in enumerate(self.free)
                if free + able.get(node, 0) >= need and node not in chosen
            ]
            if not fit:
                return None
            chosen.append(min(fit)[2])
        return chosen

    def _node(self, gpus: int) -> int:
        """Where a piece of at most so many GPUs goes: the fullest node that takes it whole, else the emptiest."""
        for free in range(min(gpus, self.per_node), self.per_node + 1):
            if self._with[free]:
                return min(self._with[free])
        for free in range(min(gpus, self.per_node) - 1, 0, -1):
            if self._with[free]:
                return min(self._with[free])
        raise ValueError(f"{gpus} GPUs are not free")

    def _take(self, job: int, node: int, gpus: int) -> None:
        own = self.held.setdefault(job, {})
        own[node] = own.get(node, 0) + gpus
        self._on[node].add(job)
        self._count(node, -gpus)

    def _give(self, job: int, node: int, gpus: int) -> None:
        own = self.held[job]
        own[node] -= gpus
        if not own[node]:
            del own[node]
            if not own:
                del self.held[job]
        self._count(node, gpus)
        if node not in own:
            self._on[node].discard(job)

    def _count(self, node: int, more: int) -> None:
        free = self.free[node]
        self._with[free].discard(node)
        self.free[node] = free + more
        self._with[free + more].add(node)
        self.changed |= self._on[node]
