"""The GPUs of the simulated nodes as Slurm allocates them: which job holds how many on which node. Pure.

Promise: no GPU is held twice; the same calls give the same allocation. Limit: all nodes are of one kind, and cores and
memory never run out before GPUs do. Where a resize adds GPUs is the planner's to say.
"""

from __future__ import annotations


class NodeAllocations:
    """The nodes of a cluster and who holds what on them."""

    def __init__(self, gpus: int, per_node: int) -> None:
        self.per_node = per_node
        self.free = [min(per_node, gpus - start) for start in range(0, gpus, per_node)]
        self.idle = gpus
        self.held: dict[int, dict[int, int]] = {}
        """Job -> node -> GPUs."""
        self.changed = set[int]()
        """Nodes whose free GPUs changed; the reader takes out those that it has looked at."""
        self._with = [set[int]() for _ in range(per_node + 1)]
        for node, free in enumerate(self.free):
            self._with[free].add(node)

    def count(self, job: int) -> int:
        """Nodes that a job sits on."""
        return len(self.held.get(job, ()))

    def start(self, job: int, gpus: int) -> bool:
        """Allocate whole nodes and one remainder, the fullest node that has it; False, and nothing, where none has."""
        if not self.has(gpus):
            return False
        whole, rest = divmod(gpus, self.per_node)
        empty, last = self._with[self.per_node], self._best(rest) if rest else None
        for _ in range(whole):
            self.take(job, min(node for node in empty if node != last), self.per_node)
        if last is not None:
            self.take(job, last, rest)
        return True

    def has(self, gpus: int) -> bool:
        """Whether so many are free as whole nodes and one remainder."""
        whole, rest = divmod(gpus, self.per_node)
        empty = self._with[self.per_node]
        if gpus > self.idle or len(empty) < whole:
            return False
        last = self._best(rest) if rest else None
        return not rest or not (last is None or (last in empty and len(empty) == whole))

    def take(self, job: int, node: int, gpus: int) -> None:
        """Give a job GPUs of a node, which must be free."""
        if gpus > self.free[node]:
            raise ValueError(f"node {node} has {self.free[node]} free GPUs, not {gpus}")
        own = self.held.setdefault(job, {})
        own[node] = own.get(node, 0) + gpus
        self._count(node, -gpus)

    def give(self, job: int, node: int, gpus: int) -> None:
        """Take them back."""
        own = self.held[job]
        own[node] -= gpus
        if not own[node]:
            del own[node]
            if not own:
                del self.held[job]
        self._count(node, gpus)

    def leave(self, job: int) -> None:
        """Take everything back."""
        for node, own in list(self.held.get(job, {}).items()):
            self.give(job, node, own)

    def _best(self, gpus: int) -> int | None:
        """The fullest node with so many free GPUs."""
        return next((min(nodes) for nodes in self._with[gpus:] if nodes), None)

    def _count(self, node: int, more: int) -> None:
        free = self.free[node]
        self._with[free].discard(node)
        self.free[node] = free + more
        self.idle += more
        self._with[free + more].add(node)
        self.changed.add(node)
