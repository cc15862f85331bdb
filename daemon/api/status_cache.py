"""The status of all jobs, cached, so that a request does not wait for a round or a write.

Promise: a cheap status is made again for each request after a change; an expensive one is at most STALE_S old, and one
thread at a time makes the next. Limit: the first request for an expensive one after WATCHED_S without any waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import msgspec

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import StoreError

from ..reports.common import Viewer
from ..reports.status import Board, shown, whole

log = logging.getLogger(__name__)
FRESH_S = 1.0
"""Age up to which measurements are reused."""
CHEAP_S = 0.03
"""CPU time up to which a status is cheap: some hundred jobs."""
REUSE_FACTOR = 20.0
"""An expensive one is reused for so many times the CPU time that it took: it costs 1/20 of a core at most."""
STALE_S = 10.0
"""Age from which requests wait for the next expensive one."""
REFRESH_S = 4.0
"""Time between two calls of `refresh_ahead`: twice before an expensive one is too old."""
WATCHED_S = 900.0
"""How long after a request expensive ones are made ahead."""
NOT_A_UID = -1
"""Of somebody who owns no job."""


class RenderedStatus:
    """The rows as JSON, each made once for its owner, for admins and for all others."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._owners = [msgspec.json.encode(row) for _, row in board]

    @cached_property
    def _admins(self) -> list[bytes]:
        return [msgspec.json.encode(row) for row in shown(self._board, Viewer(NOT_A_UID, admin=True))]

    @cached_property
    def _others(self) -> list[bytes]:
        return [msgspec.json.encode(row) for row in shown(self._board, Viewer(NOT_A_UID))]

    def of(self, viewer: Viewer) -> bytes:
        """{"jobs": what `reports.status.shown` gives}."""
        others = self._admins if viewer.admin else [] if viewer.private else self._others
        rows = [
            self._owners[index] if job.uid == viewer.uid else others[index]
            for index, (job, _) in enumerate(self._board)
            if others or job.uid == viewer.uid
        ]
        return b'{"jobs":[%b]}' % b",".join(rows)


class StatusCache:
    """The rows of all jobs that have not ended; thread-safe."""

    def __init__(self, store: Store, clock: Callable[[], float] = steady_now) -> None:
        self._store, self._clock = store, clock
        self._making = threading.Lock()
        self._ordered = threading.Lock()
        """Held from the order of the next status until it is made, or has failed."""
        self._cached: tuple[int, float, RenderedStatus] = (-1, 0.0, RenderedStatus([]))
        self._cost = 0.0
        self._last_request = clock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="status")

    def json(self, viewer: Viewer) -> bytes:
        """All jobs, as this viewer may see them, in JSON."""
        return self._current().of(viewer)

    def refresh_ahead(self) -> None:
        """Called every REFRESH_S: make the next expensive one before a request waits for it, while any come."""
        now, (version, at, _) = self._clock(), self._cached
        if now - self._last_request < WATCHED_S and now - at >= REFRESH_S and (self._cost > CHEAP_S or version < 0):
            self._order()

    def _current(self) -> RenderedStatus:
        self._last_request = self._clock()
        version, at, rendered = self._cached
        age = self._last_request - at
        if version == self._store.version and 0 <= age < FRESH_S:
            return rendered
        if self._cost > CHEAP_S and 0 <= age < min(STALE_S, REUSE_FACTOR * self._cost):
            return rendered
        if self._cost <= CHEAP_S or not 0 <= age < STALE_S:
            return self._made()
        self._order()
        return rendered

    def _order(self) -> None:
        if self._ordered.acquire(blocking=False):
            self._thread.submit(self._make_ahead)

    def _make_ahead(self) -> None:
        try:
            self._made()
        except StoreError as error:  # the next request that waits for one gets the error
            log.warning("the next answer of `selastic status` could not be made: %s", error)
        except Exception:
            log.exception("the next answer of `selastic status` could not be made")
        finally:
            self._ordered.release()

    def _made(self) -> RenderedStatus:
        with self._making:
            version, now, cost = self._store.version, self._clock(), time.thread_time()
            known, at, rendered = self._cached
            if known != version or not 0 <= now - at < FRESH_S:
                rendered = RenderedStatus(whole(self._store, now))
                self._cached, self._cost = (version, now, rendered), time.thread_time() - cost
            return rendered
