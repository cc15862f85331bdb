"""Stores of worlds, in a control loop that runs in a thread of the test."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager

from slurm_elastic.trainer_shim.control.event_loop import Loop
from slurm_elastic.trainer_shim.control.world_store import WorldStore

Open = Callable[..., WorldStore]


@contextmanager
def stores() -> Iterator[Open]:
    """A function(listen, tell) that opens one."""
    loop = Loop()
    thread = threading.Thread(target=loop.run)
    thread.start()

    def opened(listen: str = "127.0.0.1", tell: Callable[[str], None] = lambda line: None) -> WorldStore:
        made: Future[WorldStore] = Future()
        loop.call(lambda: made.set_result(WorldStore(loop, "key", listen, tell)))
        return made.result(60)

    try:
        yield opened
    finally:
        loop.stop()
        thread.join()
