"""The CPU time and the threads that one user's requests may take, so that all others' answers come as usual.

Promise: no more than AT_A_TIME works of a user are done at once; work for a user who has had their share is refused
(429) before it begins, with the time after which it is taken again; admins' never is. Limit: the time of the thread
that does the work is counted, when it is done; what has begun by then ends, however long it takes.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from typing import TypeVar
from weakref import WeakValueDictionary

from anyio.to_thread import run_sync

from ..reports.common import Viewer
from .requests import Refused

T = TypeVar("T")
SHARE = 0.1
"""Of a core."""
AT_ONCE_S = 5.0
"""CPU time that may be had at once: all jobs of a user register when the daemon comes back."""
AT_A_TIME = 8
"""Works of one user, each in a thread: a fifth of the threads there are, so that some are left for supervisors."""
MOST_USERS = 10_000
"""Users that are remembered; of more, those who have had nothing for a while are forgotten."""


class CpuShares:
    """What each user has left. Used from the event loop only."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock, self._cpu_clock = clock, cpu_clock
        self._left: dict[int, tuple[float, float]] = {}
        """uid -> CPU seconds left, below 0 where more was used, and when that was so."""
        self._turns: WeakValueDictionary[int, asyncio.Semaphore] = WeakValueDictionary()
        """uid -> held while work is done for this user, or waits to be."""

    async def run(self, viewer: Viewer, work: Callable[[], T]) -> T:
        """Do it in a thread. Raises Refused, and what the work raises."""
        async with self._turns.setdefault(viewer.uid, asyncio.Semaphore(AT_A_TIME)):
            if (left := self._now_left(viewer.uid)) <= 0 and not viewer.admin:
                wait = math.ceil(-left / SHARE) + 1
                sentence = f"your requests have taken more than {SHARE:.0%} of a core; ask again in {wait} s"
                raise Refused(429, sentence, wait)
            return await self._timed(viewer.uid, work)

    async def _timed(self, uid: int, work: Callable[[], T]) -> T:
        spent = 0.0

        def timed() -> T:
            nonlocal spent
            began = self._cpu_clock()
            try:
                return work()
            finally:
                spent = self._cpu_clock() - began

        try:
            return await run_sync(timed)
        finally:
            self._left[uid] = self._now_left(uid) - spent, self._clock()
            self._forget()

    def _now_left(self, uid: int) -> float:
        now = self._clock()
        left, at = self._left.get(uid, (AT_ONCE_S, now))
        return min(AT_ONCE_S, left + (now - at) * SHARE)

    def _forget(self) -> None:
        if len(self._left) > MOST_USERS:
            self._left = {uid: entry for uid, entry in self._left.items() if self._now_left(uid) < AT_ONCE_S}
