"""One thread that commits reports in batches: whatever has gathered while the last commit was on its way to the disk.

A report is acknowledged after its commit, never before. A report that the database refuses fails alone; a database
that refuses everything (full, locked) fails all that wait, at once, and is tried again with the next report.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from slurm_elastic.trainer_shim.errors import StoreError
from slurm_elastic.trainer_shim.wire import Report

MAX_BATCH = 2_000
"""Most submissions in one transaction, so that readers of the write lock are not kept waiting."""
GATHER_S = 0.025
"""Shortest time between two commits while reports keep coming, so that many share what a commit costs."""
MAX_WAITING = 20_000
"""Submissions that may wait for the disk before new ones are refused."""


@dataclass(slots=True)
class Submission:
    """Reports of one job that arrived together, and the promise to say what became of them."""

    job_id: int
    reports: Sequence[Report]
    at: float
    done: Future[None] = field(default_factory=Future)
    waiter: asyncio.Future[None] | None = None
    """Settled in its own event loop, all of a batch in one call: waking a loop costs more than storing a report."""


class ReportWriter:
    """Gathers submissions and hands them to `commit`, which stores each or sets the error of its future."""

    def __init__(self, commit: Callable[[list[Submission]], None]) -> None:
        self._commit = commit
        self._waiting: queue.Queue[Submission | None] = queue.Queue(MAX_WAITING)
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="report-writer", daemon=True)
        self._thread.start()

    def put(self, submission: Submission) -> Future[None]:
        """Queue a submission. Raises StoreError when the disk does not keep up or the store is closed."""
        if self._closed:
            raise StoreError("the database is closed; no report can be stored")
        try:
            self._waiting.put_nowait(submission)
        except queue.Full:
            raise StoreError(
                f"{MAX_WAITING} reports wait for the database already; send this one again later"
            ) from None
        return submission.done

    def close(self) -> None:
        """Commit what waits, then end the thread."""
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
            self._thread.join()

    def _run(self) -> None:
        closing, committed = False, 0.0
        while not closing:
            item = self._waiting.get()
            if item is not None and item.waiter is not None:
                # Whoever waits in an event loop waits without holding anything up. A first report never waits.
                time.sleep(max(0.0, min(GATHER_S, committed + GATHER_S - time.monotonic())))
            batch: list[Submission] = []
            while True:
                if item is None:
                    closing = True
                else:
                    batch.append(item)
                if len(batch) >= MAX_BATCH:
                    break
                try:
                    item = self._waiting.get_nowait()
                except queue.Empty:
                    break
            self._settle(batch)
            committed = time.monotonic()

    def _settle(self, batch: list[Submission]) -> None:
        error: BaseException | None = None
        try:
            self._commit(batch)
        except BaseException as raised:  # the thread must outlive whatever one batch does to it
            error = raised
        loops: dict[asyncio.AbstractEventLoop, list[Submission]] = defaultdict(list)
        for submission in batch:
            if not submission.done.done():
                if error is None:
                    submission.done.set_result(None)
                else:
                    submission.done.set_exception(error)
            if submission.waiter is not None:
                loops[submission.waiter.get_loop()].append(submission)
        for loop, waiting in loops.items():
            with contextlib.suppress(RuntimeError):  # a loop that has been closed has nobody who waits
                loop.call_soon_threadsafe(_wake, waiting)


def _wake(submissions: list[Submission]) -> None:
    for submission in submissions:
        waiter, error = submission.waiter, submission.done.exception()
        if waiter is None or waiter.done():
            continue
        if error is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(error)
