"""One round's plan: the decisions, and for every job a row that says what was decided and why. Pure.

Promise: a row for every elastic job that runs or waits, whether or not anything becomes of it, unless the same decision
stands already.
Limit: a plan is as good as its snapshot; what Slurm refuses is found out when it is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from operator import attrgetter
from typing import Any

from slurm_elastic.db.rows import DecisionRow, Mark
from slurm_elastic.protocol.messages import Resize, Shape

from ..capacity.ledger import Pool
from ..capacity.make_room import RoomMade
from ..capacity.unlisted_gpus import by_node, lasting
from ..mechanisms.timeouts import companion_wait_s
from .context import Inputs
from .decide import Decisions, decide
from .decision_record import (
    DecisionContext,
    mark_of,
    mark_of_frozen,
    others,
    row,
    row_of_frozen,
    row_of_waiting,
)
from .moves import Move
from .row_speeds import Row, Speeds, speeds_of
from .running.job import RunningJob
from .waiting.first_sizes import NO_FIRST_SIZES, FirstSizes


@dataclass(frozen=True, slots=True)
class Plan:
    """The decisions, the resizes to begin now, and what waiting jobs get."""

    rows: tuple[DecisionRow, ...] = ()
    """Of every elastic job, but those whose decision is the one that stands."""
    resizes: tuple[Resize, ...] = ()
    served: tuple[RoomMade, ...] = ()
    unserved: tuple[int, ...] = ()
    capacity: Mapping[str, int] = field(default_factory=dict)
    """Managed capacity by pool, in GPUs."""
    idle: Mapping[str, int] = field(default_factory=dict)
    """GPUs by pool that nobody holds and no waiting job needs."""
    value: float = 0.0
    bound: float = 0.0
    trouble: tuple[str, ...] = ()
    """Pools for which no plan could be made, with the reason."""
    fell_back: str | None = None
    """Why the site's policy did not plan, and the built-in one did; empty: it planned; None: it was not asked."""
    unlisted: Mapping[str, int] = field(default_factory=dict)
    """By node, the GPUs in use that no job holds, if jobs wait or there were any before."""
    withdrawn: Mapping[int, int] = field(default_factory=dict)
    """Jobs whose growth under way is to be withdrawn, each with the waiting job that needs its nodes."""
    resumes: Mapping[int, Shape] = field(default_factory=dict)
    """What to give waiting jobs that have run before: the preempted, and those that lost a node."""
    first: FirstSizes = NO_FIRST_SIZES
    """At which sizes waiting jobs that have never run are to start."""
    decisions: Decisions | None = field(default=None, compare=False, repr=False)
    """What it was made from."""


def plan_round(inputs: Inputs, with_rows: bool = True) -> Plan:
    """The plan of one round. with_rows: False: nobody reads the rows, and there are none."""
    made = decide(inputs)
    room, allocation = made.context.room, made.allocation
    rows = _running_rows(made) + _waiting_rows(made) if with_rows else []
    return Plan(
        rows=tuple(sorted(rows, key=attrgetter("job_id"))),
        resizes=tuple(move.resize(_wait_s(inputs, move)) for move in made.begun),
        served=room.served,
        unserved=tuple(need.job_id for need in room.unserved),
        capacity=made.capacity,
        idle=made.idle,
        value=allocation.value,
        bound=allocation.bound,
        trouble=tuple(allocation.trouble),
        fell_back=allocation.fell_back,
        unlisted=made.context.unlisted,
        withdrawn=made.withdrawn,
        resumes=made.resumes,
        first=made.first,
        decisions=made,
    )


def _wait_s(inputs: Inputs, move: Move) -> float:
    base = move.target_size.running.job.base
    return companion_wait_s(inputs.settings, inputs.site, base.user, base.partition)


def _running_rows(made: Decisions) -> list[DecisionRow]:
    inputs, running_jobs = made.context.inputs, made.context.running_jobs
    new = [job_id for job_id in running_jobs if _mark(made, job_id) != inputs.marks.get(job_id)]
    begun = {move.target_size.running.job_id for move in made.begun}
    moved, unlisted = cache(lambda: _moved(made)), cache(lambda pool: _unlisted(made, pool))
    makes_room: dict[int, list[RoomMade]] = {}
    for served in made.context.room.served:
        for job_id in served.givers:
            makes_room.setdefault(job_id, []).append(served)
    speeds, rows = _speeds(made, new), []
    for job_id in new:
        running, move, pool = running_jobs[job_id], made.moves.get(job_id), made.pools.get(job_id)
        makes, own = makes_room.get(job_id, ()), speeds.get(job_id)
        context = _context(made, running, pool, makes, moved, unlisted(pool), own)
        if move is None:
            rows.append(row_of_frozen(running, context))
        else:
            rows.append(row(move, job_id in begun, context))
    return rows


def _mark(made: Decisions, job_id: int) -> Mark:
    move, mode = made.moves.get(job_id), made.context.inputs.settings.mode
    return mark_of_frozen(made.context.running_jobs[job_id], mode) if move is None else mark_of(move, mode)


def _speeds(made: Decisions, new: Sequence[int]) -> dict[int, Speeds]:
    """Of those jobs that could be moved."""
    rows = []
    for job_id in new:
        move, (member, _, target) = made.moves.get(job_id), made.allocation.answers.get(job_id, _NOT_SHARED)
        if move is not None:
            rows.append(Row(move.target_size.running, move.gpus, move.target_size.batch, member, target))
    return {row.running.job_id: own for row, own in zip(rows, speeds_of(rows), strict=True)}


_NOT_SHARED = None, None, None


def _moved(made: Decisions) -> list[dict[str, Any]]:
    """Read by every new row of a job that moves: made once a round, if at all."""
    known = {job_id: m for job_id, (m, _, _) in made.allocation.answers.items()}
    return others([move for move in made.moves.values() if move.changes], known)


def _context(
    made: Decisions,
    running: RunningJob,
    pool: Pool | None,
    makes_room: Sequence[RoomMade],
    moved: Callable[[], Sequence[dict[str, Any]]],
    unlisted: str,
    speeds: Speeds | None,
) -> DecisionContext:
    inputs = made.context.inputs
    member, shared, target = made.allocation.answers.get(running.job_id, _NOT_SHARED)
    return DecisionContext(
        now=inputs.now,
        settings=inputs.settings,
        idle=made.idle[pool.name] if pool else 0,
        capacity=made.capacity[pool.name] if pool else 0,
        pool=pool.name if pool else "",
        member=member,
        speeds=speeds,
        shared=shared,
        target=target,
        served=tuple(makes_room),
        moved=moved,
        limit=made.context.limiting_reasons.get(running.job_id, ""),
        short=made.context.weights.short.get(running.job_id, 1.0),
        share=made.context.weights.shares.get(running.job_id),
        unlisted=unlisted,
        asleep=made.context.asleep.get(running.job_id, 0),
    )


def _unlisted(made: Decisions, pool: Pool | None) -> str:
    left_out = lasting(made.context.unlisted, made.context.inputs.unlisted_before)
    return by_node({name: gpus for name, gpus in left_out.items() if pool and name in pool.nodes}) if left_out else ""


def _waiting_rows(made: Decisions) -> list[DecisionRow]:
    inputs, first = made.context.inputs, {**made.first.aims, **made.first.starts}
    served = {entry.need.job_id: entry for entry in made.context.room.served}
    return [
        row_of_waiting(job, served.get(job_id), first.get(job_id), inputs.now, inputs.settings)
        for job_id, job in inputs.roster.elastic.items()
        if job.base.pending
    ]
