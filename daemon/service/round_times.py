"""What rounds leave behind for the metrics: how long each part took, and how many failed.

Limit: since the daemon's start; a part that a round did not come to keeps the time of the last one that did.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PARTS = ("observe", "store", "reconcile", "plan", "order")
"""A round's parts, in their order."""


class RoundTimes:
    """Filled by the thread of the rounds, read by any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.last_s = dict.fromkeys(PARTS, 0.0)
        self.failed = 0

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time one of PARTS, also when it fails."""
        began = self._clock()
        try:
            yield
        finally:
            self.last_s[name] = self._clock() - began
