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
from typing import Literal

import msgspec

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import StoreError

from ..reports.common import Viewer
from ..reports.status import Board, BoardRow, elapsed_s, shown, whole

log = logging.getLogger(__name__)
FRESH_S = 1.0
"""Age up to which measurements are reused."""
CHEAP_S = 0.004
"""CPU time up to which a status is cheap: some hundred jobs, or more of which few have reported since."""
REUSE_FACTOR = 50.0
"""An expensive one is reused for so many times the CPU time that it took: it costs 1/50 of a core at most."""
STALE_S = 10.0
"""Age from which requests wait for the next expensive one."""
AFTER_S = 0.05
"""Time that the answer under way has to itself before the next expensive one is made."""
REFRESH_S = 4.0
"""Time between two calls of `refresh_ahead`: twice before an expensive one is too old."""
WATCHED_S = 900.0
"""How long after a request expensive ones are made ahead."""
MOST_ANSWERS = 4
"""Whole answers that are kept: for as many kinds of viewers, a megabyte each with 2,000 jobs."""
NOT_A_UID = -1
"""Of somebody who owns no job."""
Kind = Literal["owner", "admin", "other"]
"""Of viewers, of one row."""
_TIME = b'"elapsed_s":'


class RenderedRow:
    """A row as JSON, made once for each kind of viewer but for the time that its job has run, which is filled in."""

    __slots__ = ("_texts", "row")

    def __init__(self, row: BoardRow, before: RenderedRow | None = None) -> None:
        """It is made at once for those who have asked for the one before."""
        self.row = row
        self._texts: dict[Kind, tuple[bytes, bytes]] = {}
        for kind in before._texts if before is not None else ():
            self._made(kind)

    def of(self, kind: Kind, elapsed: bytes) -> bytes:
        """For this kind of viewer, after so much time."""
        before, after = self._texts.get(kind) or self._made(kind)
        return before + elapsed + after if after else before

    def _made(self, kind: Kind) -> tuple[bytes, bytes]:
        row = self.row.status  # as its owner sees it
        if kind != "owner":
            (row,) = shown([self.row], Viewer(NOT_A_UID, admin=kind == "admin"))
        made = msgspec.json.encode(row), b""
        if row.elapsed_s is not None:  # no text within the row can hold these bytes: its quotes are escaped
            before, name, rest = made[0].partition(_TIME)
            made = before + name, rest[rest.index(b",") :]
        self._texts[kind] = made
        return made


class RenderedStatus:
    """All rows as JSON, at one time. What is as it was `before` is not made again."""

    def __init__(self, board: Board, now: float, before: RenderedStatus | None = None) -> None:
        known = before._rows if before is not None else {}
        self._rows: dict[int, RenderedRow] = {}
        for row in board:
            kept = known.get(row.job.job_id)
            self._rows[row.job.job_id] = kept if kept is not None and kept.row is row else RenderedRow(row, kept)
        self._elapsed = [msgspec.json.encode(elapsed_s(row.job, now)) for row in board]
        self._uids = {row.job.uid for row in board}
        self._answers: dict[tuple[Kind | None, int], bytes] = {}
        self._wanted: set[tuple[Kind | None, int]] = set()
        for asked in tuple(before._answers) if before is not None else ():
            if before is not None and asked in before._wanted:
                self._answer(*asked)

    @property
    def board(self) -> dict[int, BoardRow]:
        """What it was made from, by job id."""
        return {job_id: rendered.row for job_id, rendered in self._rows.items()}

    def of(self, viewer: Viewer) -> bytes:
        """{"jobs": what `reports.status.shown` gives}."""
        return self.ready(viewer) or self._answer(*self._asked(viewer))

    def ready(self, viewer: Viewer) -> bytes | None:
        """The same, where somebody who sees the same has asked before; else None."""
        asked = self._asked(viewer)
        self._wanted.add(asked)
        return self._answers.get(asked)

    def _asked(self, viewer: Viewer) -> tuple[Kind | None, int]:
        others: Kind | None = "admin" if viewer.admin else None if viewer.private else "other"
        return others, viewer.uid if viewer.uid in self._uids else NOT_A_UID

    def _answer(self, others: Kind | None, uid: int) -> bytes:
        rows = []
        for rendered, elapsed in zip(self._rows.values(), self._elapsed, strict=True):
            kind = "owner" if rendered.row.job.uid == uid else others
            if kind is not None:
                rows.append(rendered.of(kind, elapsed))
        answer = b'{"jobs":[%b]}' % b",".join(rows)
        if len(self._answers) < MOST_ANSWERS:
            self._answers[others, uid] = answer
        return answer


class StatusCache:
    """The rows of all jobs that have not ended; thread-safe."""

    def __init__(
        self, store: Store, clock: Callable[[], float] = steady_now, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._store, self._clock, self._pause = store, clock, pause
        self._making = threading.Lock()
        self._ordered = threading.Lock()
        """Held from the order of the next status until it is made, or has failed."""
        self._cached: tuple[int, float, RenderedStatus] = (-1, 0.0, RenderedStatus([], 0.0))
        self._cost = 0.0
        self._last_request = clock() - STALE_S  # so the first one is made ahead, and who asks first waits for what is
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="status")

    def json(self, viewer: Viewer) -> bytes:
        """All jobs, as this viewer may see them, in JSON."""
        return (self._kept() or self._made()).of(viewer)

    def ready(self, viewer: Viewer) -> bytes | None:
        """The same, where no work is to be done for it; else None. Does not block."""
        before, kept = self._last_request, self._kept()
        found = kept.ready(viewer) if kept is not None else None
        if found is None:
            self._last_request = before  # `json` is this request, too
        return found

    def refresh_ahead(self) -> None:
        """Called every REFRESH_S: make the next expensive one before a request waits for it, while any come."""
        now, (version, at, _) = self._clock(), self._cached
        if now - self._last_request < WATCHED_S and now - at >= REFRESH_S and (self._cost > CHEAP_S or version < 0):
            self._order()

    def _kept(self) -> RenderedStatus | None:
        """The last one made, where that may still be shown; the next one is ordered if it is time for it."""
        before, now = self._last_request, self._clock()
        self._last_request = now
        version, at, rendered = self._cached
        age = now - at
        if version == self._store.version and 0 <= age < FRESH_S:
            return rendered
        if self._cost > CHEAP_S and 0 <= age < min(STALE_S, REUSE_FACTOR * self._cost):
            return rendered
        watched = now - before < STALE_S  # somebody who asks once waits for what is
        if not watched or self._cost <= CHEAP_S or not 0 <= age < STALE_S:
            return None
        self._order()
        return rendered

    def _order(self) -> None:
        if self._ordered.acquire(blocking=False):
            self._thread.submit(self._make_ahead)

    def _make_ahead(self) -> None:
        try:
            self._pause(AFTER_S)
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
                rendered = RenderedStatus(whole(self._store, now, rendered.board), now, rendered)
                self._cached, self._cost = (version, now, rendered), time.thread_time() - cost
            return rendered
