"""The daemon's clock: what it stores and measures is by this one, which never jumps, whatever happens to the host's.

It shows Slurm's time, which is mostly that of the host. Where that is set, it follows slowly, at twice or half the
speed of time, so that no duration is wrong by more than that and nothing that was stored lies in the future. Limit:
until it has caught up, the times shown are others; a clock that was set by days is only believed by the next start.
"""

import threading
import time
from collections.abc import Callable

FASTER, SLOWER = 1.0, 0.5
"""Seconds that it gains, or loses, in a second."""
BELIEVED_S = 86400.0
"""What was stored further in the future than this was stored by a wrong clock."""


def boot_time() -> float:
    """Seconds since the machine booted, its sleep included; nobody sets this clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """Called for the time, in unix seconds; thread-safe."""

    def __init__(self, followed: Callable[[], float] = time.time, ticks: Callable[[], float] = boot_time) -> None:
        self._followed, self._ticks = followed, ticks
        self._lock = threading.Lock()
        self._at, self._tick = followed(), ticks()

    def __call__(self) -> float:
        with self._lock:
            tick = self._ticks()
            passed = max(0.0, tick - self._tick)
            behind = self._followed() - (self._at + passed)
            self._at += passed + min(max(behind, -SLOWER * passed), FASTER * passed)
            self._tick = tick
            return self._at

    def begin(self, newest: float, followed: Callable[[], float] | None = None) -> None:
        """Begin at the time of the clock to follow (None: the one so far); where something was stored a little later
        than that, at that time."""
        with self._lock:
            self._followed = followed or self._followed
            self._at, self._tick = self._followed(), self._ticks()
            if self._at < newest < self._at + BELIEVED_S:
                self._at = newest


steady_now = SteadyClock()
"""The time of this process."""
