"""The simulated jobs as Slurm has them, and as the planner sees those: each with its pieces.

Promise: values are made again only where something changed; what a plan keeps, drops and adds is carried out exactly.
Limit: equal nodes, one core for a GPU and no memory; jobs have no time limit and one priority.
"""

from collections.abc import Sequence
from dataclasses import replace

from slurm_elastic.protocol.messages import Piece, Shape
from slurm_elastic.protocol.request import ElasticRequest

from ..capacity.free_gpus import FreeGpus
from ..capacity.roster import ElasticJob, RunningPiece, piece_of
from ..derived.table import Derived, one_by_one
from ..slurm.model import Job as SlurmJob
from ..slurm.model import Node, Snapshot
from .job_states import PackedRequest, RequestInputs, request_of
from .jobs import SimulatedJob, SimulationSettings
from .slurm.controller import Slurm

PARTITION = "main"


class Cluster:
    """Slurm with the simulated jobs. A job's number there is its place in the trace, plus one."""

    def __init__(self, jobs: Sequence[SimulatedJob], settings: SimulationSettings) -> None:
        self.trace, self.per_node = jobs, settings.gpus_per_node
        sizes = [min(self.per_node, settings.gpus - start) for start in range(0, settings.gpus, self.per_node)]
        self.slurm = Slurm(
            Node(f"n{number:05d}", frozenset({"IDLE"}), (PARTITION,), gpus=size, cpus=size)
            for number, size in enumerate(sizes)
        )
        self.elastic: dict[int, ElasticJob] = {}
        """Of the jobs that are shown."""
        self._last = len(jobs)
        self._gpus = settings.gpus
        self._requests = Derived[RequestInputs, RequestInputs, PackedRequest](one_by_one(request_of), room=1 << 12)

    def snapshot(self, now: float) -> Snapshot:
        """What Slurm would say now of what runs and the first of the queue: as many as could run on all GPUs."""
        left, shown = self._gpus, list[int]()
        for number in self.slurm.queue:
            if left <= 0:
                break
            left -= self.trace[number - 1].asked
            parts = self.slurm.components(number)
            shown += parts
            if self.trace[number - 1].elastic and number not in self.elastic:
                base, *components = [self.slurm.waiting[part] for part in parts]
                self.elastic[number] = ElasticJob(base, self._request(number - 1), components=tuple(components))
        return self.slurm.snapshot(now, shown)

    def submit(self, i: int) -> None:
        """A job joins the queue, at the size that it asks for: with whole nodes and a remainder as a heterogeneous
        one."""
        parts = list[SlurmJob]()
        shapes = self._shapes(self.trace[i].asked)
        for offset, (nodes, gpus) in enumerate(shapes):
            self._last += offset > 0
            number = self._last if offset else i + 1
            whole = i + 1 if len(shapes) > 1 else 0
            parts.append(replace(self._slurm_job(i, number, nodes, gpus), het_job_id=whole, het_offset=offset))
        self.slurm.submit(*parts)

    def resubmit(self, i: int, gpus: int) -> None:
        """A waiting job now asks for so many GPUs."""
        self.end(i)
        self.trace[i].asked = gpus
        self.submit(i)

    def places(self, gpus: int, free: FreeGpus | None = None) -> dict[int, int]:
        """How many of so many GPUs a job would get on which node, by its number; empty: there is no room. free: where;
        None: now."""
        shapes = self._shapes(gpus)
        found = (free or self.slurm.gpus).places([(*shape, ()) for shape in shapes]) or []
        return {node: each for nodes, (_, each) in zip(found, shapes, strict=False) for node in nodes}

    def start(self, i: int) -> tuple[Piece, ...]:
        """An elastic job got its GPUs: its pieces."""
        jobs = [self.slurm.running[number] for number in self.slurm.components(i + 1)]
        held = [RunningPiece(one, piece_of(one, "component" if one.het_offset else "base")) for one in jobs]
        self.elastic[i + 1] = ElasticJob(jobs[0], self._request(i), tuple(held), tuple(jobs[1:]))
        return self.elastic[i + 1].pieces

    def numbers(self, i: int) -> list[int]:
        """All that Slurm has of a job: its components and companions."""
        job = self.elastic.get(i + 1)
        return [held.job.job_id for held in job.held] if job and job.held else self.slurm.components(i + 1)

    def held(self, i: int) -> dict[int, int]:
        """The GPUs that a running job holds, by the number of their node."""
        found = dict[int, int]()
        for job in map(self.slurm.running.__getitem__, self.numbers(i)):
            for name in job.nodes:
                place = self.slurm.place[name]
                found[place] = found.get(place, 0) + job.gpus_per_node
        return found

    def end(self, i: int) -> None:
        """A job and its companions are gone."""
        for number in self.numbers(i):
            self.slurm.end(number)
        self.elastic.pop(i + 1, None)

    def grow(self, i: int, shapes: Sequence[Shape], resize_id: int, now: float) -> None:
        """Companions of these shapes start."""
        job, added = self.elastic[i + 1], list[RunningPiece]()
        for shape in shapes:
            self._last += 1
            asked = self._slurm_job(i, self._last, shape.nodes, shape.gpus_per_node)
            self.slurm.submit(replace(asked, required_nodes=shape.node_list), script=False)
            if not self.slurm.start(self._last, now):
                raise ValueError(f"{shape} has no room")
            companion = self.slurm.running[self._last]
            added.append(RunningPiece(companion, piece_of(companion, "companion"), resize_id))
        self.elastic[i + 1] = replace(job, held=(*job.held, *added))

    def keep(self, i: int, pieces: Sequence[Piece]) -> None:
        """A job gives up all but these pieces."""
        job, kept = self.elastic[i + 1], {piece.slurm_job_id: piece for piece in pieces}
        held = list[RunningPiece]()
        for one in job.held:
            number, piece = one.job.job_id, kept.get(one.job.job_id)
            if piece is None:
                self.slurm.end(number)
            elif piece.nodes == one.piece.nodes:
                held.append(one)
            else:
                self.slurm.shrink(number, piece.nodes)
                held.append(replace(one, job=self.slurm.running[number], piece=piece))
        components = tuple(one.job for one in held if one.piece.kind == "component")
        self.elastic[i + 1] = ElasticJob(held[0].job, job.request, tuple(held), components)

    def _shapes(self, gpus: int) -> list[tuple[int, int]]:
        """(nodes, GPUs on each) of whole nodes and of the remainder."""
        whole, rest = divmod(gpus, self.per_node)
        return ([(whole, self.per_node)] if whole else []) + ([(1, rest)] if rest else [])

    def _request(self, i: int) -> ElasticRequest:
        job = self.trace[i]
        asked = job.accepted, job.batches, job.trace.weight, job.quality, job.trace.deadline_s
        return self._requests.each([asked])[0]

    def _slurm_job(self, i: int, number: int, nodes: int, gpus: int) -> SlurmJob:
        """A part of a job, of so many nodes with so many GPUs each, as it waits."""
        row = self.trace[i].trace
        return SlurmJob(
            number, "PENDING", row.user or "simulated", 1, account=row.account, partition=PARTITION,
            reason="Resources", num_nodes=nodes, gpus=nodes * gpus, gpus_per_node=gpus, asked_per_node=gpus,
            cpus=nodes * gpus, submit_time=row.submit_s,
        )  # fmt: skip
