"""One round's decisions: room for waiting jobs, then everyone's share, then the moves, and which of them begin. Pure.

Promise: the same inputs give the same decisions; no job is given less than its minimum, and no GPU is given twice. The
daemon and the simulator decide by this, and by nothing else.
Limit: decisions are as good as their snapshot; what Slurm refuses is found out when it is asked.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.protocol.messages import Resize, Shape

from ..capacity.ledger import Ledger, Pool, pool_of, pools
from ..capacity.make_room import Room, RoomMade, make_room
from ..capacity.pending_jobs import Need, lasting, may_have_started, needs, unlisted_gpus
from ..capacity.placement import take
from ..capacity.shrink_options import ShrinkableJob
from ..capacity.slurm_limits import LimitUsage
from ..mechanisms.settings import companion_wait_s
from ..optimizer.errors import InfeasiblePlan, PlanInputError
from ..optimizer.job_view import JobView, Model
from ..optimizer.plan import ChoiceTables, plan_pools
from ..optimizer.policies import DEFAULT_POLICY, POLICIES
from ..optimizer.solver.limits import Cap
from ..optimizer.weights import (
    GroupShare,
    ShareGroup,
    Weights,
    fairness_factors,
    group_shares,
    short_factors,
    within_groups,
    worth_preferring,
)
from ..slurm.model import Job
from .allocation import Group, PoolAllocation, candidates_of
from .context import Inputs, RoundContext
from .fixed_targets import fixed_target
from .free_capacity import asleep, comebacks, free_ledger, managed_gpus, reachable
from .moves import Move, TargetSize, moves
from .pools.candidate import Candidate
from .pools.deadlines import aims, deadline_factors, within_shares
from .running.eligibility import weight_of
from .running.job import RunningJob, remaining_s
from .settings import PlannerSettings
from .user_limits import limit_usage
from .waiting.first_sizes import NO_FIRST_SIZES, FirstSizes, StartingJob, Waiting, first_sizes

MOST_BATCHES = 256
"""Changes of a batch alone that one round begins: each is written to the disk before its supervisor hears of it."""


@dataclass(slots=True, eq=False)
class Plan:
    """What a round decides, with what it went by."""

    context: RoundContext
    allocation: PoolAllocation
    pools: Mapping[int, Pool]
    """What each running job draws on, by job id."""
    moves: Mapping[int, Move] = field(default_factory=dict)
    """Of every running job that is not frozen; most change nothing."""
    begun: tuple[Move, ...] = ()
    """Those to begin now, in this order."""
    capacity: dict[str, int] = field(default_factory=dict)
    """Managed capacity by pool, in GPUs."""
    idle: dict[str, int] = field(default_factory=dict)
    """GPUs by pool that nobody holds and no waiting job needs."""
    withdrawn: Mapping[int, int] = field(default_factory=dict)
    """Jobs whose growth under way is to be withdrawn, each with the waiting job that needs its nodes."""
    resumes: Mapping[int, Shape] = field(default_factory=dict)
    """What to give waiting jobs that have run before: the preempted, and those that lost a node."""
    first: FirstSizes = NO_FIRST_SIZES
    """At which sizes waiting jobs that have never run are to start."""
    left: Ledger | None = None
    """What is free once all of it is done."""
    rows: tuple[DecisionRow, ...] = ()
    """Of every elastic job, but those whose decision is the one that stands."""

    @property
    def resizes(self) -> tuple[Resize, ...]:
        """Those to begin now."""
        settings, site = self.context.inputs.settings, self.context.inputs.site
        bases = [(move, move.target_size.running.job.base) for move in self.begun]
        return tuple(move.resize(companion_wait_s(settings, site, one.user, one.partition)) for move, one in bases)

    @property
    def served(self) -> tuple[RoomMade, ...]:
        """What waiting jobs get."""
        return self.context.room.served

    @property
    def fell_back(self) -> str | None:
        """Why the site's policy did not plan, and the built-in one did; empty: it planned; None: it was not asked."""
        return self.allocation.fell_back


