"""Companions whose time is over before their job's: Slurm granted them less, for another job is to start then. Pure.

Promise: a job is told to leave one LEAVE_S before its end, and sooner where idle GPUs could take its place, while there
is still time for a companion to come and warm up.
Limit: whether the idle GPUs suit the job is found out when they are placed; if they do not, it leaves that much too
early. A job that is pinned, or in the middle of a resize, leaves a companion when Slurm ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from ..capacity.shrink_options import Unit, shrinks, units_of
from ..slurm.model import Job
from .eligibility import RunningJob, sizes

LEAVE_S = 60.0
"""Long enough to leave one: a round, the way to the supervisor, and a step."""
OUTLASTS_S = 120.0
"""A job that ends this soon after its companion ends with it: a companion has whole minutes."""


def ending_units(running: RunningJob, jobs: Mapping[int, Job], within_s: float) -> frozenset[Unit]:
    """The units that end within so many seconds, and before their job; none where it cannot come to rest without them.

    `jobs`: all that Slurm lists.
    """
    rule = running.giver.rules.get("companion")
    if running.frozen is not None or rule is None or not rule.whole:
        return _NONE
    before = min(within_s, _left_s(jobs, running.job_id) - OUTLASTS_S)
    pieces = (piece for piece in running.pieces if piece.kind == "companion")
    found = frozenset(units_of(piece for piece in pieces if _left_s(jobs, piece.slurm_job_id) < before))
    return found if found and sizes(running.job) & shrinks(running.giver, found).keys() else _NONE


def _left_s(jobs: Mapping[int, Job], job_id: int) -> float:
    job = jobs.get(job_id)
    return inf if job is None or job.time_left_s is None else job.time_left_s


_NONE = frozenset[Unit]()
