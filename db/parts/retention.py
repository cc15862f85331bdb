"""Keeps the database small: old reports become one record per hour and configuration, old jobs and events go, and of
resizes that are long over only what `selastic acct` shows by day and size is kept.

Called from time to time, by one thread, in steps that hold the write lock for no long time. What is rolled up still
counts in observations. Of any job the events of its resizes go, and the resizes but for the last closed one. A job that
has ended keeps a row for each size, batch and day instead of one for each time that it had them, and what was measured
by the day instead of by the hour. Resizes stay that say that a size does not fit. Limit: within a day the merged rows
lie one after the other, in the order in which each size first came; one that was held past midnight stays as it is.
"""

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import Any

from sqlalchemy import Connection, RowMapping, delete, func, insert, select, update

from slurm_elastic.protocol.codes import EventKind, ResizeState

from .. import schema
from ..engine import Database
from ..rows import REQUEUE
from .base import Ended, StorePart
from .observations import MOST
from .reports import Reports
from .resizes import IS_TOO_LARGE

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


STEPS = tuple(
    str(kind)
    for kind in (
        *map(EventKind.of, ResizeState),
        *(EventKind.SHRINK, EventKind.CANCEL, EventKind.REQUEUE, EventKind.RESUME, EventKind.FREE, EventKind.REFUSED),
    )
)
"""Events of a resize, which its row in the history stands for later."""
STRETCH_S = 600.0
"""Whose events one transaction forgets: of the busiest cluster some ten thousand."""
AT_ONCE = 500
"""Resizes that one transaction looks at."""
JOBS = 20
"""Ended jobs that one transaction thins."""
BUSY_S = 3.0
"""After which one call stops; the next one goes on. No round begins meanwhile."""
DAY_S = 86400
_EVENTS, _RESIZES, _ROWS, _HOURS, _JOBS = (
    *(schema.events, schema.resizes, schema.allocations, schema.rollups, schema.jobs),
)


@dataclass(slots=True)
class _Reached:
    """How far the last call came; a daemon that starts looks at everything once more."""

    events: float = 0.0
    resize: int = 0
    ended: tuple[float, int] = (0.0, 0)


class Thinning(StorePart):
    def __init__(self, database: Database, ended: Ended) -> None:
        super().__init__(database, ended)
        self._reached = _Reached()

    def thin(self, before: float, busy_s: float = BUSY_S) -> bool:
        """Thin what is older than this time; whether all of it was."""
        until = time.monotonic() + busy_s
        return all(part(before, until) for part in (self._thin_events, self._thin_resizes, self._thin_ended))

    def pace(self, now: float) -> tuple[int, int]:
        """How many resizes switched, and how many jobs ended, within the last day."""
        resizes = select(func.count()).where(_ROWS.c.start > now - DAY_S, _ROWS.c.resize > 0)
        ended = select(func.count()).where(_JOBS.c.ended.is_(True), _JOBS.c.end_time > now - DAY_S)
        return self._value(resizes), self._value(ended)

    def _thin_events(self, before: float, until: float) -> bool:
        rest = _EVENTS.c.kind.in_(STEPS) & (_EVENTS.c.at < before)
        while time.monotonic() < until:
            some = rest & (_EVENTS.c.at >= self._reached.events)
            with self._db.write() as connection:
                first = connection.execute(select(_EVENTS.c.at).where(some).order_by(_EVENTS.c.at).limit(1)).scalar()
                if first is None:
                    return True
                connection.execute(delete(_EVENTS).where(some, _EVENTS.c.at < first + STRETCH_S))
            self._reached.events = min(before, first + STRETCH_S)
        return False

    def _thin_resizes(self, before: float, until: float) -> bool:
        """Ids rise with time: those below one that switched before this time are as old."""
        switched = select(func.coalesce(func.max(_ROWS.c.resize), 0)).where(_ROWS.c.start < before)
        newest = self._value(switched)
        later = _RESIZES.alias()
        followed = select(later.c.id).where(later.c.job_id == _RESIZES.c.job_id, later.c.id > _RESIZES.c.id)
        over = _RESIZES.c.open_job.is_(None) & followed.where(later.c.open_job.is_(None)).exists() & ~IS_TOO_LARGE
        while time.monotonic() < until:
            some = _RESIZES.c.id.between(self._reached.resize + 1, newest)
            with self._db.write() as connection:
                ids = list(
                    connection.execute(
                        select(_RESIZES.c.id).where(some).order_by(_RESIZES.c.id).limit(AT_ONCE)
                    ).scalars()
                )
                if not ids:
                    return True
                old = list(connection.execute(select(_RESIZES.c.id).where(_RESIZES.c.id.in_(ids), over)).scalars())
                connection.execute(delete(_RESIZES).where(_RESIZES.c.id.in_(old)))
            self._reached.resize = ids[-1]
        return False

    def _thin_ended(self, before: float, until: float) -> bool:
        while time.monotonic() < until:
            at, job_id = self._reached.ended
            after = (_JOBS.c.end_time > at) | ((_JOBS.c.end_time == at) & (_JOBS.c.job_id > job_id))
            old = select(_JOBS.c.job_id, _JOBS.c.end_time).where(
                _JOBS.c.ended.is_(True), _JOBS.c.end_time < before, after
            )
            with self._db.lock, self._db.write() as connection:
                rows = connection.execute(old.order_by(_JOBS.c.end_time, _JOBS.c.job_id).limit(JOBS)).all()
                if not rows:
                    return True
                jobs = [row.job_id for row in rows]
                _merge_allocations(connection, jobs)
                _merge_hours(connection, jobs)
            for number in jobs:
                self._ended(number)
            self._reached.ended = (rows[-1].end_time, rows[-1].job_id)
        return False


