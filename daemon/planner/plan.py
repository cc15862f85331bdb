"""One round's plan: the decisions, and for every job a row that says what was decided and why. Pure.

Promise: a row for every elastic job that runs or waits, whether or not anything becomes of it, unless the same decision
stands already.
Limit: a plan is as good as its snapshot; what Slurm refuses is found out when it is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.protocol.messages import Resize, Shape

from ..capacity.make_room import RoomMade
from ..mechanisms.timeouts import companion_wait_s
from .context import Inputs
from .decide import Decisions, decide
from .decision_record import DecisionRecord
from .moves import Move
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
    return Plan(
        rows=tuple(DecisionRecord(made).rows()) if with_rows else (),
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
