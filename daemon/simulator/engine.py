"""The simulation: events in time order, progress computed only when a rate changes, a decision only when one is due.

Promise: deterministic for a seed; a job pays a pause whenever its training is interrupted.
Limit: nodes are of one kind; a job's speed depends on the nodes that it is spread over, not on its neighbours. Who gets
what is a subclass's to decide.
"""

import heapq
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

from .cluster import Cluster
from .jobs import SimulatedJob, SimulationSettings

ARRIVE, PROGRESS, DECIDE = 0, 1, 9
"""Kinds of events, in the order in which they come at one moment; a subclass's own lie between the last two."""
WATCHED_EVENTS = 100
"""Events between two calls of what watches a simulation."""
Watch = Callable[[int, int], None]
"""Called with the number of jobs that have ended or were dropped, and the number of all jobs."""


def unwatched(done: int, jobs: int) -> None:
    """Where nobody wants to know."""


@dataclass(frozen=True)
class Outcome:
    """What came of it: the jobs, and every change of what a job holds as (time, job id, GPUs, batch)."""

    policy: str
    settings: SimulationSettings
    jobs: list[SimulatedJob]
    changes: list[tuple[float, str, int, int]]
    decisions: int
    events: int
    end_s: float
    fell_back: str = ""
    """How often the policy gave no plan, and why; empty where it always did."""


def speed(job: SimulatedJob, gpus: int, nodes: int, batch: int) -> float:
    """Of its work in a second, where it is now in its training: at this size and batch."""
    if not job.elastic:
        return 1.0
    worth = job.program.efficiency(batch, 1.0 - job.left / job.work + 1e-9) if job.quality else 1.0
    return job.program.throughput(gpus, nodes, batch) * worth


