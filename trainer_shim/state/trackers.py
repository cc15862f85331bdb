"""What logs a run (TensorBoard, wandb), on whichever process is rank 0: opened there, closed where that goes elsewhere.

What was logged up to a checkpoint is flushed before it is written: what a restart does not do again is not lost.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

CLOSING = ("close", "finish", "end")
"""Names under which trackers have it."""


class Tracker:
    """What open(step) returns, on rank 0 from its first use on; on other ranks, and before the loop, every call does
    nothing and returns None. step: the first that is logged by it, as job.global_step counts."""

    def __init__(self, trackers: Trackers, open: Callable[[int], Any]) -> None:
        self._trackers, self._open, self._opened = trackers, open, None

    def __getattr__(self, name: str) -> Any:
        if not self._trackers.here:
            return _nothing
        if self._opened is None:
            self._opened = self._open(self._trackers.step)
        return getattr(self._opened, name)


class Trackers:
    """All of a job's."""

    def __init__(self) -> None:
        self.here = False
        """Whether this process is rank 0."""
        self.step = 0
        """The first that is logged since it is."""
        self.counted_before = True
        """Whether a step is counted before the script logs it; not in a loop of the script's own."""
        self._all: list[Tracker] = []

    def add(self, open: Callable[[int], Any]) -> Tracker:
        self._all.append(Tracker(self, open))
        return self._all[-1]

    def entered(self, here: bool, steps: int) -> None:
        """A world is complete, or goes on. steps: have been done."""
        if here and not self.here:
            self.step = steps + self.counted_before
        self.here = here

    def leaving(self, stays: bool) -> None:
        """A world ends. stays: this process is rank 0 of the next one, too."""
        if stays:
            self.flush()
        else:
            self.close()

    def flush(self) -> None:
        """Have what was logged on its way to disk."""
        for tracker in self._all:
            flush = getattr(tracker._opened, "flush", None)
            if callable(flush):
                flush()

    def close(self) -> None:
        """End all that are open; what logs again opens anew."""
        self.here = False
        for tracker in self._all:
            opened, tracker._opened = tracker._opened, None
            for name in CLOSING:
                if callable(close := getattr(opened, name, None)):
                    close()
                    break


def _nothing(*_: Any, **__: Any) -> None:
    """On another rank."""
