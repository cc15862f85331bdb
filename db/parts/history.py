"""What earlier jobs ran and how fast it was, and the priors learned from that.

Promise: priors are replaced all at once, or one program's by itself; a program's name longer than the column keeps its
end. Limit: only jobs that have ended count as runs, so that no job is taken for evidence of itself.
"""

from __future__ import annotations

import dataclasses

from sqlalchemy import Select, bindparam, delete, exists, func, insert, literal, or_, select

from .. import schema
from ..engine import Database
from ..rows import PriorRow, RunRow
from .base import Ended, StorePart, record, upsert
from .observations import load, rows_of

_PROGRAMS, _PRIORS = schema.programs, schema.priors
LONGEST = 255
LOOKED_AT = 4
"""Jobs looked at for each run wanted: some end before anything was measured of them."""
AT_ONCE = 500
"""Jobs whose observations one query reads."""


class Programs(StorePart):
    """What jobs run, and the runs that are over."""

    def __init__(self, database: Database, ended: Ended) -> None:
        super().__init__(database, ended)
        ended.connect(self._forget)
        self._programs: dict[int, tuple[str, str] | None] = {}
        self._programs_read = False

    def note(self, job_id: int, program: str, gpu_type: str) -> None:
        """What a job runs, and the kind of GPU it began on."""
        found = program[-LONGEST:], gpu_type[-LONGEST:]
        if self.of(job_id) == found:
            return
        with self._db.write() as connection:
            values = {"job_id": job_id, "program": found[0], "gpu_type": found[1]}
            connection.execute(upsert(self._db, _PROGRAMS), [values])
        self._remember_programs({job_id: found})

    def of(self, job_id: int) -> tuple[str, str] | None:
        """(program, kind of GPU) of a job; None: its supervisor has not said."""
        with self._memory:
            if job_id in self._programs:
                return self._programs[job_id]
        with self._db.lock:
            active = select(schema.jobs.c.job_id).where(schema.jobs.c.ended.is_(False))
            if not self._programs_read:
                # All jobs at once: one by one they would take seconds.
                self._remember_programs(self._load_programs(active))
                self._programs_read = True
            if job_id not in self._programs:
                self._remember_programs(self._load_programs(active.where(schema.jobs.c.job_id == job_id)))
            if job_id in self._programs:
                return self._programs[job_id]
            return self._load_programs(select(literal(job_id)))[job_id]  # of one that has ended, nobody would forget it

    def _load_programs(self, jobs: Select[tuple[int]]) -> dict[int, tuple[str, str] | None]:
        """Of these jobs: a query for their ids."""
        wanted = jobs.subquery()
        query = select(wanted.c[0], _PROGRAMS.c.program, _PROGRAMS.c.gpu_type)
        query = query.outerjoin(_PROGRAMS, _PROGRAMS.c.job_id == wanted.c[0])
        with self._db.read() as connection:
            rows = connection.execute(query).all()
        return {job_id: None if program is None else (program, gpu_type) for job_id, program, gpu_type in rows}

    def _remember_programs(self, programs: dict[int, tuple[str, str] | None]) -> None:
        with self._memory:
            self._programs |= programs

    def youngest_runs(self, program: str) -> dict[str, int]:
        """The youngest job of a program that anything was measured of, by kind of GPU."""
        seen = (schema.reports, schema.rollups)
        measured = or_(*(exists().where(table.c.job_id == _PROGRAMS.c.job_id) for table in seen))
        query = select(_PROGRAMS.c.gpu_type, func.max(_PROGRAMS.c.job_id)).where(_PROGRAMS.c.program == program)
        with self._db.read() as connection:
            rows = connection.execute(query.where(measured).group_by(_PROGRAMS.c.gpu_type)).all()
        return {gpu_type: job_id for gpu_type, job_id in rows}

    def youngest_named(self, user: str, name: str) -> int | None:
        """The youngest job of a user with this name that anything was measured of; None: there is none."""
        jobs, seen = schema.jobs, (schema.reports, schema.rollups)
        measured = or_(*(exists().where(table.c.job_id == jobs.c.job_id) for table in seen))
        query = select(func.max(jobs.c.job_id)).where(jobs.c.user == user, jobs.c.name == name, measured)
        with self._db.read() as connection:
            found: int | None = connection.execute(query).scalar()
        return found

    def ended(self, since: float) -> list[tuple[str, str]]:
        """(program, kind of GPU) of the jobs that have ended since then, those of the youngest first."""
        jobs = schema.jobs
        query = select(_PROGRAMS.c.program, _PROGRAMS.c.gpu_type).join(jobs, jobs.c.job_id == _PROGRAMS.c.job_id)
        query = query.where(jobs.c.ended.is_(True), jobs.c.end_time >= since, _PROGRAMS.c.program != "")
        with self._db.read() as connection:
            rows = connection.execute(query.order_by(jobs.c.end_time.desc(), jobs.c.job_id.desc())).all()
        return list(dict.fromkeys((row.program, row.gpu_type) for row in rows))

    def runs(self, limit: int, of: tuple[str, str] | None = None) -> list[RunRow]:
        """The youngest ended jobs that anything was measured of, at most `limit`, the youngest first; `of`: only those
        of this program on this kind of GPU."""
        jobs, found = schema.jobs, list[RunRow]()
        query = select(_PROGRAMS).join(jobs, jobs.c.job_id == _PROGRAMS.c.job_id).where(jobs.c.ended.is_(True))
        if of is not None:
            query = query.where(_PROGRAMS.c.program == of[0], _PROGRAMS.c.gpu_type == of[1])
        with self._db.read() as connection:
            newest = query.order_by(jobs.c.end_time.desc(), jobs.c.job_id.desc()).limit(LOOKED_AT * limit)
            rows = connection.execute(newest).all()
        for start in range(0, len(rows), AT_ONCE):
            some = rows[start : start + AT_ONCE]
            numbers = select(jobs.c.job_id).where(jobs.c.job_id.in_([row.job_id for row in some]))
            with self._db.read() as connection:
                seen = load(connection, numbers)
            measured = [row for row in some if seen.get(row.job_id)]
            found += [RunRow(r.job_id, r.program, r.gpu_type, tuple(rows_of(seen[r.job_id]))) for r in measured]
            if len(found) >= limit:
                break
        return found[:limit]

    def _forget(self, job_id: int) -> None:
        with self._memory:
            self._programs.pop(job_id, None)


class LearnedPriors(StorePart):
    """The priors that were learned from runs."""

    def save(self, priors: list[PriorRow]) -> None:
        """Put these in the place of all that were learned before."""
        with self._db.write() as connection:
            connection.execute(delete(_PRIORS))
            if priors:
                connection.execute(insert(_PRIORS), [dataclasses.asdict(row) for row in priors])

    def add(self, priors: list[PriorRow]) -> None:
        """Put these in the place of what was learned before of the same programs; the others stay."""
        same = (_PRIORS.c.program == bindparam("own_program")) & (_PRIORS.c.gpu_type == bindparam("own_type"))
        with self._db.write() as connection:
            if priors:
                own = [{"own_program": row.program, "own_type": row.gpu_type} for row in priors]
                connection.execute(delete(_PRIORS).where(same), own)
                connection.execute(insert(_PRIORS), [dataclasses.asdict(row) for row in priors])

    def all(self) -> list[PriorRow]:
        """All that were last learned."""
        with self._db.read() as connection:
            rows = connection.execute(select(_PRIORS).order_by(_PRIORS.c.program, _PRIORS.c.gpu_type))
            return [record(PriorRow, row) for row in rows]
