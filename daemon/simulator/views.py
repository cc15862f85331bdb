"""What the planner may know of the simulated jobs: their present state, and their true curves or what they measured.

Promise: a view is made anew only when something of its job changed, so that a cache of plans knows it again.
Limit: measurements carry independent noise (3 %), drawn from the seed; a job's true curve has next to none.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from ..optimizer.job_view import JobView
from ..optimizer.models.observation import Observation
from ..optimizer.models.throughput import fit
from .jobs import Job, Settings, Sizes
from .placement import Outlook, Places
from .programs import Program


class TrueCurve:
    """A model that knows the program: what the planner sees when curves are known."""

    __slots__ = ("jitter", "program")
    sizes_seen: tuple[int, ...] = tuple(range(1, 4097))

    def __init__(self, program: Program) -> None:
        self.program, self.jitter = program, 0.002

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        return self.program.throughput(gpus, nodes, batch)

    def throughputs(self, points: Sequence[tuple[int, int, int]]) -> list[float]:
        return [self.throughput(*point) for point in points]

    def uncertainties(self, sizes: Sequence[tuple[int, int]]) -> list[float]:
        return [0.0] * len(sizes)


class Views:
    """The views of one simulation's jobs, whose state it reads as it goes."""

    def __init__(
        self, jobs: list[Job], running: dict[int, Job], places: Places, policy: str, settings: Settings
    ) -> None:
        self.jobs, self.running, self.places, self.policy, self.settings = jobs, running, places, policy, settings
        self.curves: dict[int, TrueCurve] = {}
        self.random = random.Random(settings.seed)
        self.shapes: dict[tuple[int, Sizes], Sizes] = {}
        self.placed: dict[tuple[int, Outlook], tuple[Sizes, Sizes]] = {}

    def of(self, i: int, frozen: bool) -> JobView:
        """A job as of now; the same object as before while nothing of it has changed."""
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
            reference_batch=job.trace.batch,
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

    def learn(self, now: float) -> None:
        """Each job that has trained half a minute at a size and batch it had not reported yet reports it."""
        for job in self.running.values():
            key = job.gpus, job.batch
            if not job.elastic or key in job.reports or now - job.since < 30.0:
                continue
            nodes = job.nodes
            micro, steps = job.program.split(job.gpus, job.batch)
            seconds = job.batch / job.program.throughput(job.gpus, nodes, job.batch)
            seconds *= max(0.5, 1.0 + self.random.gauss(0.0, 0.03))
            job.reports[key] = Observation(job.gpus, nodes, job.batch, max(1, round(micro)), steps, seconds)
            job.model = fit(list(job.reports.values()))
