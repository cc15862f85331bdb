"""First come, first served, with backfill or without (`static`): what Slurm does by itself. A comparison.

Every job keeps the size that it asked for. When the first in the queue cannot start, those behind it may where they do
not delay it (EASY). Kind to Slurm: run times are known in advance, where Slurm has the users' time limits, and a job
starts the moment it can. Unlike Slurm: no priorities, partitions or limits. Decides at every event.
"""

from __future__ import annotations

from dataclasses import replace

from .engine import Simulation, speed
from .jobs import SimulatedJob, SimulationSettings
from .slurm.free_gpus import FreeGpus

MOST_TRIED = 500
"""Waiting jobs looked at behind the first: Slurm's bf_max_job_test. `static` looks at none."""


class Backfill(Simulation):
    """The simulation under this discipline."""

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
