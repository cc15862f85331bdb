"""What each round decided, and the record of all that was done.

Decisions are on the disk before the call returns, so before anyone acts on them. Events are only appended.
"""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import func, insert, select

from slurm_elastic.protocol.codes import EventKind

from .. import schema
from ..engine import Database
from ..rows import MARK, DecisionRow, EventRow, Mark
from .base import Ended, StorePart, names_of

_DECISIONS, _EVENTS = schema.decisions, schema.events
_FIELDS = names_of(DecisionRow)
BRIEF = ("speedup_from", "speedup_to", "share_of")
"""What is remembered of a standing decision's evidence."""
CHUNK = 500
"""Jobs that one query names: databases bound the number of its values. Rows of one insertion: memory does."""


class Decisions(StorePart):
    def __init__(self, database: Database, ended: Ended) -> None:
        super().__init__(database, ended)
        ended.connect(self._forget)
        self._marks: dict[int, Mark] = {}
        self._standing: dict[int, DecisionRow | None] = {}

    def marks(self, job_ids: Collection[int]) -> Mapping[int, Mark]:
        """The marks of these jobs' last decisions; others may be among them. Not to be changed by the caller."""
        with self._db.lock:
            self._load_marks([job_id for job_id in job_ids if job_id not in self._marks])
            return self._marks

    def save(self, round_at: float, rows: list[DecisionRow]) -> list[DecisionRow]:
        """Store what a round decided, and give back what was new: one with the mark of the job's last is not stored."""
        with self._db.lock:
            self._load_marks([row.job_id for row in rows if row.job_id not in self._marks])
            changed = [row for row in rows if self._marks.get(row.job_id) != row.mark]
            if not changed:
                return changed
            with self._db.write() as connection:
                for first in range(0, len(changed), CHUNK):
                    some = changed[first : first + CHUNK]
                    values = [{**{name: getattr(row, name) for name in _FIELDS}, "at": round_at} for row in some]
                    connection.execute(insert(_DECISIONS), values)
            self._marks.update((row.job_id, row.mark) for row in changed)
            self._standing.update((row.job_id, _brief(row, round_at)) for row in changed)
            return changed

    def last(self, job_id: int) -> DecisionRow | None:
        """The job's standing decision; None: no round has looked at it."""
        return next(iter(self.of(job_id, 1)), None)

    def of(self, job_id: int, limit: int = 100) -> list[DecisionRow]:
        """The job's decisions, the youngest first."""
        query = select(_DECISIONS).where(_DECISIONS.c.job_id == job_id).order_by(_DECISIONS.c.id.desc()).limit(limit)
        return self._records(DecisionRow, query)

    def standing(self, job_ids: Collection[int]) -> dict[int, DecisionRow]:
        """The standing decisions of these jobs without alternatives, and with no more of their evidence than BRIEF.

        From memory, for jobs that were asked for before: no query, and no waiting for a commit.
        """
        missing = [job_id for job_id in job_ids if job_id not in self._standing]
        if missing:
            with self._db.lock:
                self._standing.update(dict.fromkeys(missing))
                for found in self._newest(missing, [name for name in _FIELDS if name != "alternatives"]):
                    row = DecisionRow(**found._asdict())
                    self._standing[row.job_id] = _brief(row, row.at)
        standing = ((job_id, self._standing.get(job_id)) for job_id in job_ids)
        return {job_id: row for job_id, row in standing if row is not None}

    def current(self) -> list[DecisionRow]:
        """The standing decision of every job that has not ended, by job."""
        # One look into the index for each such job: through all decisions it would take seconds, more every day.
        jobs = schema.jobs
        newest = select(func.max(_DECISIONS.c.id)).where(_DECISIONS.c.job_id == jobs.c.job_id).correlate(jobs)
        ids = select(newest.scalar_subquery()).where(jobs.c.ended.is_(False))
        return self._records(
            DecisionRow, select(_DECISIONS).where(_DECISIONS.c.id.in_(ids)).order_by(_DECISIONS.c.job_id)
        )

    def within(self, start: float, end: float) -> list[DecisionRow]:
        """Decisions taken in [start, end), and for each job the one that stood at `start`; by job, the oldest first.

        Jobs that ended before `start` are left out.
        """
        rows, jobs = _DECISIONS, schema.jobs
        stood = select(func.max(rows.c.id)).where(rows.c.at < start).group_by(rows.c.job_id)
        query = select(rows).join(jobs, jobs.c.job_id == rows.c.job_id)
        query = query.where(jobs.c.ended.is_(False) | (jobs.c.end_time > start))
        query = query.where(((rows.c.at >= start) & (rows.c.at < end)) | rows.c.id.in_(stood))
        return self._records(DecisionRow, query.order_by(rows.c.job_id, rows.c.id))

    def _load_marks(self, job_ids: list[int]) -> None:
        self._marks.update((row[0], tuple(row[1:])) for row in self._newest(job_ids, ("job_id", *MARK)))

    def _newest(self, job_ids: list[int], names: Sequence[str]) -> list[Any]:
        """Of the last decision of each of these jobs these columns."""
        rows, found = _DECISIONS.c, list[Any]()
        for first in range(0, len(job_ids), CHUNK):
            some = rows.job_id.in_(job_ids[first : first + CHUNK])
            newest = select(func.max(rows.id)).where(some).group_by(rows.job_id)
            found += self._rows(select(*(rows[name] for name in names)).where(rows.id.in_(newest)))
        return found

    def _forget(self, job_id: int) -> None:
        with self._db.lock:
            self._marks.pop(job_id, None)
            self._standing.pop(job_id, None)


class Events(StorePart):
    def add(self, job_id: int, kind: EventKind, who: str, detail: dict[str, Any], at: float) -> None:
        """Append to the record of what was done; job 0 is the daemon itself."""
        self.add_all({job_id: detail}, kind, who, at)

    def add_all(self, details: Mapping[int, dict[str, Any]], kind: EventKind, who: str, at: float) -> None:
        """The same of many jobs, in one go."""
        rows = [{"job_id": j, "kind": str(kind), "who": who, "detail": own, "at": at} for j, own in details.items()]
        if rows:
            with self._db.write() as connection:
                connection.execute(insert(_EVENTS), rows)

    def of(self, job_id: int, limit: int = 1000, kinds: Collection[EventKind] = ()) -> list[EventRow]:
        """The last `limit` events of the job, of these kinds (none: of all), in the order in which they were stored."""
        query = select(_EVENTS).where(_EVENTS.c.job_id == job_id).order_by(_EVENTS.c.id.desc()).limit(limit)
        if kinds:
            query = query.where(_EVENTS.c.kind.in_([str(kind) for kind in kinds]))
        return self._records(EventRow, query)[::-1]

    def last(self, job_ids: Collection[int], kind: EventKind) -> dict[int, EventRow]:
        """The last event of this kind of each of these jobs, by job id; of those that have one."""
        wanted, found = list(job_ids), dict[int, EventRow]()
        for first in range(0, len(wanted), CHUNK):
            some = _EVENTS.c.job_id.in_(wanted[first : first + CHUNK]) & (_EVENTS.c.kind == str(kind))
            newest = select(func.max(_EVENTS.c.id)).where(some).group_by(_EVENTS.c.job_id)
            rows = self._records(EventRow, select(_EVENTS).where(_EVENTS.c.id.in_(newest)))
            found |= {row.job_id: row for row in rows}
        return found


def _brief(row: DecisionRow, at: float) -> DecisionRow:
    evidence = {key: row.evidence[key] for key in BRIEF if key in row.evidence}
    return dataclasses.replace(row, at=at, evidence=evidence, alternatives=[])