def decide(inputs: Inputs) -> Plan:
    inputs.tables.turn()
    POLICIES[inputs.settings.policy].begin_round()
    running_jobs = inputs.tables.running(inputs.roster, inputs.states, inputs.settings, inputs.site, inputs.now)
    found = pools(inputs.snapshot)
    places = {job_id: pool for job_id, s in running_jobs.items() if (pool := pool_of(found, s.job.base)) is not None}
    before = _before_room(inputs, running_jobs, places)
    room, first = _first_sizes(before, found, places)
    context = before.context(room)
    resumes = comebacks(inputs, context.room.ledger)
    by_pool = _by_pool(context, found, places)
    made = Plan(context, PoolAllocation(context), places, withdrawn=_withdrawn(context), resumes=resumes, first=first)
    nodes = reachable(inputs, context.running_jobs, places)
    context.asleep.update(asleep(inputs.snapshot, nodes))
    target_sizes: list[TargetSize] = []
    groups = []
    for pool in found:
        decided, group = _group(made, pool, by_pool[pool.name])
        target_sizes += decided
        groups.append(group)
    target_sizes += made.allocation.allocate([group for group in groups if group.members], nodes)
    made.left = context.room.ledger.copy()
    moved = moves(target_sizes, made.left, nodes, context.companions)
    made.moves = {**made.allocation.unchanged, **moved}
    for job_id, limit in context.companions.refused.items():
        context.limiting_reasons.setdefault(job_id, f"{limit} allows no further companion of that size")
    made.begun = _begun(moved.values(), inputs.settings)
    return made


@dataclass(frozen=True, slots=True)
class _BeforeRoom:
    """A round's jobs and GPUs before room is made for anyone."""

    inputs: Inputs
    running_jobs: Mapping[int, RunningJob]
    waiting: list[Need]
    ledger: Ledger
    usage: LimitUsage
    givers: list[ShrinkableJob]
    giver_weights: Mapping[int, float]
    unlisted: Mapping[str, int]
    weights: Weights

    def room(self, waiting: Iterable[Need]) -> Room:
        """The room made for these waiting jobs."""
        return make_room(self.inputs.snapshot, self.ledger, self.givers, waiting, self.usage, self.giver_weights)

    def context(self, room: Room) -> RoundContext:
        """The round with this room made."""
        return RoundContext(self.inputs, self.running_jobs, room, self.usage, self.unlisted, self.weights)


def _before_room(inputs: Inputs, running_jobs: dict[int, RunningJob], places: Mapping[int, Pool]) -> _BeforeRoom:
    """Who may be moved, who waits, and what is free."""
    snapshot = inputs.snapshot
    ledger = free_ledger(snapshot, running_jobs.values())
    take(ledger, (shape for job_id, shape in inputs.put_back.items() if job_id not in running_jobs))
    usage = limit_usage(inputs.site, snapshot, running_jobs.values(), inputs.settings.companion_qos)
    waiting = needs(snapshot, inputs.roster, inputs.passed)
    wanted = frozenset(name for need in waiting for part in need.parts for name in part.required)
    if wanted:
        running_jobs = {job_id: replace(s, wanted=wanted) for job_id, s in running_jobs.items()}
    unlisted = unlisted_gpus(snapshot) if waiting or inputs.unlisted_before else {}
    known = lasting(unlisted, inputs.unlisted_before)
    since = {name: gpus - known.get(name, 0) for name, gpus in unlisted.items() if gpus > known.get(name, 0)}
    # A job that is just starting still waits in this snapshot: what it seems to lack must not be taken from anyone.
    waiting = [need for need in waiting if not may_have_started(snapshot, need, since)] if since else waiting
    weights = weights_of(inputs, running_jobs, places)
    factors = weights.factors
    givers = [s for s in running_jobs.values() if s.growing or (s.frozen is None and s.state.pinned is None)]
    givers = givers if waiting else []
    by_weight = {s.job_id: s.weight * factors.get(s.job_id, 1.0) for s in givers}
    shrinkable = [s.shrinkable for s in givers]
    return _BeforeRoom(inputs, running_jobs, waiting, ledger, usage, shrinkable, by_weight, unlisted, weights)


