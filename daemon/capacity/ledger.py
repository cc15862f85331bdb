"""What is free on every usable node: GPUs, cores and memory, and what is about to become free. Pure.

Promise: only nodes that Slurm would schedule on now are in it; drained, down, reserved ones never are. A GPU that a
running job holds is not free, whatever the node's own record says.
Limit: knows amounts, not which GPU or core; whether Slurm's own rules accept a placement is Slurm's to say.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge
from itertools import chain

from slurm_elastic.protocol.records import record

from ..slurm.model import Job, Node, Snapshot


@record(frozen=True, slots=True)
class Amount:
    """Resources on one node."""

    gpus: int = 0
    cpus: int = 0
    mem_mb: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(self.gpus + other.gpus, self.cpus + other.cpus, self.mem_mb + other.mem_mb)

    def __sub__(self, other: Amount) -> Amount:
        return Amount(self.gpus - other.gpus, self.cpus - other.cpus, self.mem_mb - other.mem_mb)

    def times(self, count: int) -> Amount:
        return Amount(self.gpus * count, self.cpus * count, self.mem_mb * count)

    def covers(self, need: Amount) -> bool:
        """Whether each resource is enough. A need of 0 is met whatever is there: the site may not count it."""
        return (
            (not need.gpus or self.gpus >= need.gpus)
            and (not need.cpus or self.cpus >= need.cpus)
            and (not need.mem_mb or self.mem_mb >= need.mem_mb)
        )


@lru_cache(maxsize=1 << 12)
def amount_of(gpus: int, cpus: int, mem_mb: int) -> Amount:
    """The same object for equal ones: nodes and jobs have a few, and each is asked for in every round."""
    return Amount(gpus, cpus, mem_mb)


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes whose GPUs can be given to the same jobs: one GPU type, and partitions that share nodes."""

    name: str
    gpu_type: str
    partitions: frozenset[str]
    nodes: frozenset[str]


class IdleNodes:
    """Nodes by their free amount, those of one amount in the order of their names: placing a growth then costs what it
    takes, whatever the cluster's size. It knows only the changes that `put` gives it."""

    def __init__(self, nodes: Iterable[tuple[str, Amount]]) -> None:
        self._amount = dict(nodes)
        self._names: dict[Amount, list[str]] = {}
        for name in sorted(self._amount):
            self._names.setdefault(self._amount[name], []).append(name)

    @property
    def amounts(self) -> Collection[Amount]:
        """Every amount that is free on some node."""
        return self._names.keys()

    def put(self, name: str, amount: Amount | None) -> None:
        """What is free on the node has changed; None: nothing is, it leaves."""
        before = self._amount.pop(name, None)
        if before is not None:
            names = self._names[before]
            del names[bisect_left(names, name)]
            if not names:
                del self._names[before]
        if amount is not None:
            self._amount[name] = amount
            insort(self._names.setdefault(amount, []), name)

    def of(self, amounts: Collection[Amount], near: Collection[str] = ()) -> Iterator[str]:
        """The nodes with one of these amounts free: those of `near` first, each by name. Lazy: few are asked for."""
        lists = [self._names[amount] for amount in amounts]
        others = merge(*lists) if len(lists) > 1 else iter(lists[0])
        if not near:
            return others
        first = sorted(name for name in near if self._amount.get(name) in amounts)
        return chain(first, (name for name in others if name not in near))


