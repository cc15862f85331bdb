"""The controller of a Slurm in memory: nodes, the queue, and which job holds what.

Promise: jobs start, shrink and end as in the contract tests, on whole GPUs, heterogeneous ones with all their
components at once. Limit: one partition, and nobody has priority; time limits, memory and cores are recorded and have
no effect; who calls decides when a job ends and when the queue is looked at.
"""

from bisect import insort
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from ...capacity.free_gpus import FreeGpus
from ...slurm.model import Job, Node, Partition, Snapshot

LATER = "JobHeld", "Dependency"
"""How the reasons of jobs begin that others pass."""


class Slurm:
    """The cluster. Jobs are told apart by their ids, heterogeneous ones by the id of their first component."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.nodes = {node.name: node for node in nodes}
        self.waiting: dict[int, Job] = {}
        self.running: dict[int, Job] = {}
        self.queue: list[int] = []
        """The jobs that wait, in the order of submission."""
        self.reservations: dict[str, tuple[str, ...]] = {}
        """Nodes on which only jobs in that reservation start."""
        self.gpus = FreeGpus(node.gpus for node in self.nodes.values())
        self._names = list(self.nodes)
        self.place = {name: number for number, name in enumerate(self._names)}
        """Nodes by number, as `gpus` has them."""
        self._unusable = set[int]()
        self._states = [node.flags for node in self.nodes.values()]
        self._cpus = [0] * len(self.nodes)
        self._changed = set[int]()
        self._components: dict[int, list[int]] = {}
        self._scriptless = set[int]()
        self._partitions = {name: Partition(name) for node in self.nodes.values() for name in node.partitions}

    def get(self, job_id: int) -> Job | None:
        """The job's record; None: it has ended, or never was."""
        return self.running.get(job_id) or self.waiting.get(job_id)

    def components(self, job_id: int) -> list[int]:
        """Of a heterogeneous job by its first component's id; else the job alone."""
        return [one for one in self._components.get(job_id, (job_id,)) if self.get(one)]

    def snapshot(self, at: float, waiting: Iterable[int] | None = None) -> Snapshot:
        """What it says at this time, of jobs that wait those given alone; None: of all."""
        for number in self._changed:
            self._look_at(number)
        self._changed.clear()
        shown = {one: self.waiting[one] for one in (self.waiting if waiting is None else waiting)}
        return Snapshot(at, {**self.running, **shown}, dict(self.nodes), self._partitions)

    def submit(self, *components: Job, script: bool = True) -> None:
        """A job that waits joins the queue; several: a heterogeneous one. Without a script it may give up any node."""
        self.waiting.update((one.job_id, one) for one in components)
        if len(components) > 1:
            self._components[components[0].job_id] = [one.job_id for one in components]
        if not script:
            self._scriptless.update(one.job_id for one in components)
        insort(self.queue, components[0].job_id, key=lambda job_id: (self.waiting[job_id].submit_time, job_id))

    def change(self, job_id: int, **fields: object) -> None:
        jobs = self.running if job_id in self.running else self.waiting
        jobs[job_id] = replace(jobs[job_id], **fields)  # type: ignore[arg-type]

    def schedule(self, at: float, passing: bool = False) -> list[int]:
        """Start the jobs that can be, in the order of the queue: those that did. passing: also those behind others
        that cannot."""
        started = list[int]()
        for job_id in self.queue:
            if passing and self.waiting[job_id].gpus > self.gpus.idle:
                continue
            parts = [self.waiting[one] for one in self.components(job_id)]
            if any(one.reason.startswith(LATER) or one.eligible_time > at for one in parts):
                continue
            if self._start(job_id, at):
                started.append(job_id)
            elif not passing:
                break
        if started:
            gone = set(started)
            self.queue = [job_id for job_id in self.queue if job_id not in gone]
        return started

    def start(self, job_id: int, at: float) -> bool:
        """Start one job of the queue; False, and nothing, where it has no room."""
        if not self._start(job_id, at):
            return False
        self.queue.remove(job_id)
        return True

    def shrink(self, job_id: int, nodes: Collection[str]) -> None:
        """A running job keeps these of its nodes alone."""
        job = self.running[job_id]
        kept = tuple([name for name in job.nodes if name in nodes])
        self._hold(job, [name for name in job.nodes if name not in nodes], -1)
        each = job.cpus // job.num_nodes
        self.change(job_id, nodes=kept, num_nodes=len(kept), gpus=len(kept) * job.gpus_per_node, cpus=len(kept) * each)

    def end(self, job_id: int) -> None:
        """A job that waits or runs is over, with all its components; one later component by itself."""
        for one in self.components(job_id):
            job = self.running.pop(one, None)
            if job is not None:
                self._hold(job, job.nodes, -1)
            elif self.waiting.pop(one) and one in self.queue:
                self.queue.remove(one)
            self._scriptless.discard(one)
        self._components.pop(job_id, None)

    def set_state(self, name: str, flags: frozenset[str]) -> None:
        """A node's state and flags, but for what its jobs make of it."""
        number = self.place[name]
        self._states[number] = flags
        self._look_at(number)
        (self._unusable.discard if self.nodes[name].schedulable else self._unusable.add)(number)

    def _start(self, job_id: int, at: float) -> bool:
        parts = [self.waiting[one] for one in self.components(job_id)]
        wanted = [(one.num_nodes, one.gpus_per_node, [self.place[n] for n in one.required_nodes]) for one in parts]
        places = self.gpus.places(wanted, self._shut(parts[0].reservation))
        if places is None:
            return False
        for job, numbers in zip(parts, places, strict=True):
            here = tuple([self._names[number] for number in numbers])
            host = "" if job.job_id in self._scriptless else here[0]
            kind = self.nodes[here[0]].gpu_type if job.gpus else ""
            del self.waiting[job.job_id]
            self.running[job.job_id] = replace(
                job, state="RUNNING", reason="", nodes=here, batch_host=host, gpu_type=kind, start_time=at
            )
            self._hold(job, here, 1)
        return True

    def _shut(self, reservation: str) -> Collection[int]:
        """Nodes on which no job in this reservation starts ("": in none)."""
        if not self.reservations:
            return self._unusable
        others = [nodes for name, nodes in self.reservations.items() if name != reservation]
        return self._unusable.union(self.place[node] for nodes in others for node in nodes)

    def _hold(self, job: Job, names: Sequence[str], times: int) -> None:
        """A job takes nodes, or gives them back (-1)."""
        numbers = [self.place[name] for name in names]
        self.gpus.take(numbers, times * job.gpus_per_node)
        for number in numbers:
            self._cpus[number] += times * (job.cpus // job.num_nodes)
        self._changed.update(numbers)

    def _look_at(self, number: int) -> None:
        node, cpus = self.nodes[self._names[number]], self._cpus[number]
        flags = self._states[number] - {"IDLE"} | {"MIXED"} if cpus else self._states[number]
        used = node.gpus - self.gpus.free[number]
        self.nodes[node.name] = replace(node, flags=flags, gpus_used=used, cpus_used=cpus)
