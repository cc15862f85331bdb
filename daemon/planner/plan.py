"""One round's plan: room for waiting jobs, then everyone's share, then the moves, each with its reason. Pure.

Promise: the same inputs give the same plan; no job is planned below its minimum, and no GPU is planned twice.
Limit: a plan is as good as its snapshot; what Slurm refuses is found out when it is asked.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.trainer_shim.wire import Directive, Shape

from ..capacity.anew import can_start_anew, comes_back_at, put_back
from ..capacity.elastic import Roster
from ..capacity.growth import take
from ..capacity.ledger import Amount, Ledger, Pool, pool_of, pools, unexplained
from ..capacity.limits import gpu_limits
from ..capacity.needs import meets, needs
from ..capacity.room import Met, Room, make_room
from ..capacity.units import Unit
from ..optimizer.errors import InfeasiblePlan, PlanInputError
from ..optimizer.models import fit as fit_model
from ..optimizer.plans import Cache
from ..optimizer.targets import Target
from ..reasons import Reason
from ..settings import Settings
from ..slurm.site import Site
from ..slurm.types import Snapshot
from .evidence import Context, others, row, row_of_frozen, row_of_waiting
from .limits import Limits, reach
from .moves import Move, Wish, moves, nearest_batch
from .sharing import Fit, Member, Shared, explored, member, rests, share
from .standing import JobState, Standing, sizes, stand


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a plan is made from."""

    snapshot: Snapshot
    roster: Roster
    states: Mapping[int, JobState]
    settings: Settings
    now: float
    passed: Collection[int] = ()
    """Waiting jobs that did not take the room made for them."""
    fit: Fit = fit_model
    cache: Cache | None = None
    """What was made of the same jobs in the round before; it changes no plan."""
    site: Site = field(default_factory=Site)
    put_back: Mapping[int, Shape] = field(default_factory=dict)
    """What jobs that a resize is putting back are to get, by job id."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A row for every elastic job, the resizes to begin now, and what waiting jobs get."""

    rows: tuple[DecisionRow, ...] = ()
    directives: tuple[Directive, ...] = ()
    met: tuple[Met, ...] = ()
    unmet: tuple[int, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Managed capacity by pool, in GPUs."""
    idle: Mapping[str, int] = field(default_factory=dict)
    """GPUs by pool that nobody holds and no waiting job needs."""
    value: float = 0.0
    bound: float = 0.0
    trouble: tuple[str, ...] = ()
    """Pools for which no plan could be made, with the reason."""
    resumes: Mapping[int, Shape] = field(default_factory=dict)
    """What to give waiting jobs that have run before: the preempted, and those that lost a node."""


def plan_round(inputs: Inputs) -> Plan:
    """The plan of one round."""
    settings, snapshot = inputs.settings, inputs.snapshot
    if inputs.cache is not None:
        inputs.cache.turn()
    standings = {
        job_id: stand(job, inputs.states.get(job_id, JobState()), settings, inputs.now)
        for job_id, job in inputs.roster.elastic.items()
        if job.running
    }
    ledger = _ledger(snapshot, standings.values())
    take(ledger, (shape for job_id, shape in inputs.put_back.items() if job_id not in standings))
    waiting = needs(snapshot, inputs.roster, inputs.passed)
    wanted = frozenset(name for need in waiting for part in need.parts for name in part.required)
    if wanted or inputs.site.switches:
        standings = {
            job_id: replace(s, giver=replace(s.giver, switches=inputs.site.switches, wanted=wanted))
            for job_id, s in standings.items()
        }
    # A job that is just starting still waits in this snapshot: what it seems to lack must not be taken from anyone.
    settled = unexplained(snapshot) == 0
    givers = [s.giver for s in standings.values() if settled and s.frozen is None and s.state.pinned is None]
    room = make_room(snapshot, ledger, givers, waiting)
    resumes = _resumes(inputs, room.ledger)
    found = _Round(inputs, standings, room).plan()
    return Plan(
        rows=tuple(sorted(found.rows + _waiting_rows(inputs, room), key=lambda row: row.job_id)),
        directives=tuple(found.directives),
        met=room.met,
        unmet=tuple(need.job_id for need in room.unmet),
        capacity=found.capacity,
        idle=found.idle,
        value=found.value,
        bound=found.bound,
        trouble=tuple(found.trouble),
        resumes=resumes,
    )


def _ledger(snapshot: Snapshot, standings: Collection[Standing]) -> Ledger:
    """What is free, what is about to be, less what resizes under way are going to take."""
    ledger = Ledger.of(snapshot)
    for standing in standings:
        for unit, amount in standing.loose.items():
            ledger.release(unit[1], amount)
    for standing in standings:
        intent = standing.state.intent
        if intent is None or intent.state == "running":
            continue
        number = intent.directive.id
        granted = {node for held in standing.job.held if held.directive == number for node in held.piece.nodes}
        granted |= set(standing.job.base.nodes) if intent.directive.requeues else set()
        for shape in intent.directive.add:
            for node in shape.node_list:
                if node not in granted and ledger.usable(node):
                    ledger.take(node, Amount(shape.gpus_per_node, shape.cpus_per_node, shape.mem_mb_per_node))
    return ledger


def _resumes(inputs: Inputs, ledger: Ledger) -> dict[int, Shape]:
    """What waiting jobs that have run before are to come back at; counted as used in the ledger."""
    found = {}
    for job_id, job in sorted(inputs.roster.elastic.items(), key=lambda item: (-item[1].base.priority, item[0])):
        known = job_id in inputs.put_back or not can_start_anew(job) or not put_back(job.base, inputs.snapshot.at)
        shape = None if known else comes_back_at(inputs.snapshot, job, ledger, sizes(job))
        if shape is not None:
            take(ledger, (shape,))
            found[job_id] = shape
    return found


@dataclass(frozen=True, slots=True)
class _Group:
    """The movable jobs of a pool, and the GPUs that they share."""

    pool: Pool
    members: list[Member]
    capacity: int


class _Round:
    """The work of one round, pool by pool; made once and thrown away."""

    def __init__(self, inputs: Inputs, standings: Mapping[int, Standing], room: Room) -> None:
        self.inputs, self.standings, self.room = inputs, standings, room
        self.rows: list[DecisionRow] = []
        self.directives: list[Directive] = []
        self.capacity: dict[str, int] = {}
        self.idle: dict[str, int] = {}
        self.trouble: list[str] = []
        self.value = self.bound = 0.0
        slurm = gpu_limits(inputs.site, inputs.snapshot, inputs.roster)
        self.limits = Limits(inputs.settings.gpu_limits, standings.values(), slurm)
        self.said: dict[int, str] = {}
        """What stands in the way of more, by job."""
        self._shared: dict[int, tuple[Member, Shared, Target]] = {}

    def plan(self) -> _Round:
        found = pools(self.inputs.snapshot)
        by_pool: dict[str, list[Standing]] = {}
        places: dict[int, Pool] = {}
        for standing in self.standings.values():
            pool = pool_of(found, standing.job.base)
            if pool is not None:
                by_pool.setdefault(pool.name, []).append(standing)
                places[standing.job_id] = pool
        nodes = _nodes(self.inputs, self.standings, places)
        wishes: list[Wish] = []
        groups = []
        for pool in found:
            settled, group = self._pool(pool, by_pool.get(pool.name, []))
            wishes += settled
            groups.append(group)
        wishes += self._share([group for group in groups if group.members], nodes)
        made = moves(wishes, self.room.ledger.copy(), nodes)
        self._record(made, places)
        return self

    def _pool(self, pool: Pool, standings: list[Standing]) -> tuple[list[Wish], _Group]:
        """What is settled of the jobs of one pool, and what the optimizer is to share out among the others."""
        settings = self.inputs.settings
        reserve = settings.rigid_reserve_gpus * len(pool.partitions)
        idle = max(0, self.room.ledger.gpus(pool.nodes) - reserve)
        self.idle[pool.name] = idle
        held = sum(standing.gpus for standing in standings)
        self.capacity[pool.name] = held + idle - sum(self._forced_gpus(standing) for standing in standings)
        wishes, movable = [], []
        for standing in standings:
            wish = self._settled(standing)
            if wish is not None:
                wishes.append(wish)
                idle = max(0, idle - max(0, wish.gpus - standing.gpus))
                self.limits.give(standing.job_id, max(wish.gpus, standing.gpus))
            elif standing.frozen is None:
                movable.append(standing)
        members = self._members(pool, movable, idle)
        capacity = idle + sum(m.rest for m in members)
        return wishes, _Group(pool, members, capacity)

    def _settled(self, standing: Standing) -> Wish | None:
        """A job whose size is not the optimizer's to choose: pinned, or not measured yet."""
        if standing.frozen is not None:
            return None
        forced, pinned = self._forced(standing), standing.state.pinned
        if pinned is not None and pinned > standing.gpus and self._failed_lately(standing):
            return Wish(standing, standing.gpus, standing.batch, Reason.KEEP_FAILED, 0.0)
        if pinned is not None and pinned > standing.gpus + self._room(standing, pinned):
            self.said[standing.job_id] = (
                f"it is pinned to {pinned} GPUs, and {self.limits.label(standing.job_id)} in all"
            )
            return Wish(standing, standing.gpus, standing.batch, Reason.KEEP_LIMIT, 0.0)
        if pinned is not None:
            # An owner's word does not wait for a cooldown.
            batch = nearest_batch(standing.job.request.batches(pinned), standing.batch)
            return Wish(standing, pinned, batch, Reason.KEEP_PINNED, float("inf"))
        if not forced and self._leaves(standing):
            return Wish(standing, standing.gpus, standing.batch, Reason.SHRINK_CAPACITY, 0.0, elsewhere=True)
        if standing.measured:
            return None
        if not forced:
            return Wish(standing, standing.gpus, standing.batch, Reason.KEEP_UNMEASURED, 0.0)
        rest = max(rests(standing, forced))
        batch = nearest_batch(standing.job.request.batches(rest), standing.batch)
        return Wish(standing, rest, batch, self._why_forced(standing), 0.0, forced)

    def _leaves(self, standing: Standing) -> bool:
        """Whether one of its base's nodes is being drained, and it may be requeued elsewhere."""
        nodes = self.inputs.snapshot.nodes
        may = standing.may_start_anew and standing.may_grow and standing.may_shrink
        return may and any(
            {"DRAIN", "DRAINING"} & nodes[name].flags for name in standing.job.base.nodes if name in nodes
        )

    def _members(self, pool: Pool, movable: list[Standing], idle: int) -> list[Member]:
        node_gpus = max(
            (node.gpus for node in self.inputs.snapshot.nodes.values() if node.name in pool.nodes), default=1
        )
        everything = idle + sum(standing.gpus for standing in movable)
        found = []
        for standing in sorted(movable, key=lambda s: (s.job.base.submit_time, s.job_id)):
            made = member(
                standing, self._forced(standing), everything, node_gpus, self.inputs.settings, self.inputs.fit
            )
            if made is not None:
                found.append(made)
        return found

    def _room(self, standing: Standing, otherwise: int) -> int:
        room = self.limits.room(standing.job_id)
        return otherwise if room is None else room

    def _share(self, groups: list[_Group], nodes: Mapping[int, frozenset[str]]) -> list[Wish]:
        """The optimizer's answer for all pools; one that it refuses is left as it is, for the reason given."""
        wishes: list[Wish] = []
        try:
            shared = self._solve(groups, nodes)
        except (InfeasiblePlan, PlanInputError):
            good = []
            for group in groups:
                try:
                    self._solve([group], nodes)
                except (InfeasiblePlan, PlanInputError) as error:
                    self.trouble.append(f"{group.pool.name}: {error}")
                    wishes += [self._at_rest(m) for m in group.members]
                else:
                    good.append(group)
            groups, shared = good, self._solve(good, nodes)
        for group, answer in zip(groups, shared, strict=True):
            for m, target in zip(group.members, answer.targets, strict=True):
                self.limits.give(m.standing.job_id, max(target.gpus, m.standing.gpus))
            wishes += self._wishes(group.members, group.capacity, answer)
        return wishes

    def _solve(self, groups: list[_Group], nodes: Mapping[int, frozenset[str]]) -> list[Shared]:
        ledger = self.room.ledger
        free = {name: ledger.gpus((name,)) for group in groups for name in group.pool.nodes}
        caps, first = self.limits.caps([m for group in groups for m in group.members]), 0
        for group in groups:
            for cap in reach(group.members, nodes, free):
                caps.append(replace(cap, members=frozenset(first + i for i in cap.members)))
            first += len(group.members)
        return share(
            [g.members for g in groups], [g.capacity for g in groups], caps, self.inputs.settings, self.inputs.cache
        )

    def _wishes(self, members: list[Member], capacity: int, shared: Shared) -> list[Wish]:
        """The optimizer's answer for one pool as wishes, sizes worth a try on what stays idle among them."""
        self.value += shared.value
        self.bound += shared.bound
        wishes = []
        idle = capacity - sum(target.gpus for target in shared.targets)
        taken = any(target.gpus > m.standing.gpus for m, target in zip(members, shared.targets, strict=True))
        for m, target in zip(members, shared.targets, strict=True):
            self._shared[m.standing.job_id] = (m, shared, target)
            free = min(idle, self._room(m.standing, idle))
            tried = explored(m, free) if self._stays(m, target) else None
            if tried is not None:
                idle -= tried[0] - m.standing.gpus
                self.limits.give(m.standing.job_id, tried[0])
                wishes.append(Wish(m.standing, tried[0], tried[1], Reason.GROW_IDLE, 0.0))
                continue
            reason = self._reason(m, target.gpus, target.batch, target.reason)
            if target.limit:
                self.said[m.standing.job_id] = f"{target.limit} in all: without that it would have {target.unlimited}"
                if reason is Reason.KEEP_BEST:
                    reason = Reason.KEEP_LIMIT
                elif not m.forced and target.gpus < m.standing.gpus <= target.unlimited:
                    reason = Reason.SHRINK_LIMIT
            if reason is Reason.SHRINK_SHARE and not taken:
                reason = Reason.SHRINK_NO_GAIN
            elif reason is Reason.SHRINK_CAPACITY and any(other.forced for other in members):
                # The room is made by another job, which this one makes up for.
                reason = self._why_forced(next(other.standing for other in members if other.forced))
            wishes.append(Wish(m.standing, target.gpus, target.batch, reason, target.gain, m.forced))
        return wishes

    @staticmethod
    def _stays(m: Member, target: Target) -> bool:
        return not m.forced and target.gpus == m.standing.gpus and target.batch == m.standing.batch

    def _at_rest(self, m: Member) -> Wish:
        """Without a plan nobody moves, but for waiting jobs."""
        reason = self._why_forced(m.standing) if m.forced else Reason.KEEP_BEST
        batch = (
            nearest_batch(m.standing.job.request.batches(m.rest), m.standing.batch) if m.forced else m.standing.batch
        )
        return Wish(m.standing, m.rest, batch, reason, 0.0, m.forced)

    def _reason(self, m: Member, gpus: int, batch: int, said: str) -> Reason:
        if m.forced and gpus <= m.standing.gpus:
            return self._why_forced(m.standing)
        if gpus == m.standing.gpus:
            if batch != m.standing.batch:
                return Reason.BATCH
            return self._why_kept(m.standing)
        try:
            return Reason(said)
        except ValueError:
            return Reason.GROW_SHARE if gpus > m.standing.gpus else Reason.SHRINK_SHARE

    def _why_kept(self, standing: Standing) -> Reason:
        if standing.until is None or self.inputs.now >= standing.until:
            return Reason.KEEP_BEST
        return Reason.KEEP_FAILED if self._failed_lately(standing) else Reason.KEEP_COOLDOWN

    @staticmethod
    def _failed_lately(standing: Standing) -> bool:
        last = standing.state.last
        return not standing.may_grow and last is not None and last.state != "done"

    def _forced(self, standing: Standing) -> frozenset[Unit]:
        return self.room.forced.get(standing.job_id, frozenset())

    def _forced_gpus(self, standing: Standing) -> int:
        return sum(standing.giver.share[unit[0]].gpus for unit in self._forced(standing))

    def _why_forced(self, standing: Standing) -> Reason:
        """For an ordinary job when one of those made room for is ordinary, else for an elastic one."""
        for met in self.room.met:
            if standing.job_id in met.givers and not met.need.elastic:
                return Reason.SHRINK_FOR_JOB
        return Reason.SHRINK_FOR_ELASTIC

    def _record(self, made: Mapping[int, Move], places: Mapping[int, Pool]) -> None:
        """Rows for all running jobs, and the directives that may begin now: those for waiting jobs first."""
        settings = self.inputs.settings
        ordered = sorted(made.values(), key=lambda m: (not m.wish.forced, m.gpus > m.wish.standing.gpus, -m.wish.gain))
        begun: set[int] = set()
        for move in ordered:
            if move.changes and not move.later and len(begun) < settings.max_resizes_per_round:
                begun.add(move.wish.standing.job_id)
                self.directives.append(move.directive(settings.companion_wait_s))
        members = {job_id: m for job_id, (m, _, _) in self._shared.items()}
        moved = others([move for move in made.values() if move.changes], members)
        for job_id, standing in self.standings.items():
            context = self._context(standing, places.get(job_id), moved)
            if job_id in made:
                self.rows.append(row(made[job_id], job_id in begun, context))
            else:
                self.rows.append(row_of_frozen(standing, context))

    def _context(self, standing: Standing, pool: Pool | None, moved: list[dict[str, Any]]) -> Context:
        member, shared, target = self._shared.get(standing.job_id, (None, None, None))
        return Context(
            now=self.inputs.now,
            settings=self.inputs.settings,
            idle=self.idle.get(pool.name, 0) if pool else 0,
            capacity=self.capacity.get(pool.name, 0) if pool else 0,
            pool=pool.name if pool else "",
            member=member,
            shared=shared,
            target=target,
            met=tuple(met for met in self.room.met if standing.job_id in met.givers),
            moved=moved,
            limit=self.said.get(standing.job_id, ""),
        )


def _nodes(inputs: Inputs, standings: Mapping[int, Standing], places: Mapping[int, Pool]) -> dict[int, frozenset[str]]:
    """Nodes of each job's pool that its own partition reaches, its constraint accepts, and nobody has reserved for a
    time before its end: Slurm would start no companion there. Alike ones share a set."""
    snapshot = inputs.snapshot
    coming = [kept for kept in inputs.site.reservations if kept.end > snapshot.at]
    known: dict[tuple[object, ...], frozenset[str]] = {}
    found = {}
    for job_id, pool in places.items():
        base = standings[job_id].job.base
        ends = inf if base.time_left_s is None else snapshot.at + base.time_left_s
        closed = frozenset(node for kept in coming if kept.start < ends for node in kept.nodes)
        partition = base.partition.split(",")[0]
        key = pool.name, partition, base.features, closed
        if key not in known:
            nodes = (snapshot.nodes[name] for name in pool.nodes - closed)
            fits = (node for node in nodes if partition in node.partitions and meets(base.features, node.features))
            known[key] = frozenset(node.name for node in fits)
        found[job_id] = known[key]
    return found


def _waiting_rows(inputs: Inputs, room: Room) -> list[DecisionRow]:
    met = {entry.need.job_id: entry for entry in room.met}
    return [
        row_of_waiting(job, met.get(job_id), inputs.now, inputs.settings)
        for job_id, job in inputs.roster.elastic.items()
        if job.base.pending
    ]
