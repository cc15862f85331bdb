"""Wakes callers that wait for a change of a job, across threads: rounds notify, the API waits on its event loop.

Promise: no change is missed, although none is kept: a caller that is woken reads the store again, and one that comes
later reads it first.
"""

import asyncio
import threading

Waiter = tuple[asyncio.AbstractEventLoop, asyncio.Event]


class Waiters:
    """One for the daemon; every method but `add` may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Waiter]] = {}
        self.closed = False
        """The daemon is stopping, and nobody may wait."""

    def add(self, job_id: int) -> Waiter:
        """Begin to wait, on the running event loop. Read the store after this, and before awaiting the event."""
        waiter = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._waiting.setdefault(job_id, []).append(waiter)
        return waiter

    def remove(self, job_id: int, waiter: Waiter) -> None:
        with self._lock:
            left = [other for other in self._waiting.get(job_id, []) if other is not waiter]
            if left:
                self._waiting[job_id] = left
            else:
                self._waiting.pop(job_id, None)

    def notify(self, job_id: int) -> None:
        with self._lock:
            waiters = list(self._waiting.get(job_id, ()))
        for loop, event in waiters:
            _set(loop, event)

    def close(self) -> None:
        """Wake everyone, because the daemon is stopping."""
        with self._lock:
            self.closed = True
            waiters = [waiter for some in self._waiting.values() for waiter in some]
        for loop, event in waiters:
            _set(loop, event)


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    try:
        loop.call_soon_threadsafe(event.set)
    except RuntimeError:
        return  # that loop is closed, and nobody waits on it
