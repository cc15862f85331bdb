"""First come, first served, with backfill or without (`static`): what Slurm does by itself. A comparison.

Every job keeps the size that it asked for. When the first in the queue cannot start, those behind it may where they do
not delay it (EASY). Kind to Slurm: run times are known in advance, where Slurm has the users' time limits, and a job
starts the moment it can. Unlike Slurm: no priorities, partitions or limits. Decides at every event.
"""

from __future__ import annotations

from dataclasses import replace

from .engine import Simulation
from .jobs import SimulatedJob, SimulationSettings

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
        self._start_in_order()
        self._drop_the_waiting()
        if len(self.waiting) < 2 or not self.nodes.idle or not self.tried:
            return
        at, free = self._reserved(self.waiting[0])
        for i in self.waiting[1 : self.tried + 1]:
            if self.jobs[i].asked <= self.nodes.idle and self._beside(i, at, free):
                self.waiting.remove(i)

    def _reserved(self, first: int) -> tuple[float, list[int]]:
        """(when the first of the queue can start, GPUs then free on each node)."""
        free = list(self.nodes.free)
        for ends, i in sorted((self._ends(job), i) for i, job in self.running.items()):
            for node, gpus in self.nodes.held[i].items():
                free[node] += gpus
            if self._fits(self.jobs[first].asked, free):
                return ends, free
        return self.now, free

    def _ends(self, job: SimulatedJob) -> float:
        return max(job.updated, job.resume_at) + job.left / job.rate

    def _fits(self, gpus: int, free: list[int]) -> bool:
        whole, rest = divmod(gpus, self.settings.gpus_per_node)
        empty = sum(1 for room in free if room == self.settings.gpus_per_node)
        some = sum(1 for room in free if room >= rest) if rest else whole
        return empty >= whole and some >= whole + bool(rest)

    def _beside(self, i: int, at: float, free: list[int]) -> bool:
        """Start a job where that does not delay the first one; `free`, at that time, is kept up to date."""
        before = list(self.nodes.free)
        job = self.jobs[i]
        if not self._start_as_asked(i):
            return False
        if self._ends(job) <= at:
            return True
        after = [room - was + now for room, was, now in zip(free, before, self.nodes.free, strict=True)]
        if self._fits(self.jobs[self.waiting[0]].asked, after):
            free[:] = after
            return True
        self._take_back(i)
        return False

    def _take_back(self, i: int) -> None:
        """As if it had not started."""
        job = self.jobs[i]
        self._left(i)
        del self.changes[-2:]
        job.version += 1
        job.start_s, job.gpus, job.held = -1.0, 0, 0