def _merge_allocations(connection: Connection, jobs: list[int]) -> None:
    days: dict[tuple[int, int], list[RowMapping]] = defaultdict(list)
    query = select(_ROWS).where(_ROWS.c.job_id.in_(jobs), _ROWS.c.end.is_not(None)).order_by(_ROWS.c.id)
    for row in connection.execute(query).mappings():
        day = int(row["start"] // DAY_S)
        if row["end"] <= (day + 1) * DAY_S:
            days[row["job_id"], day].append(row)
    gone: list[int] = []
    for rows in days.values():
        groups = merged(rows)
        if len(groups) < len(rows):
            for values in groups:
                connection.execute(update(_ROWS).where(_ROWS.c.id == values["id"]).values(values))
            stays = {values["id"] for values in groups}
            gone += [row["id"] for row in rows if row["id"] not in stays]
    for first in range(0, len(gone), AT_ONCE):
        connection.execute(delete(_ROWS).where(_ROWS.c.id.in_(gone[first : first + AT_ONCE])))


def merged(rows: Sequence[RowMapping]) -> list[dict[str, object]]:
    """One row for each size and batch of a day, with the sums of all that had them; starts of a requeued job, whose
    pause is of another kind, stay as they are. Time and GPU-hours stay what they were, to the second."""
    groups: dict[object, list[RowMapping]] = defaultdict(list)
    for row in rows:
        own = row["id"] if row["reason"] == REQUEUE else None
        groups[row["gpus"], row["batch"], own].append(row)
    at, found = min(row["start"] for row in rows), list[dict[str, object]]()
    for members in groups.values():
        end = at + sum(row["end"] - row["start"] for row in members)
        sums = {name: sum(row[name] for row in members) for name in ("steps", "samples", "pause_s")}
        found.append({**members[0], **sums, "start": at, "end": end})
        at = end
    return found


def _merge_hours(connection: Connection, jobs: Iterable[int]) -> None:
    where = _HOURS.c.job_id.in_(list(jobs))
    found: dict[tuple[int, ...], dict[str, object]] = {}
    rows = connection.execute(select(_HOURS).where(where).order_by(_HOURS.c.hour)).mappings().all()
    for row in rows:
        day = {**row, "hour": row["hour"] // DAY_S * DAY_S}
        key = tuple(day[column.name] for column in _HOURS.primary_key)
        found[key] = joined(day, found[key]) if key in found else day
    if len(found) < len(rows):
        connection.execute(delete(_HOURS).where(where))
        connection.execute(insert(_HOURS), list(found.values()))
