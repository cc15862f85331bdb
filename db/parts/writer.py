"""One thread that commits reports in batches: whatever has gathered while the last commit was on its way to the disk.

A report is acknowledged after its commit, never before. A report that the database refuses fails alone; a database
that refuses everything (full, locked) fails all that wait, those that came meanwhile too, and is tried again with the
next report.
"""

import asyncio
import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from slurm_elastic.protocol.errors import StoreError
from slurm_elastic.protocol.messages import Report

MAX_BATCH = 2_000
"""Most submissions in one transaction, so that readers of the write lock are not kept waiting."""
GATHER_S = 0.25
"""Shortest time between two commits while reports keep coming, so that many share what a commit costs."""
MANY = 200
"""So many do not wait for more."""
MAX_WAITING = 20_000
"""Submissions that may wait for the disk before new ones are refused."""


@dataclass(slots=True)
class Submission:
    """Reports of one job that arrived together, and who is told what became of them."""

    job_id: int
    reports: Sequence[Report]
    at: float
    told: Callable[[BaseException | None], None]
    """Called once: None, they are on the disk; else why they are not."""
    loop: asyncio.AbstractEventLoop | None = None
    """Where `told` is called, for all of a batch in one go: waking a loop costs more than storing a report. None: in
    the writer's thread."""
    error: BaseException | None = None
    """Set by who commits, where the others of the batch were stored."""


class ReportWriter:
    """Gathers submissions and hands them to `commit`, which stores each or sets its error."""

    def __init__(self, commit: Callable[[list[Submission]], None]) -> None:
        self._commit = commit
        self._waiting: SimpleQueue[Submission | None] = SimpleQueue()
        self._hurry = threading.Event()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="report-writer", daemon=True)
        self._thread.start()

    def put(self, submission: Submission) -> None:
        """Queue a submission. Raises StoreError when the disk does not keep up or the store is closed."""
        if self._closed:
            raise StoreError("the database is closed; no report can be stored")
        waiting = self._waiting.qsize()
        if waiting >= MAX_WAITING:
            raise StoreError(f"{MAX_WAITING} reports wait for the database already; send this one again later")
        self._waiting.put(submission)
        # Whoever waits in an event loop waits without holding anything up; a thread is let go at once.
        if submission.loop is None or waiting >= MANY:
            self._hurry.set()

    def close(self) -> None:
        """Commit what waits, then end the thread."""
        if not self._closed:
            self._closed = True
            self._waiting.put(None)
            self._hurry.set()
            self._thread.join()

    def _run(self) -> None:
        closing, committed = False, 0.0
        while not closing:
            item = self._waiting.get()
            # A first report never waits.
            self._hurry.wait(max(0.0, min(GATHER_S, committed + GATHER_S - time.monotonic())))
            self._hurry.clear()
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
                except Empty:
                    break
            refused = self._settle(batch)
            if refused is not None:
                closing = self._refuse_waiting(refused) or closing
            committed = time.monotonic()

    def _refuse_waiting(self, refused: BaseException) -> bool:
        """Who came while the database refused a batch is not kept waiting for the same. Whether the end has come."""
        waiting: list[Submission] = []
        closing = False
        with contextlib.suppress(Empty):
            while True:
                item = self._waiting.get_nowait()
                closing = closing or item is None
                waiting += [item] if item is not None else []
        for submission in waiting:
            submission.error = refused
        self._tell_all(waiting)
        return closing

    def _settle(self, batch: list[Submission]) -> BaseException | None:
        """Commit, and tell everybody. Why the whole batch was refused, if it was."""
        refused = None
        try:
            self._commit(batch)
        except BaseException as raised:  # the thread must outlive whatever one batch does to it
            refused = raised
            for submission in batch:
                submission.error = submission.error or raised
        self._tell_all(batch)
        return refused

    def _tell_all(self, batch: list[Submission]) -> None:
        loops: dict[asyncio.AbstractEventLoop, list[Submission]] = defaultdict(list)
        for submission in batch:
            if submission.loop is None:
                submission.told(submission.error)
            else:
                loops[submission.loop].append(submission)
        for loop, waiting in loops.items():
            with contextlib.suppress(RuntimeError):  # a loop that has been closed has nobody who waits
                loop.call_soon_threadsafe(_tell, waiting)


def _tell(submissions: list[Submission]) -> None:
    for submission in submissions:
        submission.told(submission.error)
