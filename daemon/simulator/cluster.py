"""The simulated cluster as Slurm shows it to the planner: nodes, jobs with their pieces, and the head of the queue.

Promise: values are made again only where something changed; what a plan keeps, drops and adds is carried out exactly.
Limit: one partition of equal nodes, one core for a GPU and no memory; jobs have no time limit and one priority.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slurm_elastic.protocol.messages import Piece, Shape
from slurm_elastic.protocol.request import ElasticRequest

from ..capacity.roster import ElasticJob, RunningPiece, piece_of
from ..capacity.shrink_options import units_of
from ..derived.table import Derived, one_by_one
from ..slurm.model import Job as SlurmJob
from ..slurm.model import Node, Partition, Size, Snapshot
from .job_states import PackedRequest, RequestInputs, request_of
from .jobs import SimulatedJob
from .nodes import NodeAllocations
from .traces.job import TraceJob

PARTITION = "main"


class Cluster:
    """Slurm's records of the simulated jobs. A job's number is its place in the trace, plus one."""

    def __init__(self, jobs: Sequence[SimulatedJob], nodes: NodeAllocations) -> None:
        self.trace, self.allocated = jobs, nodes
        self.names = [f"n{node:05d}" for node in range(len(nodes.free))]
        self.sizes = list(nodes.free)
        self.place = {name: node for node, name in enumerate(self.names)}
        self.nodes = {name: _node(name, size, 0) for name, size in zip(self.names, self.sizes, strict=True)}
        self.jobs: dict[int, SlurmJob] = {}
        self.elastic: dict[int, ElasticJob] = {}
        self._parts: dict[int, list[_Part]] = {}
        """Of each job that waits or runs: its components, or it alone."""
        self._last = len(jobs)
        self._requests = Derived[RequestInputs, RequestInputs, PackedRequest](one_by_one(request_of), room=1 << 12)

    def snapshot(self, now: float) -> Snapshot:
        """What Slurm would say now."""
        for node in self.allocated.changed:
            name, used = self.names[node], self.sizes[node] - self.allocated.free[node]
            self.nodes[name] = _node(name, self.sizes[node], used)
        self.allocated.changed.clear()
        return Snapshot(now, self.jobs, self.nodes, _PARTITIONS)

    def queue(self, waiting: Sequence[int]) -> None:
        """Show the first of the queue: as many as could run on all of the cluster's GPUs."""
        left = sum(node.gpus for node in self.nodes.values())
        for i in waiting:
            if left <= 0:
                return
            left -= self.trace[i].asked
            if i + 1 not in self.jobs:
                self._submit(i)

    def asks(self, i: int) -> Size:
        """What a waiting job asks for, of one shape."""
        ((_, nodes, gpus, _),) = self._parts_of(i)
        return Size(nodes, gpus)

    def resubmit(self, i: int, gpus: int) -> None:
        """A waiting job now asks for so many GPUs."""
        self.end(i)
        self.trace[i].asked = gpus
        self._submit(i)

    def start(self, i: int) -> tuple[Piece, ...]:
        """A job got its GPUs: its pieces. A remainder beside whole nodes is a component of a heterogeneous job."""
        held = self.allocated.held[i]
        most = max(held.values())
        shares = [[node for node, gpus in held.items() if gpus == most], [n for n, gpus in held.items() if gpus < most]]
        running = list[RunningPiece]()
        for (number, nodes, gpus, het), places in zip(self._parts_of(i), shares, strict=False):
            names = tuple([self.names[node] for node in sorted(places)])
            job = _slurm_job(number, nodes, gpus, self.trace[i].trace, names, names[0], het)
            self.jobs[number] = job
            running.append(RunningPiece(job, piece_of(job, "component" if running else "base")))
        if self.trace[i].elastic:
            components = tuple([one.job for one in running[1:]])
            self.elastic[i + 1] = ElasticJob(running[0].job, self._request(i), tuple(running), components)
        return tuple([one.piece for one in running])

    def end(self, i: int) -> None:
        """A job and its companions are gone; nothing to do for one that the queue never showed."""
        job = self.elastic.pop(i + 1, None)
        for number in {
            *(part[0] for part in self._parts.pop(i, ())),
            *(held.job.job_id for held in (job.held if job else ())),
        }:
            self.jobs.pop(number, None)

    def grow(self, i: int, shapes: Sequence[Shape], resize_id: int) -> tuple[Piece, ...]:
        """Companions of these shapes start: all the pieces that the job then holds."""
        job, added = self.elastic[i + 1], []
        for shape in shapes:
            self._last += 1
            names = shape.node_list
            companion = _slurm_job(self._last, shape.nodes, shape.gpus_per_node, self.trace[i].trace, names)
            self.jobs[self._last] = companion
            added.append(RunningPiece(companion, piece_of(companion, "companion"), resize_id))
            for name in shape.node_list:
                self.allocated.take(i, self.place[name], shape.gpus_per_node)
        self.elastic[i + 1] = ElasticJob(job.base, job.request, (*job.held, *added), job.components)
        return self.elastic[i + 1].pieces

    def keep(self, i: int, pieces: Sequence[Piece]) -> None:
        """A job gives up all but these pieces."""
        job = self.elastic[i + 1]
        if pieces == job.pieces:
            return
        kept = {piece.slurm_job_id: piece for piece in pieces}
        for number, name in units_of(job.pieces) - units_of(pieces):
            self.allocated.give(i, self.place[name], self.jobs[number].gpus_per_node)
        held = []
        for one in job.held:
            piece = kept.get(one.job.job_id)
            if piece is None:
                del self.jobs[one.job.job_id]
            elif piece.nodes == one.piece.nodes:
                held.append(one)
            else:
                less = replace(one.job, nodes=piece.nodes, num_nodes=len(piece.nodes), gpus=piece.gpus, cpus=piece.gpus)
                self.jobs[less.job_id] = less
                held.append(replace(one, job=less, piece=piece))
        components = tuple(one.job for one in held if one.piece.kind == "component")
        self.elastic[i + 1] = ElasticJob(held[0].job, job.request, tuple(held), components)

    def _submit(self, i: int) -> None:
        job = self.trace[i]
        made = [_slurm_job(n, nodes, gpus, job.trace, het=het) for n, nodes, gpus, het in self._parts_of(i)]
        self.jobs.update((one.job_id, one) for one in made)
        if job.elastic:
            self.elastic[i + 1] = ElasticJob(made[0], self._request(i), components=tuple(made[1:]))

    def _parts_of(self, i: int) -> list[_Part]:
        known = self._parts.get(i)
        if known is None:
            whole, rest = divmod(self.trace[i].asked, self.allocated.per_node)
            shapes = ([(whole, self.allocated.per_node)] if whole else []) + ([(1, rest)] if rest else [])
            known = self._parts[i] = []
            for offset, (nodes, gpus) in enumerate(shapes):
                self._last += offset > 0
                het = (i + 1 if len(shapes) > 1 else 0), offset
                known.append((self._last if offset else i + 1, nodes, gpus, het))
        return known

    def _request(self, i: int) -> ElasticRequest:
        job = self.trace[i]
        return self._requests.each([(job.accepted, job.batches, job.trace.weight, job.quality)])[0]


