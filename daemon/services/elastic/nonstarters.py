"""Waiting jobs that do not start although room was made for them: none is made for their like for a while.

Promise: what elastic jobs gave up for a job that did not take it, they may take back without a cooldown. The while
doubles each time that a job of the same user, limit and shape does not start.
Limit: Slurm does not say what they wait for (a license, a limit of minutes). Kept in memory, so a restart tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from ...capacity.make_room import RoomMade
from ...capacity.pending_jobs import Kind
from ...slurm.model import Snapshot

log = logging.getLogger(__name__)

WAIT_S = 120.0
"""How long GPUs may stay idle for a waiting job."""
RETRY_S = 300.0
"""How long no room is made for its like after the first time."""
MOST_S = 86400.0


class Nonstarters:
    """Which waiting jobs did not start, from one round to the next."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._until: dict[Kind, tuple[float, float]] = {}
        """When room is made again for a kind, and how long it was not."""
        self._gave: dict[int, set[int]] = {}
        """Elastic job -> the waiting jobs that it gave up GPUs for."""
        self.in_vain: set[int] = set()
        """Elastic jobs that gave up GPUs which were not taken."""

    def excluded(self, now: float) -> set[Kind]:
        """Kinds of jobs that no room is made for now."""
        return {kind for kind, (until, _) in self._until.items() if now < until}

    def gives(self, elastic_id: int, served: Iterable[RoomMade]) -> None:
        """A resize of an elastic job begins; `served`: for whom it makes room."""
        self.in_vain.discard(elastic_id)
        self._gave[elastic_id] = {one.need.job_id for one in served}

    def record(self, served: Iterable[RoomMade], snapshot: Snapshot, now: float) -> None:
        """`served`: of this round's plan. Those that wait for nothing to be released could have started."""
        ready = {one.need.job_id: one.need.kind for one in served if not one.waits}
        self._since = {job_id: self._since.get(job_id, now) for job_id in ready}
        late = {job_id for job_id, since in self._since.items() if now - since >= WAIT_S}
        for kind in {ready[job_id] for job_id in late}:
            until, before = self._until.get(kind, (0.0, 0.0))
            if now >= until:
                wait = min(2 * before, MOST_S) or RETRY_S
                self._until[kind] = now + wait, wait
        for job_id in sorted(late):
            wait = self._until[ready[job_id]][1]
            log.info(
                "job %d does not start on the GPUs kept free for it: none are kept for %.0f s",
                job_id,
                wait,
                extra={"JOB": job_id},
            )
        # One that no longer does for as long as it was not believed is forgotten.
        self._until = {kind: (until, wait) for kind, (until, wait) in self._until.items() if now < until + wait}
        self._note_in_vain(snapshot, late)

    def _note_in_vain(self, snapshot: Snapshot, late: set[int]) -> None:
        for elastic_id, waiting in self._gave.items():
            waiting -= {job_id for job_id in waiting if job_id in snapshot.jobs and snapshot.jobs[job_id].active}
            if waiting & late or not waiting <= snapshot.jobs.keys():
                self.in_vain.add(elastic_id)
        self._gave = {one: waiting for one, waiting in self._gave.items() if waiting and one not in self.in_vain}
        self.in_vain &= snapshot.jobs.keys()
