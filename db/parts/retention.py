"""Keeps the database small: old reports become one record per hour and configuration, old jobs and events go.

Called from time to time, by one thread. What is rolled up still counts in observations; only single reports are gone.
Works in steps of at most STEP reports, so that the write lock is never held for long.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from operator import itemgetter
from statistics import median
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, func, insert, select

from .. import schema
from ..engine import Database
from .base import Ended, StorePart
from .observations import MOST
from .reports import Reports

STEP = 5_000
"""Reports that one transaction rolls up."""
DECISIONS = 500
"""Decisions that one transaction forgets."""
MOST_DECISIONS = 20_000
"""Decisions that one call forgets, in some two seconds: no round begins meanwhile. A year's of a busy cluster, found
after an upgrade, would take minutes."""
_HOUR = 3600
_REPORTS, _ROLLUPS = schema.reports, schema.rollups
_KEY = ("job_id", "gpus", "nodes", "batch", "micro_batch", "accumulation")


class Retention(StorePart):
    """Rolls up and prunes."""

    def __init__(self, database: Database, ended: Ended, reports: Reports) -> None:
        super().__init__(database, ended)
        self._reports = reports

    def roll_up(self, before: float) -> int:
        """Replace the reports of whole hours that ended before this time by hourly records; returns how many went."""
        limit, gone = math.floor(before / _HOUR) * _HOUR, 0
        try:
            while True:
                with self._db.lock, self._db.write() as connection:
                    rolled = _roll_up_some(connection, limit)
                gone += rolled
                if rolled == 0:
                    return gone
        finally:
            if gone:
                self._reports.rolled_up(limit)

    def prune(self, before: float) -> int:
        """Forget jobs that ended before this time, with all that is theirs, and older events; returns how many jobs."""
        jobs, events = schema.jobs, schema.events
        old = select(jobs.c.job_id).where(jobs.c.ended.is_(True), jobs.c.end_time < before).limit(500)
        gone = 0
        while True:
            with self._db.write() as connection:
                numbers = list(connection.execute(old).scalars())
                connection.execute(delete(jobs).where(jobs.c.job_id.in_(numbers)))
                if not numbers:
                    connection.execute(delete(events).where(events.c.at < before))
                    return gone
            gone += len(numbers)
            for number in numbers:
                self._ended(number)

    def prune_decisions(self, before: float, mode: str | None = None) -> int:
        """Forget decisions taken before this time, but for the last one of each job; returns how many. At most about
        MOST_DECISIONS of them: the next call goes on. mode: those of this mode alone that follow one of it, so that
        one of another mode still ends when it did."""
        rows, later = schema.decisions, schema.decisions.alias()
        followed = select(later.c.id).where(later.c.job_id == rows.c.job_id, later.c.id > rows.c.id).exists()
        chosen = (rows.c.at < before) & followed
        if mode is not None:
            earlier = schema.decisions.alias()
            before_it = select(earlier.c.mode).where(earlier.c.job_id == rows.c.job_id, earlier.c.id < rows.c.id)
            chosen &= rows.c.mode == mode
            chosen &= before_it.order_by(earlier.c.id.desc()).limit(1).scalar_subquery() == mode
        old, gone = select(rows.c.id).where(chosen).limit(DECISIONS), 0
        while gone < MOST_DECISIONS:
            with self._db.write() as connection:
                numbers = list(connection.execute(old).scalars())
                connection.execute(delete(rows).where(rows.c.id.in_(numbers)))
            gone += len(numbers)
            if not numbers:
                break
        return gone

    def size_mb(self) -> float | None:
        """Size of the database in MB; None when it is not SQLite."""
        if not self._db.sqlite:
            return None
        with self._db.read() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar() or 0
            return float(pages) * float(connection.exec_driver_sql("PRAGMA page_size").scalar() or 0) / 1e6


def _roll_up_some(connection: Connection, limit: float) -> int:
    """Roll up one (job, hour) after another until STEP reports have gone; an hour is never left half."""
    gone = 0
    oldest = select(_REPORTS.c.at).where(_REPORTS.c.at < limit).order_by(_REPORTS.c.at).limit(1)
    while gone < STEP:
        first = connection.execute(oldest).scalar()
        if first is None:
            break
        hour = math.floor(first / _HOUR) * _HOUR
        within = (_REPORTS.c.at >= hour) & (_REPORTS.c.at < hour + _HOUR)
        count = select(_REPORTS.c.job_id, func.count().label("count")).where(within).group_by(_REPORTS.c.job_id)
        jobs = []
        for job_id, reports in connection.execute(count.order_by(_REPORTS.c.job_id)).all():
            jobs.append(job_id)
            gone += reports
            if gone >= STEP:
                break
        where = within & _REPORTS.c.job_id.in_(jobs)
        _store_hours(connection, hour, jobs, connection.execute(select(_REPORTS).where(where)).mappings().all())
        connection.execute(delete(_REPORTS).where(where))
    return gone


def _store_hours(connection: Connection, hour: int, jobs: list[int], rows: Sequence[RowMapping]) -> None:
    groups: dict[tuple[int, ...], list[RowMapping]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in _KEY)].append(row)
    records = {key: _record(hour, key, members) for key, members in groups.items()}
    # Reports that came after their hour had been rolled up join its record, weighted by their number.
    where = (_ROLLUPS.c.hour == hour) & _ROLLUPS.c.job_id.in_(jobs)
    for there in connection.execute(select(_ROLLUPS).where(where)).mappings().all():
        key = tuple(there[name] for name in _KEY)
        records[key] = joined(records[key], there) if key in records else dict(there)
    connection.execute(delete(_ROLLUPS).where(where))
    connection.execute(insert(_ROLLUPS), _youngest(records.values()))


def _youngest(records: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The MOST of each job that were reported last."""
    of_job: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for record in sorted(records, key=itemgetter("last_at"), reverse=True):
        of_job[record["job_id"]].append(record)
    return [record for found in of_job.values() for record in found[:MOST]]


def _record(hour: int, key: tuple[int, ...], members: list[RowMapping]) -> dict[str, Any]:
    noises = [row["noise_scale"] for row in members if row["noise_scale"] > 0]
    return {
        **dict(zip(_KEY, key, strict=True)),
        "hour": hour,
        "count": len(members),
        "step_time": median(row["step_time_median_s"] for row in members),
        "samples_per_s": median(row["samples_per_s"] for row in members),
        "noise_scale": median(noises) if noises else 0.0,
        "input_wait_share": median(row["input_wait_share"] for row in members),
        "last_at": max(row["at"] for row in members),
    }


def joined(new: dict[str, Any], old: Mapping[str, Any] | RowMapping) -> dict[str, Any]:
    """One record of two, weighted by the number of their reports; the new one's key."""
    total = new["count"] + old["count"]
    known = [row for row in (new, old) if row["input_wait_share"] is not None]
    if known:
        wait = sum(row["input_wait_share"] * row["count"] for row in known) / sum(row["count"] for row in known)
        new["input_wait_share"] = wait
    for name in ("step_time", "samples_per_s", "noise_scale"):
        new[name] = (new[name] * new["count"] + old[name] * old["count"]) / total
    return {**new, "count": total, "last_at": max(new["last_at"], old["last_at"])}
