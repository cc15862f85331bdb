"""Jobs, their pins and the tokens of their supervisors.

A token is 32 random bytes, of which the database knows the SHA-256; of a registration whose requests are proven it has
the name. Either speaks for one job of one uid, and dies with it.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from slurm_elastic.protocol.codes import ResizeState

from .. import schema
from ..clock import steady_now
from ..engine import Database
from ..rows import JobRow
from .base import Ended, StorePart, names_of, upsert

ENDED_STATES = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED"),
    *("REVOKED", "TIMEOUT", "LAUNCH_FAILED"),
)
"""Slurm's states that a job does not leave, unless it is requeued."""
TOKENS_PER_JOB = 4
"""Newest tokens that stay valid: two threads of one supervisor may register at once and each keep its own."""
_FIELDS = names_of(JobRow)


class Jobs(StorePart):
    def __init__(self, database: Database, ended: Ended, tokens: Tokens) -> None:
        super().__init__(database, ended)
        self._tokens = tokens
        self._stored: dict[int, JobRow] = {}
        self._active: dict[int, JobRow] | None = None
        """Those that have not ended, once somebody has asked for them."""
        self._pins: dict[int, int] | None = None
        ended.connect(self._forget)

    def upsert(self, job: JobRow) -> None:
        """Store a job as Slurm describes it now. Costs nothing when nothing has changed."""
        self.upsert_all([job])

    def upsert_all(self, rows: Iterable[JobRow]) -> None:
        """Like `upsert` for many jobs, in one transaction."""
        stored = self._stored
        changed = [row for row in rows if (known := stored.get(row.job_id)) is not row and known != row]
        if not changed:
            return
        with self._db.lock:
            ended = [row for row in changed if has_ended(row.state)]
            with self._db.write() as connection:
                connection.execute(upsert(self._db, schema.jobs), [_job_values(row) for row in changed])
                for row in ended:
                    _end_what_belongs(connection, row.job_id, _not_later(row.end_time))
            for row in ended:
                self._ended(row.job_id)
            with self._memory:
                self._stored.update((row.job_id, row) for row in changed)
                if self._active is not None:  # those that have ended were forgotten
                    self._active.update((row.job_id, row) for row in changed if not has_ended(row.state))
            self._tokens.forget()

    def get(self, job_id: int) -> JobRow | None:
        return self._record(JobRow, select(schema.jobs).where(schema.jobs.c.job_id == job_id))

    def all(self, active_only: bool = True) -> list[JobRow]:
        """Jobs by id; those that have not ended, or all."""
        with self._memory:
            known = None if self._active is None or not active_only else list(self._active.values())
        if known is not None:
            return sorted(known, key=attrgetter("job_id"))
        query = select(*(schema.jobs.c[name] for name in _FIELDS)).order_by(schema.jobs.c.job_id)
        if not active_only:
            return [JobRow(*row) for row in self._rows(query)]
        with self._db.lock:
            rows = [JobRow(*row) for row in self._rows(query.where(schema.jobs.c.ended.is_(False)))]
            with self._memory:
                self._active = {row.job_id: row for row in rows}
                self._stored |= self._active  # so after a start only what has changed is written
        return rows

    def within(self, start: float, end: float) -> list[JobRow]:
        """Jobs by id that waited or ran within this time."""
        table = schema.jobs
        there = (table.c.submit_time < end) & (table.c.end_time.is_(None) | (table.c.end_time > start))
        query = select(*(table.c[name] for name in _FIELDS)).where(there).order_by(table.c.job_id)
        return [JobRow(*row) for row in self._rows(query)]

    def of_task(self, name: str) -> int | None:
        """The job that Slurm calls by this name in an array, such as 7_3; the youngest where Slurm began ids again."""
        table = schema.jobs
        query = select(table.c.job_id).where(table.c.task_name == name).order_by(table.c.submit_time.desc()).limit(1)
        found: int | None = self._value(query)
        return found

    def end(self, job_id: int, state: str, at: float) -> None:
        """The job has ended: its allocation closes, token and pin go, its resize is withdrawn. The first end counts."""
        table = schema.jobs
        where = (table.c.job_id == job_id) & table.c.ended.is_(False)
        values: dict[str, Any] = {"ended": True, "state": state, "end_time": at}
        with self._db.lock:
            with self._db.write() as connection:
                if connection.execute(update(table).where(where).values(values)).rowcount == 0:
                    return
                _end_what_belongs(connection, job_id, _not_later(at))
            self._ended(job_id)

    def _forget(self, job_id: int) -> None:
        with self._memory:
            self._stored.pop(job_id, None)
            if self._active is not None:
                self._active.pop(job_id, None)
            self._pins = None

    def pin(self, job_id: int, gpus: int | None) -> None:
        """Hold the job at this many GPUs; None lets it go."""
        with self._db.lock:
            with self._db.write() as connection:
                connection.execute(delete(schema.pins).where(schema.pins.c.job_id == job_id))
                if gpus is not None:
                    connection.execute(insert(schema.pins).values(job_id=job_id, gpus=gpus))
            self._pins = None

    def pinned(self, job_id: int) -> int | None:
        """GPUs that the job is held at; None: it is not."""
        pins = self._pins
        if pins is None:
            with self._db.lock:
                pins = self._pins = {row.job_id: row.gpus for row in self._rows(select(schema.pins))}
        return pins.get(job_id)


