"""A running elastic job in a round: its accepted sizes, what it trains on, and what may be done to it. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import inf

from slurm_elastic.protocol.codes import EventKind, Reason
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.request import ElasticRequest

from ...actions.refusals import Refusal
from ...capacity.ledger import Amount, per_node
from ...capacity.roster import ElasticJob
from ...capacity.shrink_options import ShrinkableJob, with_growth
from ...derived.table import Derived
from ...mechanisms import registry
from ...optimizer.job_view import Model
from ...optimizer.models import goodput
from ...slurm.site import Site
from .state import JobState


@dataclass(slots=True, eq=False)
class RunningJob:
    """A running elastic job in a round. One that is known from the round before is the same object: only its state is
    another, where reports alone have come (planner/tables.py)."""

    job: ElasticJob
    state: JobState
    pieces: tuple[Piece, ...]
    """Trained on and held: what supervisor and Slurm agree on."""
    loose: Mapping[tuple[int, str], Amount]
    """Held, but neither trained on nor part of a resize: about to be released."""
    stuck: tuple[Piece, ...] = ()
    """What it trains on and what Slurm does not take, though the training has left it; empty: there is no such."""
    frozen: Reason | None = None
    """Why nothing at all may be done to it."""
    growing: bool = False
    """Its open resize only adds, and training has not switched to it yet: it may be withdrawn for waiting jobs."""
    may_grow: bool = True
    may_shrink: bool = True
    """For another elastic job; for a waiting one it always may, unless frozen."""
    may_rebatch: bool = True
    """Its batch alone may change."""
    most: int | None = None
    """GPUs that it may try, for Slurm has refused it more; None: it has not."""
    until: float | None = None
    """When the cooldown or the time after a failure is over."""
    weight: float = 1.0
    """Its request's, as far as the site lets it count."""
    wanted: frozenset[str] = frozenset()
    """Nodes that waiting jobs ask for by name."""
    site: Site = field(default_factory=Site)
    fresh_until: float = inf
    """When this may change though nothing of the job has changed."""
    accepted: AcceptedSizes = field(kw_only=True)
    job_id: int = field(init=False)
    gpus: int = field(init=False)
    batch: int = field(init=False)
    age: tuple[float, int] = field(init=False)
    """What running jobs are ordered by: the oldest first."""
    optimized: bool = field(init=False)
    """Its size is the optimizer's to choose, but for what others need of its nodes."""
    shrinkable: ShrinkableJob = field(init=False)
    """What it can give up."""
    can_add: bool = field(init=False)
    """Whether some mechanism can add to what it has."""

    def __post_init__(self) -> None:
        base, state = self.job.base, self.state
        self.job_id, self.age = base.job_id, (base.submit_time, base.job_id)
        self.gpus = sum([piece.gpus for piece in self.pieces])
        self.batch = state.in_use.batch if state.in_use else 0
        self.optimized = self.frozen is None and not self.stuck and state.pinned is None and state.measured
        self.shrinkable = _shrinkable(self)
        self.can_add = registry.adding(self, self.site) is not None

    @property
    def may_restart(self) -> bool:
        """Whether some mechanism can start it again at another size."""
        return not self.state.stalled and registry.restarting(self, self.site) is not None

    @property
    def pause_s(self) -> float | None:
        return self.state.pause_s

    @property
    def requeue_s(self) -> float | None:
        return self.state.requeue_s

    @property
    def likely_pause_s(self) -> float | None:
        return self.state.likely_pause_s

    @property
    def likely_requeue_s(self) -> float | None:
        return self.state.likely_requeue_s

    @property
    def refused(self) -> Mapping[EventKind, Refusal]:
        return self.state.refused

    @property
    def one_node_each(self) -> bool:
        shrink = self.state.refused.get(EventKind.SHRINK)
        return shrink is not None and shrink.lasts

    @property
    def measured(self) -> bool:
        return self.state.measured


def _shrinkable(running: RunningJob) -> ShrinkableJob:
    """With what a growth under way adds."""
    job, state = running.job, running.state
    found = ShrinkableJob(
        job_id=job.job_id,
        pieces=running.pieces,
        batch_hosts=frozenset([(held.job.job_id, held.job.batch_host) for held in job.held]),
        sizes=running.accepted.every,
        rules=registry.drop_rules(job.request.via, *state.releases),
        share={held.job.job_id: per_node(held.job) for held in job.held},
        slow=state.slow,
        switches=running.site.switches,
        wanted=running.wanted,
    )
    growth = state.resize if running.growing else None
    if growth is None:
        return found
    return with_growth(found, growth.id, growth.add, (held for held in job.held if held.resize == growth.id))


Paces = Derived[int, tuple[RunningJob, Model, float | None], tuple[float, float]]
"""By job id, what `pace_of` gives."""


def pace_of(asked: tuple[RunningJob, Model, float | None]) -> tuple[float, float]:
    """(worth of a sample, samples per second on one GPU), both at its reference batch."""
    running, model, noise = asked
    _, batch = running.state.reference or (1, running.batch)
    worth = goodput.efficiency(running.batch, max(1, batch), noise)
    return worth, model.throughput(1, 1, max(1, batch))


def remaining_s(jobs: Iterable[RunningJob], now: float, paces: Paces) -> dict[int, float]:
    """Seconds that each job would still train on one GPU at its reference batch, by job id; without those of which that
    is not known."""
    known = [(running, running.state.model, left) for running in jobs if (left := running.state.remaining) is not None]
    asked = {
        running.job_id: (running, model, running.state.noise_scale if running.job.request.until == "quality" else None)
        for running, model, _ in known
        if model is not None
    }
    found = paces.of(asked)
    return {
        running.job_id: left.after(now) * worth / speed
        for running, model, left in known
        if model is not None
        for worth, speed in (found[running.job_id],)
    }


class AcceptedSizes:
    """Sizes at which some accepted batch is shared out evenly; of an exclusive job, which gets whole nodes only, those
    that are whole nodes. Thousands for some requests: made once for all jobs that ask alike."""

    __slots__ = ("ascending", "every", "largest")

    def __init__(self, request: ElasticRequest, node_gpus: int = 1, too_large: frozenset[int] = frozenset()) -> None:
        """node_gpus: of the whole nodes that the job gets; 1: it shares nodes. too_large: sizes that did not fit."""
        whole = (size for size in request.sizes() if size % max(1, node_gpus) == 0 and size not in too_large)
        self.ascending = tuple(sorted(size for size in whole if request.batches(size)))
        self.every = frozenset(self.ascending)
        self.largest = self.ascending[-1] if self.ascending else 0


def asked_for(job: ElasticJob, too_large: frozenset[int] = frozenset()) -> tuple[ElasticRequest, int, frozenset[int]]:
    """What the accepted sizes of a job depend on, as AcceptedSizes takes it."""
    return job.request, job.base.gpus_per_node if job.base.exclusive and job.running else 1, too_large
