"""A running elastic job in a round: what it trains on, and what may be done to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import partial
from math import inf

from slurm_elastic.protocol.event_kind import EventKind
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.records import record
from slurm_elastic.protocol.text.reasons import Reason

from ...actions.refusals import Refusal
from ...capacity.ledger import Amount, per_node
from ...capacity.roster import ElasticJob
from ...capacity.shrink_options import ShrinkableJob, with_growth
from ...mechanisms import registry
from ...slurm.site import Site
from .sizes import sizes
from .state import JobState


@record(frozen=True, slots=True)
class RunningJob:
    """A running elastic job in a round. Kept for the next one, it is renewed by what reports have said since."""

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
    job_id: int = field(init=False)
    gpus: int = field(init=False)
    batch: int = field(init=False)
    age: tuple[float, int] = field(init=False)
    """What running jobs are ordered by: the oldest first."""
    optimized: bool = field(init=False)
    """Its size is the optimizer's to choose, but for what others need of its nodes."""
    _giver: ShrinkableJob | None = field(default=None, init=False, compare=False, repr=False)
    _weighed: ShrinkableJob | None = field(default=None, init=False, compare=False, repr=False)
    _can_add: bool | None = field(default=None, init=False, compare=False, repr=False)
    kept_pace: tuple[float, float] | None = field(default=None, init=False, compare=False, repr=False)
    """What `remaining_s` goes by, once somebody has asked."""

    def __post_init__(self) -> None:
        base, state, put = self.job.base, self.state, partial(object.__setattr__, self)
        put("job_id", base.job_id)
        put("gpus", sum([piece.gpus for piece in self.pieces]))
        put("batch", state.in_use.batch if state.in_use else 0)
        put("age", (base.submit_time, base.job_id))
        put("optimized", self.frozen is None and not self.stuck and state.pinned is None and state.measured)

    def renew(self, state: JobState) -> None:
        """Take a state that differs in reports only."""
        object.__setattr__(self, "state", state)
        object.__setattr__(self, "kept_pace", None)

    def keep_pace(self, pace: tuple[float, float]) -> tuple[float, float]:
        """Keep it until the state is renewed."""
        object.__setattr__(self, "kept_pace", pace)
        return pace

    @property
    def shrinkable(self) -> ShrinkableJob:
        """What it can give up."""
        if self._giver is None:
            object.__setattr__(self, "_giver", _giver(self))
        assert self._giver is not None
        return self._giver

    def giver_at(self, weight: float) -> ShrinkableJob:
        """What it can give up, where it counts by so much."""
        if weight == self.weight:
            return self.shrinkable
        known = self._weighed
        if known is None or known.weight != weight:
            known = replace(self.shrinkable, weight=weight)
            object.__setattr__(self, "_weighed", known)
        return known

    @property
    def can_add(self) -> bool:
        """Whether some mechanism can add to what it has."""
        if self._can_add is None:
            object.__setattr__(self, "_can_add", registry.adding(self, self.site) is not None)
        return bool(self._can_add)

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


def _giver(running: RunningJob) -> ShrinkableJob:
    """With what a growth under way adds."""
    job, state = running.job, running.state
    giver = ShrinkableJob(
        job_id=job.job_id,
        pieces=running.pieces,
        batch_hosts=frozenset((held.job.job_id, held.job.batch_host) for held in job.held),
        sizes=sizes(job),
        rules=registry.drop_rules(job.request.via, *state.releases),
        share={held.job.job_id: per_node(held.job) for held in job.held},
        weight=running.weight,
        slow=state.slow,
        switches=running.site.switches,
        wanted=running.wanted,
    )
    growth = state.resize if running.growing else None
    if growth is None:
        return giver
    return with_growth(giver, growth.id, growth.add, (held for held in job.held if held.resize == growth.id))
