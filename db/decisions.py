"""What each round decided, the resizes that were ordered, and the record of all that was done.

Decisions and intents are on the disk before the call returns, so before anyone acts on them. Events are only appended.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from sqlalchemy import func, insert, select, update

from slurm_elastic.protocol.errors import NotFound, StoreError
from slurm_elastic.protocol.messages import Directive

from . import schema
from .codec import directive_in, directive_out
from .engine import Database
from .part import Part, now
from .rows import CLOSED_STATES, INTENT_STATES, DecisionRow, EventRow, IntentRow, Mark

_INTENTS, _DECISIONS, _EVENTS = schema.intents, schema.decisions, schema.events
_FIELDS = tuple(DecisionRow.__dataclass_fields__)
BRIEF = ("speedup_from", "speedup_to")
"""What is remembered of a standing decision's evidence."""
CHUNK = 500
"""Jobs that one query names: databases bound the number of its values. Rows of one insertion: memory does."""


class Decisions(Part):
    """Decisions, intents, events."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._marks: dict[int, Mark] = {}
        self._standing: dict[int, DecisionRow | None] = {}
        self._closed: dict[int, IntentRow | None] | None = None

    def decision_marks(self, job_ids: Collection[int]) -> Mapping[int, Mark]:
        """The marks of these jobs' last decisions; others may be among them. Not to be changed by the caller."""
        with self._db.lock:
            self._load_marks([job_id for job_id in job_ids if job_id not in self._marks])
            return self._marks

    def save_decisions(self, round_at: float, rows: list[DecisionRow]) -> list[DecisionRow]:
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

    def decision(self, job_id: int) -> DecisionRow | None:
        """The job's standing decision; None: no round has looked at it."""
        return next(iter(self.decisions(job_id, 1)), None)

    def decisions(self, job_id: int, limit: int = 100) -> list[DecisionRow]:
        """The job's decisions, the youngest first."""
        query = select(_DECISIONS).where(_DECISIONS.c.job_id == job_id).order_by(_DECISIONS.c.id.desc()).limit(limit)
        with self._db.read() as connection:
            return [DecisionRow(**{name: row._mapping[name] for name in _FIELDS}) for row in connection.execute(query)]

    def standing(self, job_ids: Collection[int]) -> dict[int, DecisionRow]:
        """The standing decisions of these jobs without alternatives, and with no more of their evidence than BRIEF.

        From memory, for jobs that were asked for before: no query, and no waiting for a commit.
        """
        missing = [job_id for job_id in job_ids if job_id not in self._standing]
        if missing:
            with self._db.lock:
                self._load_marks(missing)
        found = ((job_id, self._standing.get(job_id)) for job_id in job_ids)
        return {job_id: row for job_id, row in found if row is not None}

    def current_decisions(self) -> list[DecisionRow]:
        """The standing decision of every job that has not ended, by job."""
        # One look into the index for each such job: through all decisions it would take seconds, more every day.
        jobs = schema.jobs
        newest = select(func.max(_DECISIONS.c.id)).where(_DECISIONS.c.job_id == jobs.c.job_id).correlate(jobs)
        ids = select(newest.scalar_subquery()).where(jobs.c.ended.is_(False))
        query = select(_DECISIONS).where(_DECISIONS.c.id.in_(ids)).order_by(_DECISIONS.c.job_id)
        with self._db.read() as connection:
            return [DecisionRow(**{name: row._mapping[name] for name in _FIELDS}) for row in connection.execute(query)]

    def decisions_within(self, start: float, end: float) -> list[DecisionRow]:
        """Decisions taken in [start, end), and for each job the one that stood at `start`; by job, the oldest first.

        Jobs that ended before `start` are left out.
        """
        rows, jobs = _DECISIONS, schema.jobs
        stood = select(func.max(rows.c.id)).where(rows.c.at < start).group_by(rows.c.job_id)
        query = select(rows).join(jobs, jobs.c.job_id == rows.c.job_id)
        query = query.where(jobs.c.ended.is_(False) | (jobs.c.end_time > start))
        query = query.where(((rows.c.at >= start) & (rows.c.at < end)) | rows.c.id.in_(stood))
        query = query.order_by(rows.c.job_id, rows.c.id)
        with self._db.read() as connection:
            return [DecisionRow(**{name: row._mapping[name] for name in _FIELDS}) for row in connection.execute(query)]

    def _load_marks(self, job_ids: list[int]) -> None:
        rows = _DECISIONS.c
        for first in range(0, len(job_ids), CHUNK):
            some = job_ids[first : first + CHUNK]
            newest = select(func.max(rows.id)).where(rows.job_id.in_(some)).group_by(rows.job_id)
            query = select(*(rows[name] for name in _FIELDS if name != "alternatives")).where(rows.id.in_(newest))
            with self._db.read() as connection:
                found = [DecisionRow(**row._mapping) for row in connection.execute(query)]
            self._standing.update(dict.fromkeys(some))
            for row in found:
                self._marks[row.job_id], self._standing[row.job_id] = row.mark, _brief(row, row.at)

    def _forget(self, job_id: int) -> None:
        super()._forget(job_id)
        with self._db.lock:
            self._marks.pop(job_id, None)
            self._standing.pop(job_id, None)
            if self._closed is not None:
                self._closed.pop(job_id, None)

    def new_intent(self, directive: Directive, at: float) -> Directive:
        """Order a resize: the directive (id 0) comes back with its number. Raises StoreError when one is open."""
        job_id = directive.job_id
        with self._db.write() as connection:
            taken = connection.execute(select(_INTENTS.c.id).where(_INTENTS.c.open_job == job_id)).scalar()
            if taken is not None:
                raise StoreError(f"job {job_id} has resize {taken} under way; it ends before the next is ordered")
            values: dict[str, Any] = {"state": "issued", "detail": "", "created": at, "updated": at}
            values |= {"job_id": job_id, "open_job": job_id, "directive": directive_out(directive)}
            key = connection.execute(insert(_INTENTS).values(values)).inserted_primary_key
        return dataclasses.replace(directive, id=int(key[0] if key else 0))

    def open_intents(self) -> list[IntentRow]:
        """Resizes under way, by number."""
        return self._intents(_INTENTS.c.open_job.is_not(None))

    def open_intent(self, job_id: int) -> IntentRow | None:
        """The job's resize under way."""
        return next(iter(self._intents(_INTENTS.c.open_job == job_id)), None)

    def intent(self, number: int) -> IntentRow:
        """One resize. Raises NotFound."""
        found = self._intents(_INTENTS.c.id == number)
        if not found:
            raise NotFound(f"there is no resize {number}")
        return found[0]

    def last_closed_intent(self, job_id: int) -> IntentRow | None:
        """The job's last resize that is over, however it ended."""
        known = self._closed
        with suppress(KeyError):
            if known is not None:
                return known[job_id]
        with self._db.lock:
            if self._closed is None:
                # All jobs at once: one by one they would take seconds.
                with self._db.read() as connection:
                    none: dict[int, IntentRow | None] = dict.fromkeys(connection.execute(_active()).scalars())
                self._closed = none | self._load_closed(_INTENTS.c.job_id.in_(_active()))
            if job_id not in self._closed:
                self._closed |= {job_id: None, **self._load_closed(_INTENTS.c.job_id == job_id)}
            return self._closed[job_id]

    def _load_closed(self, where: Any) -> dict[int, IntentRow | None]:
        # A job's resizes come one after the other, so the highest number is the last.
        last = select(func.max(_INTENTS.c.id)).where(where, _INTENTS.c.open_job.is_(None)).group_by(_INTENTS.c.job_id)
        return {row.directive.job_id: row for row in self._intents(_INTENTS.c.id.in_(last))}

    def move_intent(self, number: int, state: str, detail: str = "", at: float | None = None) -> IntentRow:
        """The resize has come to `state`; returns where it stands. Raises NotFound.

        States only go forward, in the order of INTENT_STATES, and what is closed stays closed: a phase that arrives
        twice or late changes nothing.
        """
        if state not in INTENT_STATES:
            raise StoreError(f"resize state '{state}' is not known; accepted: {', '.join(INTENT_STATES)}")
        closed = state in CLOSED_STATES
        earlier = [name for name in INTENT_STATES if name not in CLOSED_STATES]
        if not closed:
            earlier = earlier[: earlier.index(state)]
        values: dict[str, Any] = {"state": state, "detail": detail, "updated": now() if at is None else at}
        if closed:
            values["open_job"] = None
        with self._db.lock:
            with self._db.write() as connection:
                moving = update(_INTENTS).where(_INTENTS.c.id == number, _INTENTS.c.state.in_(earlier))
                connection.execute(moving, values)
            row = self.intent(number)
            if not row.open and self._closed is not None:
                self._closed.pop(row.directive.job_id, None)
            return row

    def _intents(self, where: Any) -> list[IntentRow]:
        with self._db.read() as connection:
            rows = connection.execute(select(_INTENTS).where(where).order_by(_INTENTS.c.id)).all()
        return [
            IntentRow(directive_in(row.id, row.directive), row.state, row.detail, row.created, row.updated)
            for row in rows
        ]

    def add_event(self, job_id: int, kind: str, who: str, detail: dict[str, Any], at: float) -> None:
        """Append to the record of what was done; job 0 is the daemon itself."""
        with self._db.write() as connection:
            connection.execute(insert(_EVENTS).values(job_id=job_id, kind=kind, who=who, detail=detail, at=at))

    def events(self, job_id: int, limit: int = 1000) -> list[EventRow]:
        """The last `limit` events of the job, in the order in which they were stored."""
        query = select(_EVENTS).where(_EVENTS.c.job_id == job_id).order_by(_EVENTS.c.id.desc()).limit(limit)
        with self._db.read() as connection:
            rows = connection.execute(query).all()
        return [EventRow(r.id, r.job_id, r.at, r.kind, r.who, r.detail) for r in reversed(rows)]


def _active() -> Any:
    return select(schema.jobs.c.job_id).where(schema.jobs.c.ended.is_(False))


def _brief(row: DecisionRow, at: float) -> DecisionRow:
    evidence = {key: row.evidence[key] for key in BRIEF if key in row.evidence}
    return dataclasses.replace(row, at=at, evidence=evidence, alternatives=[])
