"""An elastic job at the beginning of a round: what it trains on, and what may be done to it. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, fields, replace
from functools import lru_cache, partial
from math import inf
from operator import attrgetter

from slurm_elastic.db.rows import InUse, ObservationRow, ResizeRow
from slurm_elastic.protocol.bottleneck import SLOW_RANK
from slurm_elastic.protocol.event_kind import EventKind
from slurm_elastic.protocol.messages import Piece, Report
from slurm_elastic.protocol.records import record
from slurm_elastic.protocol.request import ElasticRequest
from slurm_elastic.protocol.resize_state import ResizeState

from ..capacity.growth_under_way import with_growth
from ..capacity.ledger import Amount, per_node
from ..capacity.roster import ElasticJob
from ..capacity.shrink_options import Giver, Unit, units_of, without
from ..config.settings import Settings
from ..mechanisms import registry
from ..mechanisms.refusals import WHOLE_JOBS, Refusal
from ..optimizer.job_view import Model
from ..slurm.site import Site
from ..text.reasons import Reason

HOUR_S = 3600.0
LEAST_COOLDOWN_S = 60.0
"""Until the new size has been reported a few times."""
CLOCK_S = 600.0
"""What lies further in the future was stored by a wrong clock: nobody waits for it."""
NOISE_REPORTS = 3
"""Reports at one configuration before its noise scale (their median) is believed."""
NOISE_GRID = 0.1
"""Steps of the logarithm in which noise scales are told apart: rough as they are."""


@record(frozen=True, slots=True)
class Remaining:
    """How much training a job had left, in samples, and how fast it went, when it said so."""

    samples: float
    samples_per_s: float
    at: float

    def after(self, now: float) -> float:
        """Samples left now, if it has gone on at that speed."""
        left = self.samples - self.samples_per_s * (now - self.at) if now > self.at else self.samples
        return left if left > 0.0 else 0.0


@record(frozen=True, slots=True)
class JobState:
    """What the store knows of a job."""

    in_use: InUse | None = None
    resize: ResizeRow | None = None
    """Its open resize."""
    last: ResizeRow | None = None
    """Its last closed one."""
    failures: int = 0
    """How many of its resizes have failed one after the other, if the last one did."""
    pinned: int | None = None
    observations: tuple[ObservationRow, ...] = ()
    model: Model | None = None
    """What they and the job's prior make of its throughput."""
    unfitted: str = ""
    """Why they make no model; empty: they do, or there are none."""
    pause_s: float | None = None
    """Mean measured pause."""
    requeue_s: float | None = None
    """The same of resizes by requeue."""
    likely_pause_s: float | None = None
    """What other jobs' resizes say of its pause; None: there were none."""
    likely_requeue_s: float | None = None
    """The same of resizes by requeue."""
    reference: tuple[int, int] | None = None
    """(GPUs, batch) that it started with."""
    prior_words: str = ""
    """Where the prior comes from that its model starts from."""
    resized: tuple[float, ...] = ()
    """When it was resized within the last HOUR_S, the earliest first."""
    reported_at: float | None = None
    """Time of its youngest report."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """Node -> share of every step that all wait for it, as the present world measured it."""
    gave_in_vain: bool = False
    """What its last resize gave up for a waiting job was not taken."""
    refused: Mapping[EventKind, Refusal] = field(default_factory=dict)
    """What Slurm refuses to do about it now."""
    remaining: Remaining | None = None
    """None: its script does not say when the training ends."""
    _noise: tuple[float | None] | None = field(default=None, init=False, compare=False, repr=False)
    """The trusted noise scale, once somebody has asked."""

    @property
    def noise_scale(self) -> float | None:
        """What its observations say of the gradient noise scale, as `trusted_noise` has it."""
        if self._noise is None:
            object.__setattr__(self, "_noise", (trusted_noise(self.observations),))
        return self._noise[0] if self._noise else None

    def differs_in_reports_only(self, other: JobState) -> bool:
        """Whether the two say the same but for what comes with each report, and leaves the job as it is: what was
        measured and what is made of it, when, and how much is left."""
        return bool(_but_reports(self) == _but_reports(other)) and self.measured == other.measured

    @property
    def measured(self) -> bool:
        """Whether anything is known of its speed."""
        return bool(self.observations) and not self.unfitted

    @property
    def releases(self) -> tuple[bool, bool]:
        """Whether its Slurm jobs may lose nodes now, and whether one may be ended."""
        return EventKind.SHRINK not in self.refused, EventKind.CANCEL not in self.refused


_WITH_EACH_REPORT = ("observations", "model", "reported_at", "remaining")
_CHECKED = (item.name for item in fields(JobState) if item.compare)
_but_reports = attrgetter(*(name for name in _CHECKED if name not in _WITH_EACH_REPORT))


_last_at = attrgetter("last_at")


def trusted_noise(observations: Sequence[ObservationRow]) -> float | None:
    """The gradient noise scale of the configuration reported last; None before NOISE_REPORTS of them agree on one."""
    measured = [row for row in observations if row.noise_scale > 0 and row.count >= NOISE_REPORTS]
    if not measured:
        return None
    last = (max(measured, key=_last_at) if len(measured) > 1 else measured[0]).noise_scale
    return math.exp(NOISE_GRID * round(math.log(last) / NOISE_GRID))


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
    _giver: Giver | None = field(default=None, init=False, compare=False, repr=False)
    _weighed: Giver | None = field(default=None, init=False, compare=False, repr=False)
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
    def giver(self) -> Giver:
        """What it can give up."""
        if self._giver is None:
            object.__setattr__(self, "_giver", _giver(self))
        assert self._giver is not None
        return self._giver

    def giver_at(self, weight: float) -> Giver:
        """What it can give up, where it counts by so much."""
        if weight == self.weight:
            return self.giver
        known = self._weighed
        if known is None or known.weight != weight:
            known = replace(self.giver, weight=weight)
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
        return registry.restarting(self, self.site) is not None

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
        return self.state.refused.get(EventKind.SHRINK) is WHOLE_JOBS

    @property
    def measured(self) -> bool:
        return self.state.measured


def running_job(
    job: ElasticJob, state: JobState, settings: Settings, now: float, site: Site | None = None
) -> RunningJob:
    """A running job as a round finds it."""
    site = site or Site()
    held, used = job.pieces, state.in_use.pieces if state.in_use and not state.in_use.refusal else ()
    pieces = held if held == used else without(held, units_of(held) - units_of(used))
    registered = bool(pieces) and pieces[0].kind == "base"
    if not registered:
        pieces = held
    left = units_of(held) - units_of(used) if registered and state.resize is None and held != used else set()
    kept = _stuck(held, left, state) if left else set()
    frozen = _frozen(job, state, pieces, registered, bool(kept))
    growth = _open_growth(state, pieces) if registered else None
    rest = _Rest() if frozen else _rested(_cooled(state, settings, now), state, settings, now)
    return RunningJob(
        job=job,
        state=state,
        pieces=pieces,
        loose=_loose(job, state, used, kept) if registered and (held != used or state.resize is not None) else {},
        stuck=without(held, left - kept) if kept else (),
        frozen=frozen or rest.frozen,
        growing=growth is not None,
        may_grow=rest.may_grow,
        may_shrink=rest.may_shrink,
        may_rebatch=rest.may_rebatch,
        until=rest.until,
        weight=weight_of(job.request, settings),
        site=site,
        fresh_until=rest.fresh_until,
    )


def sizes(job: ElasticJob) -> frozenset[int]:
    """Sizes at which some accepted batch is shared out evenly; of an exclusive job, which gets whole nodes only, those
    that are whole nodes."""
    return _sizes(job.request, _node_gpus(job))


def ascending_sizes(job: ElasticJob) -> tuple[int, ...]:
    """The same in order."""
    return _ascending(job.request, _node_gpus(job))


def _node_gpus(job: ElasticJob) -> int:
    return job.base.gpus_per_node if job.base.exclusive and job.running else 1


@lru_cache(maxsize=4096)
def _ascending(request: ElasticRequest, node_gpus: int) -> tuple[int, ...]:
    return tuple(sorted(_sizes(request, node_gpus)))


@lru_cache(maxsize=4096)
def _sizes(request: ElasticRequest, node_gpus: int) -> frozenset[int]:
    each = max(1, node_gpus)
    return frozenset(size for size in request.sizes() if size % each == 0 and batches(request, size))


@lru_cache(maxsize=1 << 16)
def batches(request: ElasticRequest, size: int) -> tuple[int, ...]:
    """The request's batches at a size; asked for again in every round."""
    return request.batches(size)


