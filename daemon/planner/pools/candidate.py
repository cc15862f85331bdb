"""A movable job of a pool as the optimizer sees it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from slurm_elastic.protocol.records import record
from slurm_elastic.protocol.request import ElasticRequest
from slurm_elastic.protocol.text.reasons import Reason

from ...capacity.shrink_options import Unit
from ...mechanisms.base import pause_s
from ...optimizer.job_view import JobView
from ...optimizer.models import goodput
from ..moves import Move, TargetSize
from ..running.job import RunningJob
from ..running.sizes import batches
from ..settings import PlannerSettings
from .options import Options

Untried = tuple[float, tuple[tuple[int, int, float, float], ...]]
"""A job's progress as it is, and of sizes never measured (GPUs, batch, progress by that, relative 1-sigma of it)."""


@record(frozen=True, slots=False)
class Candidate:
    """A movable job of a pool."""

    running: RunningJob
    options: Options
    view: JobView
    progress: dict[tuple[int, int], float] = field(default_factory=dict, compare=False)
    """By (GPUs, batch): how much progress changes there, once somebody has asked."""
    untried: dict[str, Untried] = field(default_factory=dict, compare=False)
    """By policy: the larger sizes that were never measured, once somebody has asked."""
    standing: dict[Reason, Move] = field(default_factory=dict, compare=False)
    """The move that changes nothing, by its reason, once somebody has asked."""

    @property
    def forced(self) -> frozenset[Unit]:
        """The units that it gives up for others."""
        return self.options.forced

    @property
    def rest(self) -> int:
        """The most GPUs that it keeps when it gives up what others need."""
        return self.options.rest

    def stays(self, reason: Reason) -> Move:
        """The move that changes nothing, for this reason."""
        made = self.standing.get(reason)
        if made is None:
            running = self.running
            target_size = TargetSize(running, running.gpus, running.batch, reason, 0.0)
            made = self.standing[reason] = Move(target_size, running.pieces)
        return made

    @cached_property
    def staying(self) -> JobView:
        """The view with no choice: where the job is, or where the forced units leave it."""
        if self.forced:  # the plan charges every size of a job that has to move anyway; so does the comparison
            return replace(self.view, choices=((self.rest, self.options.downs[self.rest]),))
        return replace(self.view, frozen=True)

    @cached_property
    def in_place(self) -> JobView:
        """The view with no size but the present one, at any batch; of a job that gives up units, as `staying`."""
        size = self.view.current_gpus
        nodes = next((count for gpus, count in self.view.choices if gpus == size), None)
        if self.forced or nodes is None:
            return self.staying
        return replace(self.view, choices=((size, nodes),))


def member(
    running: RunningJob, made: Options, settings: PlannerSettings, factor: float = 1.0, horizon_s: float | None = None
) -> Candidate:
    """The job as the optimizer sees it.

    `factor`: what its weight is multiplied by to be fair; `horizon_s`: as `horizon` has it.
    """
    state, request, horizon_s = running.state, running.job.request, horizon_s or settings.horizon_s
    gpus, batch = state.reference or (running.gpus, running.batch)
    noise = state.noise_scale
    guard_noise = noise if request.guard else None
    view = JobView(
        label=str(running.job_id),
        model=state.model,
        choices=made.choices,
        batches=_batches(request, not running.may_rebatch, running.gpus, running.batch, max(1, batch), guard_noise),
        current_gpus=running.gpus,
        current_batch=running.batch,
        reference_gpus=max(1, gpus),
        reference_batch=max(1, batch),
        weight=running.weight * factor,
        pause_s=pause_s(running, settings),
        batch_pause_s=state.batch_pause_s or 0.0,
        horizon_s=horizon_s,
        noise_scale=noise,
        quality=request.until == "quality",
        least_per_gpu=settings.awake_gain if running.site.power_saving else 0.0,
        restart_sizes=made.restart_sizes,
        restart_pause_s=made.restart.cost_s(running, settings) if made.restart else 0.0,
    )
    return Candidate(running, made, view)


@dataclass(frozen=True, slots=True, eq=False)
class _Batches:
    """The request's batches; where only the batch could change and that is not to be, the present one.

    Equal ones are one object: what was planned for equal views is found again.
    """

    request: ElasticRequest
    settled: bool
    gpus: int
    batch: int
    reference: int
    noise_scale: float | None
    """Read only where the request guards its range."""

    def __call__(self, size: int) -> tuple[int, ...]:
        if self.settled and size == self.gpus and self.batch > 0:
            return (self.batch,)
        found = batches(self.request, size)
        if not self.request.guard:
            return found
        return goodput.guarded(found, self.reference, self.noise_scale, self.request.guard / 100)


_batches = lru_cache(maxsize=1 << 14)(_Batches)
