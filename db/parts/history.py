"""What earlier jobs ran and how fast it was, the priors learned from that, and what came of decisions: pauses of
resizes, costs of checkpoints, what took nodes away, how good predictions were.

Promise: priors are replaced all at once, or one program's by itself; a program's name longer than the column keeps its
end. Limit: only jobs that have ended count as runs, so that no job is taken for evidence of itself; of outcomes the
youngest only, which is all that estimates are made from.
"""

import dataclasses
from collections.abc import Iterable

from sqlalchemy import Select, bindparam, delete, exists, func, insert, literal, or_, select

from .. import schema
from ..engine import Database
from ..rows import BATCH, REQUEUE, CheckpointRow, PauseRow, PredictionRow, PriorRow, RunRow
from .base import Ended, StorePart, records, upsert
from .observations import load, rows_of

LOST = ("restart", "registered")
"""Reasons of allocations that began because workers or the whole job had to start again, but for a job's first."""
HOUR_S = 3600.0
_ROWS, _CHECKPOINTS, _PREDICTIONS = schema.allocations, schema.checkpoints, schema.predictions


class Outcomes(StorePart):
    def note_checkpoint(self, row: CheckpointRow) -> None:
        """The job's supervisor says what its checkpoints cost now."""
        with self._db.write() as connection:
            connection.execute(upsert(self._db, _CHECKPOINTS), [dataclasses.asdict(row)])

    def checkpoint_of(self, job_id: int) -> CheckpointRow | None:
        """What is known of its checkpoints; None: nothing yet."""
        return self._record(CheckpointRow, select(_CHECKPOINTS).where(_CHECKPOINTS.c.job_id == job_id))

    def checkpoints(self, limit: int) -> list[tuple[CheckpointRow, str]]:
        """The youngest of all jobs, each with its program ("": not said), the youngest first."""
        programs = schema.programs
        query = select(_CHECKPOINTS, func.coalesce(programs.c.program, "").label("program"))
        joined = query.outerjoin(programs, programs.c.job_id == _CHECKPOINTS.c.job_id)
        rows = self._rows(joined.order_by(_CHECKPOINTS.c.at.desc()).limit(limit))
        return list(zip(records(CheckpointRow, rows), [row.program for row in rows], strict=True))

    def pauses(self, limit: int, job_id: int | None = None) -> list[PauseRow]:
        """What the youngest resizes cost, of all jobs or of one, the youngest first; not those of a batch alone."""
        query = select(_ROWS.c.job_id, _ROWS.c.pause_s, _ROWS.c.reason)
        query = query.where(_ROWS.c.pause_s > 0, _ROWS.c.reason != BATCH)
        if job_id is not None:
            query = query.where(_ROWS.c.job_id == job_id)
        rows = self._rows(query.order_by(_ROWS.c.id.desc()).limit(limit))
        return [PauseRow(number, pause_s, reason == REQUEUE) for number, pause_s, reason in rows]

    def node_failures(self, partition: str, since: float, now: float) -> tuple[int, float]:
        """(times that a job of the partition had to start again, seconds that its nodes have trained) since then. A job
        that starts again more than once within an hour counts once: its script fails, not its nodes."""
        jobs = schema.jobs
        of = _ROWS.c.job_id.in_(select(jobs.c.job_id).where(jobs.c.partition == partition)), _ROWS.c.start >= since
        seconds = func.sum(_ROWS.c.nodes * (func.coalesce(_ROWS.c.end, now) - _ROWS.c.start))
        first = select(func.min(_ROWS.c.id)).group_by(_ROWS.c.job_id)
        lost = select(_ROWS.c.job_id, _ROWS.c.start).where(*of, _ROWS.c.reason.in_(LOST), _ROWS.c.id.not_in(first))
        trained = self._value(select(seconds).where(*of)) or 0.0
        found = {(job_id, int(start // HOUR_S)) for job_id, start in self._rows(lost)}
        return len(found), max(0.0, float(trained))

    def save_predictions(self, rows: Iterable[PredictionRow]) -> None:
        """Keep what came of these."""
        values = [dataclasses.asdict(row) for row in rows]
        if values:
            with self._db.write() as connection:
                connection.execute(insert(_PREDICTIONS), values)

    def predictions(self, limit: int) -> list[PredictionRow]:
        """The youngest, the youngest first."""
        return self._records(PredictionRow, select(_PREDICTIONS).order_by(_PREDICTIONS.c.id.desc()).limit(limit))


_PROGRAMS, _PRIORS = schema.programs, schema.priors
LONGEST = 255
LOOKED_AT = 4
"""Jobs looked at for each run wanted: some end before anything was measured of them."""
AT_ONCE = 500
"""Jobs whose observations one query reads."""


class Programs(StorePart):
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
        rows = self._rows(query)
        return {job_id: None if program is None else (program, gpu_type) for job_id, program, gpu_type in rows}

    def _remember_programs(self, programs: dict[int, tuple[str, str] | None]) -> None:
        with self._memory:
            self._programs |= programs

    def youngest_runs(self, program: str) -> dict[str, int]:
        """The youngest job of a program that anything was measured of, by kind of GPU."""
        seen = (schema.reports, schema.rollups)
        measured = or_(*(exists().where(table.c.job_id == _PROGRAMS.c.job_id) for table in seen))
        query = select(_PROGRAMS.c.gpu_type, func.max(_PROGRAMS.c.job_id)).where(_PROGRAMS.c.program == program)
        return dict(tuple(row) for row in self._rows(query.where(measured).group_by(_PROGRAMS.c.gpu_type)))

    def youngest_named(self, user: str, name: str) -> int | None:
        """The youngest job of a user with this name that anything was measured of; None: there is none."""
        jobs, seen = schema.jobs, (schema.reports, schema.rollups)
        measured = or_(*(exists().where(table.c.job_id == jobs.c.job_id) for table in seen))
        query = select(func.max(jobs.c.job_id)).where(jobs.c.user == user, jobs.c.name == name, measured)
        found: int | None = self._value(query)
        return found

    def ended(self, since: float) -> list[tuple[str, str]]:
        """(program, kind of GPU) of the jobs that have ended since then, those of the youngest first."""
        jobs = schema.jobs
        query = select(_PROGRAMS.c.program, _PROGRAMS.c.gpu_type).join(jobs, jobs.c.job_id == _PROGRAMS.c.job_id)
        query = query.where(jobs.c.ended.is_(True), jobs.c.end_time >= since, _PROGRAMS.c.program != "")
        rows = self._rows(query.order_by(jobs.c.end_time.desc(), jobs.c.job_id.desc()))
        return list(dict.fromkeys((row.program, row.gpu_type) for row in rows))

    def runs(self, limit: int, of: tuple[str, str] | None = None) -> list[RunRow]:
        """The youngest ended jobs that anything was measured of, at most `limit`, the youngest first; `of`: only those
        of this program on this kind of GPU."""
        jobs, found = schema.jobs, list[RunRow]()
        query = select(_PROGRAMS).join(jobs, jobs.c.job_id == _PROGRAMS.c.job_id).where(jobs.c.ended.is_(True))
        if of is not None:
            query = query.where(_PROGRAMS.c.program == of[0], _PROGRAMS.c.gpu_type == of[1])
        rows = self._rows(query.order_by(jobs.c.end_time.desc(), jobs.c.job_id.desc()).limit(LOOKED_AT * limit))
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
        return self._records(PriorRow, select(_PRIORS).order_by(_PRIORS.c.program, _PRIORS.c.gpu_type))
