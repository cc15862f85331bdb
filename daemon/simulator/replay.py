"""A trace replayed under one policy, or under what Slurm does by itself: first come, first served, with backfill or
without (`static`), which the policies are compared with.

Promise: the same trace, settings and seed give the same outcome, with every assumption in words.
Limit: one policy at a time; what the simulation leaves out is said in `engine`.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from ..capacity.free_gpus import FreeGpus
from ..optimizer.policies import POLICIES
from .elastic import Elastic
from .engine import Outcome, Simulation, Watch, speed, unwatched
from .jobs import SimulatedJob, SimulationSettings, prepare
from .metrics import BACKFILL, RECORDED
from .programs import BatchLadder, Program, rigid
from .traces.formats import TraceJob


def simulate(
    trace: Sequence[TraceJob],
    programs: dict[str, Program],
    policy: str,
    settings: SimulationSettings,
    declared: str = "",
    watch: Watch = unwatched,
) -> tuple[Outcome, list[str]]:
    """(outcome, assumptions) of one policy over a trace; `watch` is told how far it is."""
    if policy not in (*POLICIES, BACKFILL):
        raise ValueError(policy)
    jobs, assumptions = prepare(trace, programs, settings, declared)
    if policy in (BACKFILL, "static"):
        return Backfill(jobs, policy, settings).run(watch), assumptions
    return Elastic(jobs, policy, settings).run(watch), assumptions


def recorded(trace: Sequence[TraceJob], settings: SimulationSettings) -> Outcome | None:
    """What the trace itself says came of it; None where it does not say for every job when it started."""
    if any(row.wait_s < 0 or not row.duration_s for row in trace):
        return None
    jobs, changes, program, batches = (
        list[SimulatedJob](),
        list[tuple[float, str, int, int]](),
        rigid(),
        BatchLadder(1, 1),
    )
    for row in trace:
        job = SimulatedJob(row, program, ((row.gpus, 1),), batches, row.duration_s, False, False, row.gpus)
        job.start_s = row.submit_s + row.wait_s
        job.end_s = job.start_s + row.duration_s
        job.gpu_seconds = row.gpus * row.duration_s
        jobs.append(job)
        changes += [(job.start_s, row.job_id, row.gpus, row.batch), (job.end_s, row.job_id, 0, 0)]
    # What one gives back, the next takes at the same moment.
    changes.sort(key=lambda change: (change[0], change[2] > 0))
    return Outcome(RECORDED, settings, jobs, changes, 0, len(changes), max(job.end_s for job in jobs))


def misfit(trace: Sequence[TraceJob], settings: SimulationSettings) -> str:
    """Why the jobs look like those of another cluster, in a sentence; empty: they do not."""
    known, gpus = [row for row in trace if row.wait_s >= 0], settings.gpus
    starts = [(row.submit_s + row.wait_s, row.gpus) for row in known]
    # sacct knows whole seconds: what one gives back another has taken at once.
    ends = [(row.submit_s + row.wait_s + max(row.duration_s - 2.0, row.duration_s / 2), -row.gpus) for row in known]
    most = max(accumulate(held for _, held in sorted(starts + ends)), default=0)
    larger = sum(row.gpus > gpus for row in trace)
    if larger:
        why = f"{larger} of the jobs held more GPUs"
    elif most > gpus or (len(known) == len(trace) and 2 * most < gpus):
        why = f"the jobs held {most} GPUs at once at most, as recorded"
    else:
        return ""
    return f"THIS CLUSTER, OF {gpus} GPUs, DOES NOT LOOK LIKE THAT OF THE JOBS: {why} (is --cluster right?)"


MOST_TRIED = 500
"""Waiting jobs looked at behind the first: Slurm's bf_max_job_test. `static` looks at none."""


class Backfill(Simulation):
    """First come, first served, with backfill or without (`static`). Every job keeps the size that it asked for; when
    the first in the queue cannot start, those behind it may where they do not delay it (EASY). Kind to Slurm: run times
    are known in advance, and a job starts the moment it can; there are no priorities, partitions or limits."""

    def __init__(self, jobs: list[SimulatedJob], policy: str, settings: SimulationSettings) -> None:
        super().__init__(jobs, policy, replace(settings, interval_s=0.0))
        self.tried = MOST_TRIED if policy == "backfill" else 0

    def _decide(self) -> None:
        self.decisions += 1
        self.decided_at = self.now
        self._schedule()
        self._drop_the_waiting()
        if len(self.slurm.queue) < 2 or not self.slurm.gpus.idle or not self.tried:
            return
        first, *behind = [number - 1 for number in self.slurm.queue[: self.tried + 1]]
        at, free = self._reserved(first)
        for i in behind:
            if self.jobs[i].asked <= self.slurm.gpus.idle:
                self._beside(first, i, at, free)

    def _reserved(self, first: int) -> tuple[float, FreeGpus]:
        """(when the first of the queue can start, the GPUs that are free then)."""
        free = self.slurm.gpus.copy()
        for ends, i in sorted((self._ends(job), i) for i, job in self.running.items()):
            for node, gpus in self.cluster.held(i).items():
                free.take([node], -gpus)
            if self.cluster.places(self.jobs[first].asked, free):
                return ends, free
        return self.now, free

    def _ends(self, job: SimulatedJob) -> float:
        return max(job.updated, job.resume_at) + job.left / job.rate

    def _beside(self, first: int, i: int, at: float, free: FreeGpus) -> None:
        """Start a job where that does not delay the first one; `free`, at that time, is kept up to date."""
        job, held = self.jobs[i], self.cluster.places(self.jobs[i].asked)
        if not held:
            return
        if self.now + self.settings.start_s + job.left / speed(job, job.asked, len(held), job.asked_batch) > at:
            for node, gpus in held.items():
                free.take([node], gpus)
            if not self.cluster.places(self.jobs[first].asked, free):
                for node, gpus in held.items():
                    free.take([node], -gpus)
                return
        self.slurm.start(i + 1, self.now)
        self._started(i)
