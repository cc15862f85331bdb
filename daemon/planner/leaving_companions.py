"""Companions that a job is to leave though it could train on them: their time is over, their user needs their place, or
a node of theirs is to become empty.

Pure. Promise: a job is told to leave a companion LEAVE_S before Slurm ends it, and sooner where idle GPUs could take
its place, while there is still time for another to come and warm up. Of the jobs that a user may submit, companions
give back those that they were to leave free. A companion's node that is drained, failing or soon reserved is left as
soon as it is seen, as far as the job has an accepted size without it; the job's own nodes are not: without selasticd it
would keep them, too.
Limit: whether the idle GPUs suit the job is found out when they are placed; if they do not, it leaves that much too
early. A job that is pinned, or in the middle of a resize, leaves a companion when Slurm ends it.
"""

from collections.abc import Collection, Iterable, Mapping
from math import inf

from slurm_elastic.protocol.messages import Piece

from ..capacity.shrink_options import Unit, shrinks, units_of
from ..capacity.slurm_limits import SHARED, Bound, LimitUsage, charged, companions_left
from ..slurm.model import Job, Node
from ..slurm.site import Reservation
from .running.job import RunningJob

LEAVE_S = 60.0
"""Long enough to leave one: a round, the way to the supervisor, and a step."""
OUTLASTS_S = 120.0
"""A job that ends this soon after its companion ends with it: a companion has whole minutes."""


def ending_units(running: RunningJob, jobs: Mapping[int, Job], at: float, within_s: float) -> frozenset[Unit]:
    """The units that end within so many seconds from `at`, and before their job; none where it cannot come to rest
    without them.

    `jobs`: all that Slurm lists.
    """
    before = min(within_s, _left_s(jobs, running.job_id, at) - OUTLASTS_S)
    ends = (piece for piece in _companions(running) if _left_s(jobs, piece.slurm_job_id, at) < before)
    found = frozenset(unit for piece in ends for unit in units_of((piece,)))
    return found if found and _rests(running, found) else _NONE


def draining(
    nodes: Mapping[str, Node], reservations: Iterable[Reservation], at: float, within_s: float
) -> frozenset[str]:
    """Names of the nodes that are to become empty: drained, failing, in maintenance, about to be rebooted, or reserved
    by somebody within so many seconds from `at`."""
    begun = (one for one in reservations if one.start < at + within_s and one.end > at and not one.ours)
    flagged = (name for name, node in nodes.items() if not _DRAINING.isdisjoint(node.flags))
    return frozenset(flagged).union(*(one.nodes for one in begun))


def draining_units(running: RunningJob, leave: frozenset[str]) -> frozenset[Unit]:
    """Its companions' units on these nodes, with those that can only go along; none where it cannot come to rest
    without them."""
    if running.frozen is not None:
        return _NONE
    drops, companions = running.shrinkable.drops, (piece for piece in running.pieces if piece.kind == "companion")
    drained = [unit for unit in units_of(companions) if unit[1] in leave and unit in drops]
    found = frozenset(other for unit in drained for other in drops[unit])
    return found if found and _rests(running, found) else _NONE


def submitted_units(
    running_jobs: Collection[RunningJob], jobs: Mapping[int, Job], usage: LimitUsage
) -> dict[int, frozenset[Unit]]:
    """The units, by job, whose companions take a place in MaxSubmitJobs that they were to leave to their user; the
    smallest companions first."""
    taken: dict[Bound, list[tuple[int, int, RunningJob, Piece]]] = {}
    for running in running_jobs if usage.site.limits else ():
        for piece in _companions(running):
            if piece.slurm_job_id not in jobs:
                continue
            for bound in usage.bounds(charged(jobs[piece.slurm_job_id])):
                if bound.name == "submits" and bound.scope in SHARED:
                    taken.setdefault(bound, []).append((piece.gpus, -piece.slurm_job_id, running, piece))
    found: dict[int, frozenset[Unit]] = {}
    for bound, places in taken.items():
        lack = -companions_left(bound, usage.left(bound))
        for _, _, running, piece in sorted(places, key=lambda place: place[:2]):
            units = found.get(running.job_id, _NONE) | units_of((piece,))
            if lack > 0 and _rests(running, units):
                found[running.job_id], lack = units, lack - 1
    return found


def _companions(running: RunningJob) -> list[Piece]:
    """Those that it may leave."""
    rule = running.shrinkable.rules.get("companion")
    if running.frozen is not None or rule is None or not rule.whole:
        return []
    return [piece for piece in running.pieces if piece.kind == "companion"]


def _rests(running: RunningJob, units: frozenset[Unit]) -> bool:
    return not running.accepted.every.isdisjoint(shrinks(running.shrinkable, units))


def _left_s(jobs: Mapping[int, Job], job_id: int, at: float) -> float:
    job = jobs.get(job_id)
    return inf if job is None else job.left_s(at)


_DRAINING = frozenset(
    {"DRAIN", "DRAINING", "FAIL", "FAILING", "MAINT", "MAINTENANCE", "REBOOT", "REBOOT_REQUESTED", "REBOOT_ISSUED"}
)
_NONE = frozenset[Unit]()