class Tokens(StorePart):
    def __init__(self, database: Database, ended: Ended) -> None:
        super().__init__(database, ended)
        self._speaks: dict[str, int] = {}
        ended.connect(lambda _: self.forget())

    def forget(self) -> None:
        """A job may have ended, or be another user's now."""
        with self._memory:
            self._speaks = {}

    def mint(self, job_id: int, uid: int) -> str:
        """A new token that speaks for this job, given to a caller proven to be `uid`, for a supervisor that proves no
        requests."""
        token = secrets.token_urlsafe(32)
        table = schema.tokens
        with self._db.write() as connection:
            newest = table.c.created.desc()
            held = connection.execute(select(table.c.digest).where(table.c.job_id == job_id).order_by(newest))
            stale = list(held.scalars())[TOKENS_PER_JOB - 1 :]
            connection.execute(delete(table).where(table.c.digest.in_(stale)))
            connection.execute(
                insert(table).values(digest=_digest(token), job_id=job_id, uid=uid, created=steady_now())
            )
        self.forget()
        return token

    def held_by(self, job_id: int) -> bool:
        """Whether a supervisor that proves no requests has registered this job."""
        table = schema.tokens
        held = self._values(select(table.c.digest).where(table.c.job_id == job_id))
        return any(not digest.startswith("p") for digest in held)

    def note_registration(self, job_id: int, uid: int, name: str) -> None:
        """A caller proven to be `uid` has registered this job under this name; no earlier registration counts."""
        table = schema.tokens
        with self._db.write() as connection:
            connection.execute(delete(table).where(table.c.job_id == job_id))
            connection.execute(insert(table).values(digest=name, job_id=job_id, uid=uid, created=steady_now()))
        self.forget()

    def remembered_token(self, token: str) -> int | None:
        """Like `job_of` for a token used before, without asking the database; None: `job_of` knows."""
        return self.remembered(_digest(token))

    def job_of(self, token: str) -> int | None:
        """The running job that the token speaks for; None when it is unknown or its job has ended or changed hands."""
        return self.speaks_for(_digest(token))

    def remembered(self, digest: str) -> int | None:
        """Like `speaks_for` for a name used before, without asking the database; None: `speaks_for` knows."""
        with self._memory:
            return self._speaks.get(digest)

    def speaks_for(self, digest: str) -> int | None:
        """The running job that a registration of this name, or a token of this digest, speaks for."""
        known = self.remembered(digest)
        if known is not None:
            return known
        table, job = schema.tokens, schema.jobs
        query = select(table.c.digest, table.c.job_id).join(job, job.c.job_id == table.c.job_id)
        query = query.where(table.c.digest == digest, job.c.ended.is_(False), job.c.uid == table.c.uid)
        speaks = self._speaks
        found = next(iter(self._rows(query)), None)
        if found is None or not hmac.compare_digest(found.digest, digest):
            return None
        # Into the memory that was current before the look: a job that ended meanwhile has brought a new one.
        speaks[digest] = found.job_id
        return int(found.job_id)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()


def _job_values(job: JobRow) -> dict[str, Any]:
    values = {name: getattr(job, name) for name in _FIELDS}
    values["ended"] = has_ended(job.state)
    return values


def has_ended(state: str) -> bool:
    """Whether a job in this state of Slurm's (`CANCELLED by 1000` included) is over."""
    return state.partition(" ")[0].rstrip("+") in ENDED_STATES


def _end_what_belongs(connection: Connection, job_id: int, at: float) -> None:
    rows, resizes = schema.allocations, schema.resizes
    connection.execute(update(rows).where(rows.c.job_id == job_id, rows.c.end.is_(None)).values(end=at))
    for table in (schema.in_use, schema.tokens, schema.pins, schema.summaries):
        connection.execute(delete(table).where(table.c.job_id == job_id))
    held = connection.execute(select(resizes.c.phases).where(resizes.c.open_job == job_id)).scalar()
    if held is not None:
        state = ResizeState.WITHDRAWN.value
        closed: dict[str, Any] = {"open_job": None, "state": state, "detail": "the job has ended"}
        closed["phases"] = [*held, [state, at]]
        connection.execute(update(resizes).where(resizes.c.open_job == job_id).values(closed))


def _not_later(at: float | None) -> float:
    """Slurm's time, of a host whose clock may be wrong: what lies in the future counts as now."""
    return steady_now() if at is None else min(at, steady_now())