def _first_sizes(before: _BeforeRoom, found: Sequence[Pool], places: Mapping[int, Pool]) -> tuple[Room, FirstSizes]:
    inputs = before.inputs

    def divide(candidates: Sequence[StartingJob], room: Room) -> dict[int, int]:
        """What the plan of a round in which only the others get room would give them too."""
        context = before.context(room)
        made, by_pool = Plan(context, PoolAllocation(context), places), _by_pool(context, found, places)
        planned = {one.need.job_id: one.script.gpus for one in candidates}
        for pool in found:
            own = [one for one in candidates if pool_of(found, one.job.base) is pool]
            if not own:
                continue
            _, group = _group(made, pool, by_pool[pool.name])
            caps = context.limits.caps(group.members)
            planned |= shares(
                *(group.members, group.capacity, caps, own),
                *(inputs.waiting_models, inputs.settings, inputs.tables.choices),
            )
        return planned

    accepted = inputs.tables.accepted
    waiting = Waiting(
        before.waiting, inputs.roster.elastic, inputs.resized_waiting, inputs.passed, inputs.now, accepted
    )
    return first_sizes(inputs.settings.first_size, waiting, before.room, divide)


def _by_pool(context: RoundContext, found: Iterable[Pool], places: Mapping[int, Pool]) -> dict[str, list[RunningJob]]:
    by_pool: dict[str, list[RunningJob]] = {pool.name: [] for pool in found}
    for job_id, pool in places.items():
        by_pool[pool.name].append(context.running_jobs[job_id])
    return by_pool


def weights_of(inputs: Inputs, running_jobs: Mapping[int, RunningJob], places: Mapping[int, Pool]) -> Weights:
    """Pool by pool. Jobs that may not be moved now count, too: the end of a cooldown changes nobody's weight."""
    grouping, settings = _grouping(inputs), inputs.settings
    power = settings.shorter_first if POLICIES[settings.policy].relative else 0.0  # made for relative gains
    by_pool: dict[str, list[RunningJob]] = {}
    for job_id, pool in places.items():
        by_pool.setdefault(pool.name, []).append(running_jobs[job_id])
    fair, short, of_groups = dict[int, float](), dict[int, float](), dict[int, GroupShare]()
    urgent, found = (
        dict[int, float](),
        aims(running_jobs.values(), settings, inputs.site, inputs.now, inputs.tables.curves),
    )
    for jobs in by_pool.values():
        groups = {s.job_id: grouping(s.job.base) for s in jobs} if grouping is not None else {}
        works = remaining_s(jobs, inputs.now, inputs.tables.paces) if power else {}
        left = {job_id: work for job_id, work in works.items() if work}
        pays = worth_preferring(left, sum(s.gpus for s in jobs) / len(jobs))
        short |= within_groups(short_factors(left, power * pays), groups)
        known, fair = group_shares(groups), fair | fairness_factors(groups)
        of_groups |= {job_id: known[group] for job_id, group in groups.items()}
        needs = {s.job_id: gpus for s in jobs if s.job_id in found and (gpus := found[s.job_id].gpus) is not None}
        if needs:
            own = {s.job_id: s.weight * fair.get(s.job_id, 1.0) * short.get(s.job_id, 1.0) for s in jobs}
            asked = deadline_factors(needs, own, sum(s.gpus for s in jobs), settings.deadline_weight)
            urgent |= within_shares(asked, own, groups)
    every = fair.keys() | short.keys() | urgent.keys()
    factors = {one: fair.get(one, 1.0) * short.get(one, 1.0) * urgent.get(one, 1.0) for one in every}
    paid = {job_id: aim.paid for job_id, aim in found.items() if aim.paid is not None}
    return Weights(factors, short, of_groups, urgent, paid)


def _grouping(inputs: Inputs) -> Callable[[Job], ShareGroup] | None:
    """Whose each job is, as far as fairness counts that; None: every job is for itself."""
    fairness, tree = inputs.settings.fairness, inputs.site.shares
    if fairness == "job":
        return None
    if fairness == "user":
        return lambda job: _single("user", job.user)
    if fairness == "account" or tree is None:
        return lambda job: _single("account", job.account)
    return lambda job: tree.path(job.account, job.user)


def _single(kind: str, name: str) -> ShareGroup:
    return ((f"{kind} {name}", 1.0),)