class Simulation(ABC):
    """One policy over one set of jobs."""

    def __init__(self, jobs: list[SimulatedJob], policy: str, settings: SimulationSettings) -> None:
        self.jobs, self.policy, self.settings = jobs, policy, settings
        self.now, self.heap, self.sequence = 0.0, list[tuple[float, int, int, int, int]](), 0
        self.running: dict[int, SimulatedJob] = {}
        self.changes = list[tuple[float, str, int, int]]()
        self.decided_at, self.due, self.decisions, self.events = float("-inf"), float("inf"), 0, 0
        self.done = 0
        self.cluster = Cluster(jobs, settings)
        self.slurm = self.cluster.slurm
        self.handlers: dict[int, Callable[[int, int], None]] = {
            ARRIVE: self._arrive,
            PROGRESS: self._progress,
            DECIDE: self._decision,
        }
        """What happens at an event, by its kind: called with the job and the version that it was announced with."""

    @property
    def waiting(self) -> list[int]:
        """The jobs in the queue, in its order."""
        return [number - 1 for number in self.slurm.queue]

    @abstractmethod
    def _decide(self) -> None:
        """Start, resize and suspend jobs as of now."""

    @property
    def fell_back(self) -> str:
        """How often the policy gave no plan, and why; empty where it always did."""
        return ""

    def _arrived(self) -> None:
        """A job has joined the queue."""
        self._want_decision()

    def run(self, watch: Watch = unwatched) -> Outcome:
        """To the end of the last job; `watch` is told now and then how many of the jobs have left."""
        for i, job in enumerate(self.jobs):
            self._push(job.trace.submit_s, ARRIVE, i, 0)
        while self.heap:
            self.now, kind, _, i, version = heapq.heappop(self.heap)
            self.events += 1
            self.handlers[kind](i, version)
            if self.events % WATCHED_EVENTS == 0:
                watch(self.done, len(self.jobs))
        end = max((job.end_s for job in self.jobs), default=0.0)
        return Outcome(
            self.policy, self.settings, self.jobs, self.changes, self.decisions, self.events, end, self.fell_back
        )

    def _arrive(self, i: int, version: int) -> None:
        self.cluster.submit(i)
        self._arrived()

    def _progress(self, i: int, version: int) -> None:
        """A job has done its work, or comes to another phase of it; nothing where its speed has changed meanwhile."""
        job = self.jobs[i]
        if version != job.version:
            return
        self._advance(job)
        if job.left <= 1e-9 * job.work:
            self._finish(i)
        else:
            self._set_rate(i)

    def _decision(self, i: int, version: int) -> None:
        if self.now == self.due:
            self.due = float("inf")
            self._decide()

    def _push(self, at: float, kind: int, i: int, version: int) -> None:
        self.sequence += 1
        heapq.heappush(self.heap, (at, kind, self.sequence, i, version))

    def _want_decision(self, not_before: float = 0.0) -> None:
        at = max(self.now, self.decided_at + self.settings.interval_s, not_before)
        if at < self.due:  # one that is due later is passed over when its time comes
            self.due = at
            self._push(at, DECIDE, 0, 0)

    # one job

    def _advance(self, job: SimulatedJob) -> None:
        """Bring a job's progress up to now."""
        worked = self.now - max(job.updated, job.resume_at)
        if worked > 0:
            job.left -= job.rate * worked
        job.gpu_seconds += job.held * (self.now - job.updated)
        if job.nodes > -(-job.gpus // self.settings.gpus_per_node):
            job.spread_seconds += job.held * (self.now - job.updated)
        job.updated = self.now

    def _set_rate(self, i: int) -> None:
        """The job's speed from now, and when something next happens to it by itself."""
        job, program = self.jobs[i], self.jobs[i].program
        job.version += 1
        ahead = job.left
        if job.elastic:
            done = 1.0 - job.left / job.work
            job.noise_scale = program.noise_scale(job.batch, done + 1e-9)
            if program.noise is not None and program.phases > 1:
                edge = (int((done + 1e-9) * program.phases) + 1) / program.phases
                ahead = min(ahead, max(1e-12, edge - done) * job.work)
        job.rate = speed(job, job.gpus, job.nodes, job.batch)
        self._push(max(self.now, job.resume_at) + ahead / job.rate, PROGRESS, i, job.version)

    def _finish(self, i: int) -> None:
        job = self.jobs[i]
        job.left, job.end_s, job.gpus, job.held = 0.0, self.now, 0, 0
        job.version += 1
        self.done += 1
        self._left(i)
        if self.running or self.slurm.queue:
            self._want_decision()

    def _left(self, i: int) -> None:
        """A job holds nothing any more."""
        self.cluster.end(i)
        del self.running[i]
        self.changes.append((self.now, self.jobs[i].trace.job_id, 0, 0))

    def _started(self, i: int) -> None:
        """Slurm has started a job, at the size and the batch that it was submitted with."""
        job = self.jobs[i]
        job.nodes = len(self.cluster.held(i))
        job.gpus, job.held, job.batch = job.asked, job.asked, job.asked_batch
        job.updated = job.since = self.now
        job.resume_at = self.now + self.settings.start_s
        if job.start_s < 0:
            job.start_s = self.now
        else:  # it goes on where it was taken off
            job.moves += 1
            job.resume_at += self.settings.pause_s
            job.paused_s += self.settings.pause_s
        self.running[i] = job
        self.changes.append((self.now, job.trace.job_id, job.gpus, job.batch))
        self._set_rate(i)

    def _schedule(self, passing: bool = False) -> None:
        """Slurm starts the jobs that it can; passing: also those behind one whose shape cannot be had."""
        for number in self.slurm.schedule(self.now, passing):
            self._started(number - 1)

    def _drop_the_waiting(self) -> None:
        """In drop mode, turn away those that have not started."""
        for i in self.waiting if self.settings.drop else ():
            self.jobs[i].dropped = True
            self.cluster.end(i)
            self.done += 1

    def _pause(self, i: int, seconds: float | None = None) -> None:
        """seconds: None: as long as for a change of size."""
        job, seconds = self.jobs[i], self.settings.pause_s if seconds is None else seconds
        job.nodes = len(self.cluster.held(i))
        job.moves += 1
        job.resume_at = max(self.now, job.resume_at) + seconds
        job.paused_s += seconds
        job.since = job.resume_at
        self._set_rate(i)
