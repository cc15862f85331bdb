"""The simulation: events in time order, progress computed only when a rate changes, a decision only when one is due.

Promise: deterministic for a seed; decisions are the optimizer's own (`plans.choose`), charged with the costs the
mechanisms have: a pause at every change of size, a wait until a grow takes effect, a cooldown.
Limit: nodes are of one kind; a job's speed depends on the nodes that it is spread over, not on its neighbours.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter

from ..optimizer.admission import admitted
from ..optimizer.models import Observation, fit
from ..optimizer.plans import Cache, choose
from ..optimizer.policies import POLICIES, Row
from ..optimizer.views import JobView
from .jobs import Job, Settings, Sizes, prepare
from .placement import Outlook, Places
from .programs import Program
from .trace import TraceJob

ARRIVE, PROGRESS, SWITCH, DECIDE = range(4)
Chooser = Callable[[Sequence[JobView], int, str, Cache], list[Row]]


@dataclass(frozen=True)
class Outcome:
    """What came of it: the jobs, and every change of what a job holds as (time, job id, GPUs, batch)."""

    policy: str
    settings: Settings
    jobs: list[Job]
    changes: list[tuple[float, str, int, int]]
    decisions: int
    events: int
    end_s: float


class TrueCurve:
    """A model that knows the program: what the planner sees when curves are known."""

    __slots__ = ("jitter", "program")
    sizes_seen: tuple[int, ...] = tuple(range(1, 4097))

    def __init__(self, program: Program) -> None:
        self.program, self.jitter = program, 0.002

    def throughput(self, gpus: int, nodes: int, batch: int, micro_batch: int | None = None) -> float:
        return self.program.throughput(gpus, nodes, batch)

    def uncertainty(self, gpus: int, nodes: int | None = None) -> float:
        return 0.0


class Simulation:
    """One policy over one set of jobs."""

    def __init__(self, jobs: list[Job], policy: str, settings: Settings, chooser: Chooser = choose) -> None:
        self.jobs, self.policy, self.settings, self.chooser = jobs, policy, settings, chooser
        self.now, self.heap, self.sequence = 0.0, list[tuple[float, int, int, int, int]](), 0
        self.running: dict[int, Job] = {}
        self.waiting: list[int] = []
        self.changes = list[tuple[float, str, int, int]]()
        self.decided_at, self.due, self.decisions, self.events = float("-inf"), float("inf"), 0, 0
        self.targets: dict[int, tuple[int, int]] = {}
        self.cache = Cache()
        self.curves: dict[int, TrueCurve] = {}
        self.random = random.Random(settings.seed)
        self.fixed = policy in ("static", "feedback")
        """Every job at the size that it asked for, on the shape that it needs."""
        self.shapes: dict[tuple[int, Sizes], Sizes] = {}
        self.placed: dict[tuple[int, Outlook], tuple[Sizes, Sizes]] = {}
        self.places = Places(settings.gpus, settings.gpus_per_node)

    def run(self) -> Outcome:
        """To the end of the last job."""
        for i, job in enumerate(self.jobs):
            self._push(job.trace.submit_s, ARRIVE, i, 0)
        while self.heap:
            self.now, kind, _, i, version = heapq.heappop(self.heap)
            self.events += 1
            if kind == DECIDE:
                if self.now == self.due:
                    self.due = float("inf")
                    self._decide()
            elif kind == ARRIVE:
                self.waiting.append(i)
                self._want_decision()
            elif kind == SWITCH:
                self._switch(i)
            elif version == self.jobs[i].version:
                self._advance(self.jobs[i])
                if self.jobs[i].left <= 1e-9 * self.jobs[i].work:
                    self._finish(i)
                else:
                    self._set_rate(i)
        end = max((job.end_s for job in self.jobs), default=0.0)
        return Outcome(self.policy, self.settings, self.jobs, self.changes, self.decisions, self.events, end)

    def _push(self, at: float, kind: int, i: int, version: int) -> None:
        self.sequence += 1
        heapq.heappush(self.heap, (at, kind, self.sequence, i, version))

    def _want_decision(self, not_before: float = 0.0) -> None:
        at = max(self.now, self.decided_at + self.settings.interval_s, not_before)
        if at < self.due:  # one that is due later is passed over when its time comes
            self.due = at
            self._push(at, DECIDE, 0, 0)

    # one job

    def _advance(self, job: Job) -> None:
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
            job.rate = program.throughput(job.gpus, job.nodes, job.batch)
            job.rate *= program.efficiency(job.batch, done + 1e-9) if job.quality else 1.0
            if program.noise is not None and program.phases > 1:
                edge = (int((done + 1e-9) * program.phases) + 1) / program.phases
                ahead = min(ahead, max(1e-12, edge - done) * job.work)
        else:
            job.rate = 1.0
        self._push(max(self.now, job.resume_at) + ahead / job.rate, PROGRESS, i, job.version)

    def _finish(self, i: int) -> None:
        job = self.jobs[i]
        job.left, job.end_s, job.gpus, job.held = 0.0, self.now, 0, 0
        job.version += 1
        self.targets.pop(i, None)
        self.places.leave(i)
        del self.running[i]
        self.changes.append((self.now, job.trace.job_id, 0, 0))
        if self.running or self.waiting:
            self._want_decision()

    def _start(self, i: int, gpus: int, batch: int) -> bool:
        """Start a job; False where it needs its shape and the free GPUs do not have it."""
        job = self.jobs[i]
        if job.elastic and not self.fixed:
            self.places.grow(i, gpus)
        else:
            moved = self.places.start(i, gpus, self._movable)
            if moved is None:
                return False
            for other in moved:
                self._advance(self.jobs[other])
                self.jobs[other].moved_at = self.now
                self._pause(other)
        job.nodes = self.places.nodes(i)
        job.gpus, job.held, job.batch = gpus, gpus, batch
        job.updated = job.since = self.now
        job.resume_at = self.now + self.settings.start_s
        if job.start_s < 0:
            job.start_s, job.left = self.now, job.work
        else:  # it goes on where it was taken off
            job.moves += 1
            job.resume_at += self.settings.pause_s
            job.paused_s += self.settings.pause_s
        self.running[i] = job
        self.changes.append((self.now, job.trace.job_id, gpus, batch))
        self._set_rate(i)
        return True

    def _movable(self, i: int) -> bool:
        """Whether a job's pieces may be put elsewhere to make room for a shape."""
        return self.jobs[i].elastic and not self.fixed and i not in self.targets

    def _move(self, i: int, gpus: int, batch: int) -> None:
        """Begin a change: a grow waits for what it asked for, everything else pauses now."""
        job = self.jobs[i]
        self._advance(job)
        if gpus > job.held:
            self.places.grow(i, gpus - job.held)
        elif gpus < job.held:
            self.places.shrink(i, job.held - gpus)
        job.held, job.moved_at = gpus, self.now
        self.changes.append((self.now, job.trace.job_id, gpus, batch))
        if gpus > job.gpus and self.settings.grow_wait_s > 0:
            self.targets[i] = gpus, batch
            self._set_rate(i)
            self._push(self.now + self.settings.grow_wait_s, SWITCH, i, 0)
        else:
            job.gpus, job.batch = gpus, batch
            self._pause(i)

    def _switch(self, i: int) -> None:
        """What a grow asked for is there; nothing to do when the job ended meanwhile."""
        if i in self.targets:
            job = self.jobs[i]
            self._advance(job)
            job.gpus, job.batch = self.targets.pop(i)
            self._pause(i)

    def _pause(self, i: int) -> None:
        job = self.jobs[i]
        job.nodes = self.places.nodes(i)
        job.moves += 1
        job.resume_at = max(self.now, job.resume_at) + self.settings.pause_s
        job.paused_s += self.settings.pause_s
        job.since = job.resume_at
        self._set_rate(i)

    # a decision

    def _decide(self) -> None:
        """Admit, plan, move."""
        self.decisions += 1
        self.decided_at = self.now
        if self.settings.learned:
            self._learn()
        frozen = set[int]()
        if self.settings.cooldown_s or self.settings.grow_wait_s:
            frozen = {i for i, job in self.running.items() if self._frozen(job)}
        starting = self._admit(frozen) if self.waiting else []
        rigid = [i for i in starting if not self.jobs[i].elastic]
        capacity = self.settings.gpus - sum(job.held for job in self.running.values() if not job.elastic)
        capacity -= sum(self.jobs[i].asked for i in rigid)
        members = [i for i, job in self.running.items() if job.elastic] + [i for i in starting if self.jobs[i].elastic]
        members.sort()
        views = [self._view(i, i in frozen) for i in members]
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

    def _apply(self, members: list[int], rows: list[Row], rigid: list[int]) -> None:
        """Shrinks first, then starts in order, then growths: GPUs are given only when they are free."""
        changed, starts = list[tuple[int, int, Row]](), [(i, self.jobs[i].asked, 0) for i in rigid]
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

    def _view(self, i: int, frozen: bool) -> JobView:
        job, settings = self.jobs[i], self.settings
        if i not in self.running:
            job.noise_scale = job.program.noise_scale(job.program.base_batch, 0.0)
        key = job.held, job.batch, frozen, job.noise_scale, id(job.model)
        if job.view is not None and job.view_key == key and i not in self.places.changed:
            return job.view
        self.places.changed.discard(i)
        sizes = self._as_placed(job.sizes, self.places.outlook(i)) if i in self.running else job.sizes
        if job.view is not None and job.view_key == key and job.view.choices is sizes:
            return job.view
        if self.policy == "static" and i not in self.running:
            sizes = ((job.asked, -(-job.asked // settings.gpus_per_node)),)
        job.view_key = key
        job.view = JobView(
            label=job.trace.job_id,
            model=job.model if settings.learned else self._curve(job.program),
            choices=sizes,
            batches=job.batches,
            current_gpus=job.held,
            current_batch=job.batch,
            reference_gpus=sizes[0][0] if self.policy != "static" else job.asked,
            reference_batch=job.trace.batch or job.program.base_batch,
            weight=job.trace.weight,
            pause_s=settings.pause_s if settings.price_moves else 0.0,
            horizon_s=settings.horizon_s,
            frozen=frozen,
            sigma=settings.sigma if settings.price_moves else 0.0,
            noise_scale=job.noise_scale,
            quality=job.quality,
        )
        return job.view

    def _as_placed(self, sizes: Sizes, outlook: Outlook) -> Sizes:
        """The sizes on the nodes that the job would then sit on; jobs alike share the tuple.

        One node and several are told apart, as the step form does; more of them would make every list its own.
        """
        key = id(sizes), outlook
        known = self.placed.get(key)
        if known is None:
            made = tuple((k, 2 if n == 1 < self.places.nodes_at(outlook, k) else n) for k, n in sizes)
            shared = self.shapes.setdefault((id(sizes), made), sizes if made == sizes else made)
            known = self.placed[key] = shared, sizes
        return known[0]

    def _curve(self, program: Program) -> TrueCurve:
        known = self.curves.get(id(program))
        if known is None:
            known = self.curves[id(program)] = TrueCurve(program)
        return known

    def _learn(self) -> None:
        """Each job that has trained half a minute at a size and batch it had not reported yet reports it."""
        for job in self.running.values():
            key = job.gpus, job.batch
            if not job.elastic or key in job.reports or self.now - job.since < 30.0:
                continue
            nodes = job.nodes
            micro, steps = job.program.split(job.gpus, job.batch)
            seconds = job.batch / job.program.throughput(job.gpus, nodes, job.batch)
            seconds *= max(0.5, 1.0 + self.random.gauss(0.0, 0.03))
            job.reports[key] = Observation(job.gpus, nodes, job.batch, max(1, round(micro)), steps, seconds)
            job.model = fit(list(job.reports.values()))


def simulate(
    trace: Sequence[TraceJob],
    programs: dict[str, Program],
    policy: str,
    settings: Settings,
    declared: str = "",
    chooser: Chooser | None = None,
) -> tuple[Outcome, list[str]]:
    """(outcome, assumptions) of one policy over a trace."""
    if policy == "evolution" and chooser is None:
        from .evolution import Evolution

        chooser = Evolution(settings.seed)
    elif policy not in (*POLICIES, "feedback") and chooser is None:
        raise ValueError(policy)
    jobs, assumptions = prepare(trace, programs, settings, declared)
    if policy == "feedback":
        from .feedback import Feedback

        return Feedback(jobs, policy, settings).run(), assumptions
    return Simulation(jobs, policy, settings, chooser or choose).run(), assumptions