def _withdrawn(context: RoundContext) -> dict[int, int]:
    given = [(job_id, served.need.job_id) for served in reversed(context.room.served) for job_id in served.givers]
    return {job_id: need for job_id, need in given if context.running_jobs[job_id].growing}


def _group(made: Plan, pool: Pool, running_jobs: list[RunningJob]) -> tuple[list[TargetSize], Group]:
    """The fixed targets of the jobs of one pool, and what the optimizer is to share out among the others."""
    context = made.context
    reserve = context.inputs.settings.rigid_reserve_gpus * len(pool.partitions)
    idle = max(0, context.room.ledger.gpus(pool.nodes) - reserve)
    made.idle[pool.name] = idle
    given = sum([context.forced_gpus(running) for running in running_jobs]) if context.gives else 0
    managed = managed_gpus(context.inputs.snapshot, pool, running_jobs, context.room.ledger, idle, made.withdrawn)
    made.capacity[pool.name] = managed - given
    target_sizes, movable = [], []
    for running in running_jobs:
        target_size = None if running.optimized and not context.draining else fixed_target(context, running)
        if target_size is not None:
            target_sizes.append(target_size)
            idle = max(0, idle - (0 if target_size.keep else max(0, target_size.gpus - running.gpus)))
            context.limits.give(running.job_id, max(target_size.gpus, running.gpus))
        elif running.frozen is None:
            movable.append(running)
    found = candidates_of(context, pool, movable, idle)
    return target_sizes, Group(pool, found, idle + sum(m.rest for m in found))


def _begun(moved: Iterable[Move], settings: PlannerSettings) -> tuple[Move, ...]:
    """The moves that begin now: those for waiting jobs first, shrinks before growths, the most progress first; then
    those that change a batch alone, which take no node from anyone."""
    ready = [move for move in moved if move.changes and not move.later]
    batches = sorted((move for move in ready if move.of_batch), key=lambda m: -m.target_size.progress_change)
    ordered = sorted(
        (move for move in ready if not move.of_batch),
        key=lambda m: (not m.target_size.forced, m.gpus > m.target_size.running.gpus, -m.target_size.progress_change),
    )
    return (*ordered[: settings.max_resizes_per_round], *batches[:MOST_BATCHES])


def shares(
    members: Sequence[Candidate],
    capacity: int,
    caps: Sequence[Cap],
    waiting: Sequence[StartingJob],
    models: Mapping[int, Model],
    settings: PlannerSettings,
    tables: ChoiceTables,
) -> dict[int, int]:
    """What a plan would give the waiting jobs of a pool if they ran: GPUs by job id. Those that come first are
    admitted, as long as everyone can have its smallest size; one that is not, that has no model, or for which there is
    no plan, has its smallest. `capacity`: what these members and waiting jobs share; `models`: of the waiting jobs'
    speed, by job id. A job counts by its own weight, without what fairness or remaining work make of it."""
    views, admitted = list[JobView](members), list[JobView]()
    least = sum(min(k for k, _ in view.choices) for view in views)
    found = {one.need.job_id: min(one.sizes) for one in waiting}
    for one in waiting:
        least += found[one.need.job_id]
        model = models.get(one.need.job_id)
        if model is not None and least <= capacity:
            admitted.append(_view(one, model, settings))
    if not admitted:
        return found
    policy = settings.policy if POLICIES[settings.policy].planner is None else DEFAULT_POLICY
    try:
        (planned,) = plan_pools([[*views, *admitted]], [capacity], caps, policy, tables)
    except (InfeasiblePlan, PlanInputError):
        return found
    return found | {int(target.label): target.gpus for target in planned.targets[len(views) :]}


def _view(one: StartingJob, model: Model, settings: PlannerSettings) -> JobView:
    request = one.job.request
    reference = min(request.batches(one.script.gpus), default=1)
    return JobView(
        label=str(one.need.job_id),
        model=model,
        choices=tuple((gpus, size.nodes) for gpus, size in sorted(one.sizes.items())),
        batches=request.batches,
        current_gpus=0,
        current_batch=0,
        reference_gpus=one.script.gpus,
        reference_batch=reference,
        weight=weight_of(request, settings),
        horizon_s=settings.horizon_s,
        quality=request.until == "quality",
    )
