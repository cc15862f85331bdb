"""Waiting jobs that do not start although GPUs are kept free for them: no GPUs are kept for them for a while.

Limit: Slurm does not say what they wait for (a license, an excluded node). Kept in memory, so a restart tries again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

log = logging.getLogger(__name__)

WAIT_S = 120.0
"""How long GPUs may stay idle for a waiting job."""
RETRY_S = 900.0
"""How long no GPUs are kept for it then."""


class Nonstarters:
    """Which waiting jobs did not start, from one round to the next."""

    def __init__(self) -> None:
        self._since: dict[int, float] = {}
        self._until: dict[int, float] = {}

    def excluded(self, now: float) -> set[int]:
        """Jobs for which no GPUs are kept now."""
        return {job_id for job_id, until in self._until.items() if now < until}

    def record(self, ready: Collection[int], now: float) -> None:
        """`ready`: jobs whose GPUs are free, so that they could have started."""
        self._since = {job_id: self._since.get(job_id, now) for job_id in ready}
        for job_id, since in self._since.items():
            if now - since >= WAIT_S:
                self._until[job_id] = now + RETRY_S
                log.info(
                    "job %d does not start on the GPUs kept free for it: none are kept for it for %.0f s",
                    job_id,
                    RETRY_S,
                )
        self._until = {job_id: until for job_id, until in self._until.items() if now < until}
