"""Throughput reports: stored in batches, read back as one observation per configuration.

What the planner asks for every round is kept in memory and brought up to date after each commit, so a round costs no
query per report. A median is over the youngest reports of its configuration: a job's speed may change with its data.
"""

import asyncio
import contextlib
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from operator import attrgetter

from sqlalchemy import Connection, delete, func, select

from slurm_elastic.protocol.errors import StoreError
from slurm_elastic.protocol.messages import Report

from .. import schema
from ..engine import Database
from ..rows import ObservationRow
from .allocations import Allocations, Progress, advance, allocation_of
from .base import Ended, Many, StorePart, T, blames_a_record, insert_or_ignore, names_of, records, upsert
from .observations import MOST, Configuration, Key, fastest_of, forget_oldest, key_of, load, measured, rows_of, summary
from .writer import ReportWriter, Submission

_REPORTS = schema.reports
_SUMMARIES = schema.summaries
OFTEN = 20
"""Reports for each configuration of a job after which its summary is stored again: 240 bytes a report at most."""
AT_ONCE = 500
"""Summaries that are made at once, of some 15 kB each."""
_BUT_AT = tuple(name for name in names_of(Report) if name != "at")
_values_but_at = attrgetter(*_BUT_AT)


class Reports(StorePart):
    def __init__(self, database: Database, ended: Ended, allocations: Allocations) -> None:
        super().__init__(database, ended)
        self._seen: dict[int, dict[Key, Configuration]] = {}
        self._last: dict[int, Report | None] = {}
        self._warm = False
        self._newest: dict[int, tuple[int, int]] = {}
        self._row_of: dict[tuple[int, int], int] = {}
        self._unsaved: defaultdict[int, int] = defaultdict(int)
        """Reports of each job that have come since its summary was stored."""
        self._due: set[int] = set()
        """Jobs whose summary is to be stored with the next reports."""
        self._until: dict[int, float] | None = None
        """Of each job with a summary, the time of the last report in it; None: not read yet."""
        self._summarise = upsert(database, schema.summaries)
        self._insert = Many(insert_or_ignore(database, _REPORTS), ("job_id", "at", *_BUT_AT))
        self._writer = ReportWriter(self._commit_reports)
        allocations.on_change = self._row_of.clear
        ended.connect(self._forget)

    def close(self) -> None:
        """Commit the reports that wait, and what they come to with all others."""
        self._writer.close()
        with contextlib.suppress(StoreError), self._db.lock, self._db.write(counts=False) as connection:
            self.save_summaries(connection, list(self._unsaved))

    def submit(self, job_id: int, reports: Sequence[Report], at: float) -> Future[None]:
        """Store reports that arrived at `at`; done when they are on the disk. Sent twice, they count once."""
        done: Future[None] = Future()
        self._writer.put(Submission(job_id, reports, at, partial(_settle, done)))
        return done

    def store(
        self, job_id: int, reports: Sequence[Report], at: float, told: Callable[[BaseException | None], None]
    ) -> None:
        """Like `submit`, from within an event loop, which calls `told`: None when the reports are on the disk,
        else why they are not."""
        self._writer.put(Submission(job_id, reports, at, told, asyncio.get_running_loop()))

    def observations(self, job_id: int) -> list[ObservationRow]:
        """What has been measured of the job, one row per configuration, by GPUs and then by batch."""
        return self._made_of_seen(job_id, rows_of)

    def fastest(self, job_id: int) -> dict[int, float]:
        """Samples/s as measured, by GPUs, at the best configuration of each."""
        return self._made_of_seen(job_id, fastest_of)

    def _made_of_seen(self, job_id: int, made: Callable[[dict[Key, Configuration]], T]) -> T:
        with self._memory:
            if self._warm and job_id in self._seen:
                return made(self._seen[job_id])
        with self._db.lock:
            self._warm_up()
            found = self._seen.get(job_id)
            if found is None:
                with self._db.read() as connection:
                    found = load(connection, job_id).get(job_id, {})
                with self._memory:
                    self._seen[job_id] = found
            return made(found)

    def last(self, job_id: int) -> Report | None:
        """The youngest report of the job by its own clock; None: it has sent none, or none is kept."""
        with self._memory:
            if self._warm and job_id in self._last:
                return self._last[job_id]
        with self._db.lock:
            self._warm_up()
            found = self._last.get(job_id)
            if found is None:
                newest = select(_REPORTS).where(_REPORTS.c.job_id == job_id).limit(1)
                newest = newest.order_by(_REPORTS.c.at.desc(), _REPORTS.c.generation.desc(), _REPORTS.c.step.desc())
                found = self._record(Report, newest)
                with self._memory:
                    self._last[job_id] = found
            return found

    def _warm_up(self) -> None:
        """Read what is known of all jobs that have not ended in two queries: one by one they would take seconds."""
        if self._warm:
            return
        active = select(schema.jobs.c.job_id).where(schema.jobs.c.ended.is_(False))
        with self._db.read() as connection:
            jobs = list(connection.execute(active).scalars())
            seen = {**{job_id: {} for job_id in jobs}, **load(connection, active, self._unsaved)}
            # One look into the index for each job: grouped, all reports would be read.
            of, other = schema.jobs.c, _REPORTS.alias()
            youngest = select(func.max(other.c.at)).where(other.c.job_id == of.job_id).scalar_subquery()
            query = select(_REPORTS).join(schema.jobs).where(of.ended.is_(False), _REPORTS.c.at == youngest)
            query = query.order_by(_REPORTS.c.generation, _REPORTS.c.step)
            rows = connection.execute(query).all()
            reports = zip([row.job_id for row in rows], records(Report, rows), strict=True)
            last = dict.fromkeys(jobs) | dict(reports)
        with self._memory:
            self._seen, self._last, self._warm = seen, last, True
            self._due = {number for number, count in self._unsaved.items() if count >= OFTEN * len(seen[number])}
            self._newest = {job_id: (row.generation, row.step) for job_id, row in last.items() if row is not None}

    def rolled_up(self, before: float) -> None:
        """Reports before this time are hourly records now, which weigh less in a median than single ones: what was
        known of them is read again, as a restart would. Of most jobs the youngest reports are younger."""
        with self._db.lock:
            with self._memory:
                for job_id, seen in list(self._seen.items()):
                    if len(seen) >= MOST or any([one.older_than(before) for one in seen.values()]):
                        del self._seen[job_id]
                for job_id, last in self._last.items():
                    if last is not None and last.at < before:
                        self._last[job_id] = None
                        self._newest.pop(job_id, None)
            with self._db.write(counts=False) as connection:
                connection.execute(delete(_SUMMARIES).where(_SUMMARIES.c.oldest < before))

    def _forget(self, job_id: int) -> None:
        with self._memory:
            self._seen.pop(job_id, None)
            self._last.pop(job_id, None)
            self._newest.pop(job_id, None)
            self._unsaved.pop(job_id, None)
            self._due.discard(job_id)
            if self._until is not None:  # its summary has ended with it
                self._until.pop(job_id, None)

    def _commit_reports(self, batch: list[Submission]) -> None:
        # The memory follows before the lock is let go, so that what is loaded meanwhile is not counted again. Readers
        # of the memory wait for no commit: `status` of thousands of jobs would meet one at every job.
        with self._db.lock:
            try:
                with self._db.write(counts=False) as connection:
                    self.save_summaries(connection, list(self._due)[:AT_ONCE])
                    self._insert_all(connection, batch)
                kept = batch
            except StoreError as error:
                if not blames_a_record(error):
                    raise
                with self._db.write(counts=False) as connection:
                    kept = [submission for submission in batch if self._insert_alone(connection, submission)]
            with self._memory:
                for submission in kept:
                    self._remember(submission)

    def _insert_all(self, connection: Connection, batch: Iterable[Submission]) -> None:
        # A node whose clock runs ahead must not hold the place of the youngest report for ever.
        rows = [
            (submission.job_id, min(report.at, submission.at), *_values_but_at(report))
            for submission in batch
            for report in submission.reports
        ]
        if rows:
            self._insert(connection, rows)
            self._advance(connection, _progress(batch))
            if self._until is None:
                found = connection.execute(select(_SUMMARIES.c.job_id, _SUMMARIES.c.until))
                self._until = {job_id: until for job_id, until in found}
            # A report that came late is in no summary, and would not be read beside it.
            late = {job_id for job_id, at, *_ in rows if at <= self._until.get(job_id, -math.inf)}
            if late:
                connection.execute(delete(_SUMMARIES).where(_SUMMARIES.c.job_id.in_(late)))

    def save_summaries(self, connection: Connection, jobs: Sequence[int]) -> None:
        """Store what is remembered of these jobs, which is what their stored reports come to."""
        for first in range(0, len(jobs), AT_ONCE):
            with self._memory:
                some = [(number, self._seen.get(number)) for number in jobs[first : first + AT_ONCE]]
                rows = [{"job_id": number, **summary(seen)} for number, seen in some if seen]
                for number, _ in some:
                    self._unsaved.pop(number, None)
                    self._due.discard(number)
            if rows:
                connection.execute(self._summarise, rows)
            if self._until is not None:
                self._until.update((row["job_id"], row["until"]) for row in rows)

    def _advance(self, connection: Connection, progress: list[Progress]) -> None:
        """Count into the allocation rows; which row is a job's is remembered until its allocation changes."""
        for item in progress:
            key = (item.job_id, item.generation)
            if key not in self._row_of:
                row = allocation_of(connection, *key)
                if row is None:
                    continue
                self._row_of[key] = row
        advance(connection, [(self._row_of[key], item) for item in progress if (key := item.key) in self._row_of])

    def _insert_alone(self, connection: Connection, submission: Submission) -> bool:
        try:
            with self._db.errors(), connection.begin_nested():
                self._insert_all(connection, [submission])
        except StoreError as error:
            submission.error = error
            return False
        return True

    def _remember(self, submission: Submission) -> None:
        job_id = submission.job_id
        for sent in submission.reports:
            report = sent if sent.at <= submission.at else replace(sent, at=submission.at)
            mark, newest = (report.generation, report.step), self._newest.get(job_id)
            last = self._last.get(job_id)
            first = job_id in self._last and last is None
            if not first and (newest is None or mark <= newest):
                # Perhaps sent twice, and then stored once: only the database knows.
                self._seen.pop(job_id, None)
                self._last.pop(job_id, None)
            self._newest[job_id] = mark if newest is None else max(mark, newest)
            if job_id in self._last and (last is None or report.at >= last.at):
                self._last[job_id] = report
            if job_id in self._seen:
                configuration = self._seen[job_id].setdefault(key_of(report), Configuration())
                configuration.add(1, report.at, measured(report))
                forget_oldest(self._seen[job_id])
                self._unsaved[job_id] += 1
                if self._unsaved[job_id] >= OFTEN * len(self._seen[job_id]):
                    self._due.add(job_id)


def _settle(future: Future[None], error: BaseException | None) -> None:
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _progress(batch: Iterable[Submission]) -> list[Progress]:
    """The stretch that each job and generation has covered, from its first report to its last."""
    found: dict[tuple[int, int], Progress] = {}
    for submission in batch:
        for report in submission.reports:
            key = (submission.job_id, report.generation)
            step, samples = report.step, report.samples
            from_step = max(0, step - report.steps)
            from_samples = max(0, samples - report.steps * report.batch)
            before = found.get(key)
            if before is not None:
                from_step, from_samples = min(before.from_step, from_step), min(before.from_samples, from_samples)
                step, samples = max(before.step, step), max(before.samples, samples)
            found[key] = Progress(*key, from_step, from_samples, step, samples)
    return list(found.values())
