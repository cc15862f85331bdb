"""The status of all jobs, kept ready: whoever asks while a round or a write is busy gets what is there at once.

Promise: a board that takes little to make is made anew for everyone who asks after a change; a large one is at most
STALE_S old, and one thread at a time makes the next. Limit: who asks for a large one after nobody has for WATCHED_S
waits for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property

import msgspec

from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import StoreError

from ..reports.common import redacted
from ..reports.status import Board, whole
from .auth import Viewer

log = logging.getLogger(__name__)
FRESH_S = 1.0
"""Age up to which measurements are shown again."""
LITTLE_S = 0.03
"""CPU time of a board that is worth waiting for: some hundred jobs."""
REST = 20.0
"""A large one is shown again for so many times the CPU time that it took: to watch costs 1/20 of a core at most."""
STALE_S = 10.0
"""Age from which on a large one is waited for too."""
KEEP_S = 4.0
"""Time between two calls of `keep`: twice before a large one is too old."""
WATCHED_S = 900.0
"""How long after somebody has asked the next large ones are made ahead."""


class Texts:
    """The rows of a board as JSON, each made once for its owner, for admins and for all others."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._owners = [msgspec.json.encode(row | {"own": True}) for _, row in board]

    @cached_property
    def _admins(self) -> list[bytes]:
        return [msgspec.json.encode(row | {"own": False}) for _, row in self._board]

    @cached_property
    def _others(self) -> list[bytes]:
        return [msgspec.json.encode(redacted(row | {"own": False})) for _, row in self._board]

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

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store, self._clock = store, clock
        self._making = threading.Lock()
        self._ordered = threading.Lock()
        """Held from the order of the next board until it is there, or has failed."""
        self._known: tuple[int, float, Texts] = (-1, 0.0, Texts([]))
        self._cost = 0.0
        self._asked = clock()
        self._maker = ThreadPoolExecutor(1, thread_name_prefix="status")

    def text(self, viewer: Viewer) -> bytes:
        """All jobs, as this viewer may see them, in JSON."""
        return self._texts().of(viewer)

    def keep(self) -> None:
        """Called every KEEP_S: make the next large one before somebody waits for it, while there are people who ask."""
        now, (version, at, _) = self._clock(), self._known
        if now - self._asked < WATCHED_S and now - at >= KEEP_S and (self._cost > LITTLE_S or version < 0):
            self._order()

    def _texts(self) -> Texts:
        self._asked = self._clock()
        version, at, board = self._known
        age = self._asked - at
        if version == self._store.version and 0 <= age < FRESH_S:
            return board
        if self._cost > LITTLE_S and 0 <= age < min(STALE_S, REST * self._cost):
            return board
        if self._cost <= LITTLE_S or not 0 <= age < STALE_S:
            return self._made()
        self._order()
        return board

    def _order(self) -> None:
        if self._ordered.acquire(blocking=False):
            self._maker.submit(self._make_ahead)

    def _make_ahead(self) -> None:
        try:
            self._made()
        except StoreError as error:  # whoever asks when it is too old is told
            log.warning("the next board of `selastic status` could not be made: %s", error)
        except Exception:
            log.exception("the next board of `selastic status` could not be made")
        finally:
            self._ordered.release()

    def _made(self) -> Texts:
        with self._making:
            version, now, cost = self._store.version, self._clock(), time.thread_time()
            known, at, board = self._known
            if known != version or not 0 <= now - at < FRESH_S:
                board = Texts(whole(self._store, now))
                self._known, self._cost = (version, now, board), time.thread_time() - cost
            return board