_Part = tuple[int, int, int, tuple[int, int]]
"""Slurm job id, nodes, GPUs on each, (id of the heterogeneous job that it is a component of or 0, its place there)."""


def _slurm_job(
    number: int, nodes: int, gpus: int, row: TraceJob,
    names: tuple[str, ...] = (), batch_host: str = "", het: tuple[int, int] = (0, 0),
) -> SlurmJob:  # fmt: skip
    """A part of a job of the trace, of so many nodes with so many GPUs each: it runs on the nodes named, or waits."""
    return SlurmJob(
        number, "RUNNING" if names else "PENDING", row.user or "simulated", 1, account=row.account, partition=PARTITION,
        reason="" if names else "Resources", nodes=names, batch_host=batch_host, num_nodes=nodes, gpus=nodes * gpus,
        gpus_per_node=gpus, asked_per_node=gpus, cpus=nodes * gpus, het_job_id=het[0], het_offset=het[1],
        submit_time=row.submit_s,
    )  # fmt: skip


def _node(name: str, gpus: int, used: int) -> Node:
    return Node(name, _USABLE, (PARTITION,), gpus=gpus, gpus_used=used, cpus=gpus, cpus_used=used)


_USABLE = frozenset({"MIXED"})
_PARTITIONS = {PARTITION: Partition(PARTITION)}
