"""Waiting jobs that leave the room kept for them idle: passed over for a while, for they wait for something else.

Limit: what that is, Slurm does not say (a licence, an excluded node); kept in memory, so a restart tries them again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

log = logging.getLogger(__name__)

WAIT_S = 120.0
"""How long room may lie idle for a waiting job before it is passed over."""
RETRY_S = 900.0
"""After this it is looked at again."""


class Nonstarters:
    """What is remembered of waiting jobs from one round to the next."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._until: dict[int, float] = {}

    def now(self, now: float) -> set[int]:
        """Whom to pass over."""
        return {job_id for job_id, until in self._until.items() if now < until}

    def note(self, ready: Collection[int], now: float) -> None:
        """`ready`: the jobs whose room is free, and which could have started."""
        self._since = {job_id: self._since.get(job_id, now) for job_id in ready}
        for job_id, since in self._since.items():
            if now - since >= WAIT_S:
                self._until[job_id] = now + RETRY_S
                log.info("job %d leaves the room kept for it idle: passed over for %.0f s", job_id, RETRY_S)
        self._until = {job_id: until for job_id, until in self._until.items() if now < until}
