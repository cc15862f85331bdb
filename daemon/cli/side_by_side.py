"""Work of one kind done in several processes at once, with one line on a terminal that says how far all of it is.

Promise: what is done is what it would be one after the other.
Limit: what a process gives back is pickled, and everything else is as it was when it began.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from multiprocessing.sharedctypes import RawArray
from typing import Any, TextIO, TypeVar

from slurm_elastic.protocol.text.times import elapsed

Made = TypeVar("Made")
Watch = Callable[[int, int], None]
"""Called with how much is done, of how much."""
LOOK_S = 0.2
"""Between two looks at how far the processes are."""
_work: Callable[[int], Any]
"""Of the processes of one call: they have it from the process that forked them."""


def side_by_side(names: Sequence[str], work: Callable[[str, Watch], Made], watch: Watch) -> list[Made]:
    """What `work` makes of each name. Raises what it raises."""
    processes = min(len(names), len(os.sched_getaffinity(0)))
    if processes < 2:
        return [work(name, watch) for name in names]
    done, of = RawArray("q", len(names)), RawArray("q", len(names))

    def one(index: int) -> Made:
        def note(*far: int) -> None:
            done[index], of[index] = far

        return work(names[index], note)

    global _work
    _work = one
    with ProcessPoolExecutor(processes, get_context("fork")) as pool:
        futures: list[Future[Made]] = [pool.submit(_one, index) for index in range(len(names))]
        while wait(futures, LOOK_S).not_done:
            watch(sum(done), max(of) * len(names))
        return [future.result() for future in futures]


def _one(index: int) -> Any:
    return _work(index)


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
        said = f"{done:,} of {of:,} {self.what}, {elapsed(spent, short=True)}"
        said += f", about {elapsed(spent / share - spent, short=True)} left" if LEAST_SHARE <= share < 1 else ""
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
