"""One round's plan: room for waiting jobs, then everyone's share, then the moves, each with its reason. Pure.

Promise: the same inputs give the same plan; no job is planned below its minimum, and no GPU is planned twice.
Limit: a plan is as good as its snapshot; what Slurm refuses is found out when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.protocol.messages import Directive, Shape

from ..capacity.ledger import Pool, pool_of, pools, unexplained
from ..capacity.make_room import Met, Room, make_room
from ..capacity.pending_jobs import needs
from ..capacity.placement import take
from .allocation import Division, Group, members_of
from .context import Inputs, Situation
from .decision_record import Context, others, row, row_of_frozen, row_of_waiting
from .eligibility import JobState, Standing, stand
from .fixed_targets import settled
from .free_capacity import comebacks, free_ledger, reachable
from .moves import Move, Wish, moves


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
    ledger = free_ledger(snapshot, standings.values())
    take(ledger, (shape for job_id, shape in inputs.put_back.items() if job_id not in standings))
    waiting = needs(snapshot, inputs.roster, inputs.passed)
    wanted = frozenset(name for need in waiting for part in need.parts for name in part.required)
    if wanted or inputs.site.switches:
        standings = {
            job_id: replace(s, giver=replace(s.giver, switches=inputs.site.switches, wanted=wanted))
            for job_id, s in standings.items()
        }
    # A job that is just starting still waits in this snapshot: what it seems to lack must not be taken from anyone.
    steady = unexplained(snapshot) == 0
    givers = [s.giver for s in standings.values() if steady and s.frozen is None and s.state.pinned is None]
    room = make_room(snapshot, ledger, givers, waiting)
    resumes = comebacks(inputs, room.ledger)
    found = _Round(Situation(inputs, standings, room)).plan()
    return Plan(
        rows=tuple(sorted(found.rows + _waiting_rows(inputs, room), key=lambda row: row.job_id)),
        directives=tuple(found.directives),
        met=room.met,
        unmet=tuple(need.job_id for need in room.unmet),
        capacity=found.capacity,
        idle=found.idle,
        value=found.division.value,
        bound=found.division.bound,
        trouble=tuple(found.division.trouble),
        resumes=resumes,
    )


class _Round:
    """The work of one round, pool by pool; made once and thrown away."""

    def __init__(self, situation: Situation) -> None:
        self.situation, self.inputs, self.division = situation, situation.inputs, Division(situation)
        self.rows: list[DecisionRow] = []
        self.directives: list[Directive] = []
        self.capacity: dict[str, int] = {}
        self.idle: dict[str, int] = {}

    def plan(self) -> _Round:
        found = pools(self.inputs.snapshot)
        by_pool: dict[str, list[Standing]] = {}
        places: dict[int, Pool] = {}
        for standing in self.situation.standings.values():
            pool = pool_of(found, standing.job.base)
            if pool is not None:
                by_pool.setdefault(pool.name, []).append(standing)
                places[standing.job_id] = pool
        nodes = reachable(self.inputs, self.situation.standings, places)
        wishes: list[Wish] = []
        groups = []
        for pool in found:
            decided, group = self._pool(pool, by_pool.get(pool.name, []))
            wishes += decided
            groups.append(group)
        wishes += self.division.share([group for group in groups if group.members], nodes)
        made = moves(wishes, self.situation.room.ledger.copy(), nodes)
        self._record(made, places)
        return self

    def _pool(self, pool: Pool, standings: list[Standing]) -> tuple[list[Wish], Group]:
        """What is settled of the jobs of one pool, and what the optimizer is to share out among the others."""
        settings = self.inputs.settings
        reserve = settings.rigid_reserve_gpus * len(pool.partitions)
        idle = max(0, self.situation.room.ledger.gpus(pool.nodes) - reserve)
        self.idle[pool.name] = idle
        held = sum(standing.gpus for standing in standings)
        self.capacity[pool.name] = held + idle - sum(self.situation.forced_gpus(standing) for standing in standings)
        wishes, movable = [], []
        for standing in standings:
            wish = settled(self.situation, standing)
            if wish is not None:
                wishes.append(wish)
                idle = max(0, idle - max(0, wish.gpus - standing.gpus))
                self.situation.limits.give(standing.job_id, max(wish.gpus, standing.gpus))
            elif standing.frozen is None:
                movable.append(standing)
        found = members_of(self.situation, pool, movable, idle)
        capacity = idle + sum(m.rest for m in found)
        return wishes, Group(pool, found, capacity)

    def _record(self, made: Mapping[int, Move], places: Mapping[int, Pool]) -> None:
        """Rows for all running jobs, and the directives that may begin now: those for waiting jobs first."""
        settings = self.inputs.settings
        ordered = sorted(made.values(), key=lambda m: (not m.wish.forced, m.gpus > m.wish.standing.gpus, -m.wish.gain))
        begun: set[int] = set()
        for move in ordered:
            if move.changes and not move.later and len(begun) < settings.max_resizes_per_round:
                begun.add(move.wish.standing.job_id)
                self.directives.append(move.directive(settings.companion_wait_s))
        moved = cache(lambda: self._moved(made))
        makes_room: dict[int, list[Met]] = {}
        for met in self.situation.room.met:
            for job_id in met.givers:
                makes_room.setdefault(job_id, []).append(met)
        for job_id, standing in self.situation.standings.items():
            context = self._context(standing, places.get(job_id), makes_room.get(job_id, ()), moved)
            if job_id in made:
                self.rows.append(row(made[job_id], job_id in begun, context))
            else:
                self.rows.append(row_of_frozen(standing, context))

    def _moved(self, made: Mapping[int, Move]) -> list[dict[str, Any]]:
        """Read by every new row of a job that moves: made once a round, if at all."""
        known = {job_id: m for job_id, (m, _, _) in self.division.shared.items()}
        return others([move for move in made.values() if move.changes], known)

    def _context(
        self,
        standing: Standing,
        pool: Pool | None,
        makes_room: Sequence[Met],
        moved: Callable[[], Sequence[dict[str, Any]]],
    ) -> Context:
        member, shared, target = self.division.shared.get(standing.job_id, (None, None, None))
        return Context(
            now=self.inputs.now,
            settings=self.inputs.settings,
            idle=self.idle.get(pool.name, 0) if pool else 0,
            capacity=self.capacity.get(pool.name, 0) if pool else 0,
            pool=pool.name if pool else "",
            member=member,
            shared=shared,
            target=target,
            met=tuple(makes_room),
            moved=moved,
            limit=self.situation.said.get(standing.job_id, ""),
            stands=self.inputs.marks.get(standing.job_id),
        )


def _waiting_rows(inputs: Inputs, room: Room) -> list[DecisionRow]:
    met = {entry.need.job_id: entry for entry in room.met}
    return [
        row_of_waiting(job, met.get(job_id), inputs.now, inputs.settings)
        for job_id, job in inputs.roster.elastic.items()
        if job.base.pending
    ]