def _stuck(held: Iterable[Piece], left: set[Unit], state: JobState) -> set[Unit]:
    """Of the units that the training has left those that stay with the job."""
    in_parts, _ = state.releases
    idle = ((piece, units_of((piece,)) & left) for piece in held)
    return {unit for piece, units in idle if registry.stuck(piece, units, in_parts) for unit in units}


def _frozen(
    job: ElasticJob, state: JobState, pieces: tuple[Piece, ...], registered: bool, stuck: bool
) -> Reason | None:
    if state.in_use is not None and state.in_use.refusal:
        return Reason.KEEP_NOT_UNDERSTOOD
    if not registered:
        return Reason.KEEP_UNREGISTERED
    if state.resize is not None:
        return Reason.KEEP_RESIZING
    if state.pinned is not None:
        there = state.pinned == sum(piece.gpus for piece in pieces) and not stuck
        if there or state.pinned not in sizes(job):
            return Reason.KEEP_PINNED
    return None


def _open_growth(state: JobState, pieces: tuple[Piece, ...]) -> ResizeRow | None:
    """Its open resize, if that only adds, training has not switched to it yet, and its owner has not asked for it."""
    resize = state.resize
    if resize is None or state.pinned is not None or not resize.state.comes_before(ResizeState.RUNNING):
        return None
    return resize if resize.add and units_of(resize.keep) == units_of(pieces) else None


def weight_of(request: ElasticRequest, settings: Settings) -> float:
    """The request's weight as far as the site lets it count."""
    return min(request.weight, settings.max_weight)


