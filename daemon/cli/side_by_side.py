"""Work of one kind done in several processes at once, with one line that says how far all of it is.

Promise: what is done is what it would be one after the other.
Limit: what a process gives back is pickled, and everything else is as it was when it began.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from multiprocessing.sharedctypes import RawArray
from typing import Any, TypeVar

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
