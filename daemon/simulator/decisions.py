"""The simulation under the optimizer: admit from the queue, plan, move.

Promise: decisions are the optimizer's own (`plans.choose`, or another chooser over the same choices); nobody is moved
within its cooldown, and GPUs are given only when they are free.
Limit: the queue is first come, first served; nobody overtakes a job whose shape cannot be had.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter

from ..optimizer.admission import admitted
from ..optimizer.job_view import JobView
from ..optimizer.plan import Cache, choose
from ..optimizer.solver.table import Choice
from .engine import Simulation
from .jobs import Job, Settings
from .views import Views

Chooser = Callable[[Sequence[JobView], int, str, Cache], list[Choice]]


class Optimized(Simulation):
    """The simulation with everybody's size planned at each decision."""

    def __init__(self, jobs: list[Job], policy: str, settings: Settings, chooser: Chooser = choose) -> None:
        super().__init__(jobs, policy, settings)
        self.chooser, self.cache = chooser, Cache()
        self.views = Views(jobs, self.running, self.places, policy, settings)

    def _decide(self) -> None:
        """Admit, plan, move."""
        self.decisions += 1
        self.decided_at = self.now
        if self.settings.learned:
            self.views.learn(self.now)
        frozen = set[int]()
        if self.settings.cooldown_s or self.settings.grow_wait_s:
            frozen = {i for i, job in self.running.items() if self._frozen(job)}
        starting = self._admit(frozen) if self.waiting else []
        rigid = [i for i in starting if not self.jobs[i].elastic]
        capacity = self.settings.gpus - sum(job.held for job in self.running.values() if not job.elastic)
        capacity -= sum(self.jobs[i].asked for i in rigid)
        members = [i for i, job in self.running.items() if job.elastic] + [i for i in starting if self.jobs[i].elastic]
        members.sort()
        views = [self.views.of(i, i in frozen) for i in members]
        rows = self.chooser(views, capacity, self.policy, self.cache) if views else []
        if rows or rigid:
            self._apply(members, rows, rigid)
        if frozen and self.settings.cooldown_s:
            self._want_decision(min(self._free_at(self.running[i]) for i in frozen))
        elif self.settings.learned and any(job.elastic for job in self.running.values()):
            self._want_decision(self.now + max(60.0, self.settings.interval_s))

    def _admit(self, frozen: set[int]) -> list[int]:
        """Take from the queue, in order, what fits beside everybody's smallest size."""
        held = [self._least(job) if i not in frozen else job.held for i, job in self.running.items()]
        queue = self.waiting[: self.settings.gpus + 1]  # nobody takes less than one GPU
        fits = admitted(held, [self._least(self.jobs[i]) for i in queue], self.settings.gpus)
        starting = [queue[p] for p in fits]
        self.waiting = self.waiting[len(fits) :]
        if self.settings.drop:
            for i in self.waiting:
                self.jobs[i].dropped = True
            self.waiting = []
        return starting

    def _apply(self, members: list[int], rows: list[Choice], rigid: list[int]) -> None:
        """Shrinks first, then starts in order, then growths: GPUs are given only when they are free."""
        changed, starts = list[tuple[int, int, Choice]](), [(i, self.jobs[i].asked, 0) for i in rigid]
        for i, row in zip(members, rows, strict=True):
            job = self.jobs[i]
            if i not in self.running:
                starts.append((i, row.gpus, row.batch))
            elif row.gpus != job.held or row.batch != job.batch:
                changed.append((row.gpus - job.held, i, row))
        changed.sort(key=itemgetter(0))
        for more, i, row in changed:
            if more < 0:
                self._move(i, row.gpus, row.batch)
        shaped = len(starts)
        for n, (i, gpus, batch) in enumerate(sorted(starts)):
            if not self._start(i, gpus, batch):
                shaped = n
                break
        # What finds GPUs but not its shape waits at the head of the queue, and nobody overtakes it.
        self._wait([i for i, _, _ in sorted(starts)[shaped:]])
        for more, i, row in changed:
            if more >= 0:
                self._move(i, row.gpus, row.batch)

    def _wait(self, back: list[int]) -> None:
        """Put jobs that could not start back; in drop mode they are dropped."""
        if self.settings.drop:
            for i in back:
                self.jobs[i].dropped = True
        else:
            self.waiting = back + self.waiting
            if back and self.targets:  # jobs whose growth is under way can soon be moved
                self._want_decision(self.now + max(1.0, self.settings.grow_wait_s))

    def _frozen(self, job: Job) -> bool:
        return job.held != job.gpus or self.now < self._free_at(job)

    def _free_at(self, job: Job) -> float:
        """When its cooldown is over and a grow has taken effect."""
        wait = self.settings.grow_wait_s if job.held != job.gpus else 0.0
        return job.moved_at + max(self.settings.cooldown_s, wait)

    def _least(self, job: Job) -> int:
        """The smallest size the policy may give it."""
        return job.asked if self.fixed or not job.elastic else job.sizes[0][0]