@record(frozen=True, slots=True)
class _Rest:
    """What its last resizes leave a job free to do, and until when that holds."""

    may_grow: bool = True
    may_shrink: bool = True
    may_rebatch: bool = True
    until: float | None = None
    frozen: Reason | None = None
    fresh_until: float = inf


def _rested(rest: _Rest, state: JobState, settings: Settings, now: float) -> _Rest:
    """Apply the limit of resizes within an hour."""
    limit, times = settings.max_resizes_per_job_hour, state.resized
    if len(times) < limit:
        return rest
    free = times[-limit] + HOUR_S
    if now >= free:
        return rest
    until, fresh = max(free, rest.until or 0.0), min(free, rest.fresh_until)
    return replace(rest, may_grow=False, may_shrink=False, until=until, fresh_until=fresh)


def cooldown_s(longest_s: float, pause_s: float | None, settings: Settings) -> float:
    """How long a resize holds a job back: `cooldown_pauses` of its mean pauses (None: not measured), within
    LEAST_COOLDOWN_S and `longest_s`. A pause of seconds is earned back in a minute, one of a minute is not."""
    if not settings.cooldown_pauses:
        return longest_s
    pause = settings.assumed_pause_s if pause_s is None else pause_s
    return min(longest_s, max(LEAST_COOLDOWN_S, settings.cooldown_pauses * pause))


def _cooled(state: JobState, settings: Settings, now: float) -> _Rest:
    """Apply the cooldowns and the time after a failure.

    After a growth that failed, or a companion that never came, the job only does not grow for a while: it gives way.
    A growth whose nodes somebody else got, or needed, is planned again at once, and so is what was given up for a job
    that did not take it, because a companion's time was over, or on a node that was drained. After a shrink that failed
    nothing is done to it for a tenth of the time after a failure, twice as long after each further one; then it gives
    way.
    """
    last = state.last
    if last is None or last.state == ResizeState.OVERTAKEN or last.updated > now + CLOCK_S:
        return _Rest()
    if last.state == ResizeState.DONE:
        if state.gave_in_vain or (last.reason in _NOT_ITS_CHOICE and not last.add):
            return _Rest()
        grow, shrink = (
            last.updated + cooldown_s(longest_s, state.pause_s, settings)
            for longest_s in (settings.cooldown_grow_s, settings.cooldown_shrink_s)
        )
        ahead = [t for t in (grow, shrink) if t > now]
        if not ahead:
            return _Rest()
        if last.reason == Reason.BATCH:
            # It took a pause and no node: most jobs begin with it, and GPUs may be idle that they could grow onto.
            return _Rest(may_rebatch=False, fresh_until=min(ahead))
        return _Rest(now >= grow, now >= shrink, until=max(ahead), fresh_until=min(ahead))
    until = last.updated + settings.failed_backoff_s
    if now >= until:
        return _Rest()
    if last.state == ResizeState.FAILED and not last.add:
        gives_way = last.updated + min(1.0, 2 ** min(20, max(0, state.failures - 1)) / 10) * settings.failed_backoff_s
        if now < gives_way:
            return _Rest(False, False, until=until, frozen=Reason.KEEP_FAILED, fresh_until=gives_way)
        return _Rest(False, False, False, until=until, fresh_until=until)
    return _Rest(may_grow=False, until=until, fresh_until=until)


_NOT_ITS_CHOICE = (Reason.COMPANION_ENDS, Reason.SHRINK_DRAIN)


def _loose(
    job: ElasticJob, state: JobState, trained_on: tuple[Piece, ...], stuck: Collection[Unit]
) -> dict[Unit, Amount]:
    used = units_of(trained_on)
    wanted = used | set(stuck)
    if state.resize is not None and state.resize.state != ResizeState.RUNNING:
        wanted |= units_of(h.piece for h in job.held if h.resize == state.resize.id)
        wanted |= units_of(state.resize.keep)
        # Given up by the resize under way: still trained on, and on its way out.
        wanted -= used - units_of(state.resize.keep)
    base = job.held[0]
    wanted.add((base.job.job_id, base.job.batch_host))
    return {
        (held.job.job_id, node): per_node(held.job)
        for held in job.held
        for node in held.piece.nodes
        if (held.job.job_id, node) not in wanted
    }


def _giver(running: RunningJob) -> Giver:
    """With what a growth under way adds."""
    job, state = running.job, running.state
    giver = Giver(
        job_id=job.job_id,
        pieces=running.pieces,
        batch_host=job.base.batch_host,
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


def remaining(report: Report | None) -> Remaining | None:
    """As its last report says it."""
    if report is None or report.samples_left < 1:
        return None
    return Remaining(report.samples_left, report.samples_per_s, report.at)


def slow_nodes(report: Report | None, in_use: InUse) -> dict[str, float]:
    """The node that a report names for its slow rank, with what it costs; only of the world that trains now, which has
    the ranks where they were measured. The next slowest is named when that one is gone."""
    if report is None or report.generation != in_use.generation or report.bottleneck != SLOW_RANK:
        return {}
    return {report.bottleneck_node: report.bottleneck_share} if report.bottleneck_node else {}