class Ledger:
    """Free amounts by node, `now` and `soon` (held by something that is being released). Copy it before trying."""

    def __init__(self, now: Mapping[str, Amount], soon: Mapping[str, Amount] | None = None) -> None:
        self.now = dict(now)
        self.soon = dict(soon or {})
        self._idle_nodes: dict[tuple[frozenset[str], bool], tuple[IdleNodes, int]] = {}
        """By set of nodes, with how many of the changes are in it."""
        self._changes: list[str] = []
        """Every node of which something was taken or released, in that order."""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Ledger:
        """A GPU is in use where either listing says so: jobs and nodes are read one after the other."""
        now = {name: free(node) for name, node in snapshot.nodes.items() if node.schedulable}
        for name, gpus in held_but_idle(snapshot).items():
            if name in now:
                now[name] = amount_of(max(0, now[name].gpus - gpus), now[name].cpus, now[name].mem_mb)
        return cls(now)

    def copy(self) -> Ledger:
        return Ledger(self.now, self.soon)

    def usable(self, node: str) -> bool:
        return node in self.now

    def total(self, node: str) -> Amount:
        """Free now or soon."""
        later = self.soon.get(node)
        return self.now[node] if later is None else self.now[node] + later

    def idle_nodes(self, nodes: Iterable[str], soon: bool) -> IdleNodes:
        """Those of the nodes that have a GPU free, or will have, by amount. Made once for a set of nodes that is asked
        for again and again; of what `take` and `release` changed since then it only catches up."""
        key = frozenset(nodes), soon
        if key not in self._idle_nodes:
            free = ((name, self._idle(name, soon)) for name in key[0] if name in self.now)
            made = IdleNodes((name, amount) for name, amount in free if amount is not None)
            self._idle_nodes[key] = made, len(self._changes)
        found, seen = self._idle_nodes[key]
        if seen < len(self._changes):
            for name in set(self._changes[seen:]) & key[0]:
                found.put(name, self._idle(name, soon))
            self._idle_nodes[key] = found, len(self._changes)
        return found

    def _idle(self, node: str, soon: bool) -> Amount | None:
        amount = self.total(node) if soon else self.now[node]
        return amount if amount.gpus > 0 else None

    def take(self, node: str, amount: Amount) -> None:
        """Count `amount` as used: what is free now first, then what will be."""
        self._changes.append(node)
        now = self.now[node]
        if now.gpus >= amount.gpus and now.cpus >= amount.cpus and now.mem_mb >= amount.mem_mb:
            self.now[node] = now - amount
            return
        first = Amount(min(now.gpus, amount.gpus), min(now.cpus, amount.cpus), min(now.mem_mb, amount.mem_mb))
        self.now[node] = now - first
        self.soon[node] = self.soon.get(node, Amount()) - (amount - first)

    def release(self, node: str, amount: Amount) -> None:
        """Count `amount` as free soon. A node that takes no work gives nothing back."""
        if node in self.now:
            self._changes.append(node)
            self.soon[node] = self.soon.get(node, Amount()) + amount

    def gpus(self, nodes: Iterable[str], soon: bool = True) -> int:
        usable = [node for node in nodes if node in self.now]
        # What is taken twice of one node is not missing on another.
        return sum([max(0, (self.total(node) if soon else self.now[node]).gpus) for node in usable])


def held_but_idle(snapshot: Snapshot) -> dict[str, int]:
    """GPUs that the listing of jobs says a running job holds, and that of nodes says are not in use, by node: Slurm
    contradicts itself there, or a job has ended between the two."""
    held: dict[str, int] = {}
    for job in snapshot.jobs.values():
        for name in job.nodes if job.running and job.gpus_per_node else ():
            held[name] = held.get(name, 0) + job.gpus_per_node
    nodes = snapshot.nodes
    return {
        name: gpus - nodes[name].gpus_used
        for name, gpus in held.items()
        if name in nodes and gpus > nodes[name].gpus_used
    }


def free(node: Node) -> Amount:
    """What is unused on a node; never negative, whatever Slurm reports."""
    gpus, cpus, mem_mb = node.gpus - node.gpus_used, node.cpus - node.cpus_used, node.mem_mb - node.mem_alloc_mb
    return amount_of(gpus if gpus > 0 else 0, cpus if cpus > 0 else 0, mem_mb if mem_mb > 0 else 0)


def per_node(job: Job) -> Amount:
    """What a job asks for, or holds, on each of its nodes; uneven shares are rounded up."""
    nodes = max(1, len(job.nodes) or job.num_nodes)
    gpus = job.gpus_per_node or -(-job.gpus // nodes)
    return amount_of(gpus, -(-job.cpus // nodes), job.mem_mb)


def pools(snapshot: Snapshot) -> tuple[Pool, ...]:
    """The pools of a cluster, by name. Partitions that share a node with GPUs of one type are one pool."""
    kinds: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for node in snapshot.nodes.values():
        if node.gpus:
            kinds.setdefault((node.gpu_type, node.partitions), []).append(node.name)
    found: list[Pool] = []
    for (gpu_type, partitions), names in kinds.items():
        pool = Pool("", gpu_type, frozenset(partitions), frozenset(names))
        same = [p for p in found if p.gpu_type == gpu_type and p.partitions & pool.partitions]
        found = [p for p in found if p not in same]
        for other in same:
            pool = Pool("", gpu_type, pool.partitions | other.partitions, pool.nodes | other.nodes)
        found.append(pool)
    named = [
        Pool(f"{'+'.join(sorted(p.partitions))}/{p.gpu_type or 'gpu'}", p.gpu_type, p.partitions, p.nodes)
        for p in found
    ]
    return tuple(sorted(named, key=lambda pool: pool.name))


def pool_of(found: Iterable[Pool], job: Job) -> Pool | None:
    """The pool that a job draws on: that of the nodes it holds, else the first of its partition with its GPU type."""
    for pool in found:
        if not pool.nodes.isdisjoint(job.nodes):
            return pool
    mine = set(job.partition.split(","))
    for pool in found:
        if mine & pool.partitions and (not job.gpu_type or job.gpu_type == pool.gpu_type):
            return pool
    return None
