"""A line on a terminal that says how far a long command is.

Promise: it leaves nothing behind, and shows nothing where its stream is no terminal. Limit: one at a time.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from typing import TextIO

FIRST_S = 1.0
"""A command that is done before this shows no progress."""
EVERY_S = 0.2
"""Seconds between two drawings."""
BAR = 30
"""Most characters of the bar: it gives way to what is said beside it."""
LEAST_SHARE = 0.02
"""Of all that is to be done, before the time left is told."""


class Progress:
    """`auto [########......] 12,345 of 24,736 jobs have ended, 0:41, about 0:40 left`, drawn over itself until its
    block ends."""

    def __init__(self, name: str, what: str, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self.name, self.what, self.stream, self.clock = name, what, stream, clock
        self.began, self.drawn = clock(), 0
        self.due = self.began + FIRST_S if stream.isatty() else float("inf")

    def show(self, done: int, of: int) -> None:
        """Draw how far it is, if it is time to."""
        now = self.clock()
        if now < self.due:
            return
        self.due = now + EVERY_S
        spent, share = now - self.began, done / max(1, of)
        said = f"{done:,} of {of:,} {self.what}, {_clock(spent)}"
        said += f", about {_clock(spent / share - spent)} left" if LEAST_SHARE <= share < 1 else ""
        columns = shutil.get_terminal_size().columns - 1
        bar = min(BAR, columns - len(f"{self.name} [] {said}"))
        drawn = f" [{'#' * int(bar * share):.<{bar}}]" if bar > 0 else ""
        self._draw(f"{self.name}{drawn} {said}"[:columns])

    def _draw(self, line: str) -> None:
        self.stream.write("\r" + line.ljust(self.drawn))
        self.stream.flush()
        self.drawn = len(line)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self.drawn:
            self._draw("")
            self.stream.write("\r")
            self.stream.flush()


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
