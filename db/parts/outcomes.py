"""What came of it: pauses of resizes, costs of checkpoints, what took nodes away, and how good predictions were.

Limit: the youngest only, which is all that estimates are made from; a job's rows go with the job.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from sqlalchemy import func, insert, select

from .. import schema
from ..rows import BATCH, REQUEUE, CheckpointRow, PauseRow, PredictionRow
from .base import StorePart, record, upsert

LOST = ("restart", "registered")
"""Reasons of allocations that began because workers or the whole job had to start again, but for a job's first."""
HOUR_S = 3600.0
_ROWS, _CHECKPOINTS, _PREDICTIONS = schema.allocations, schema.checkpoints, schema.predictions


class Outcomes(StorePart):
    """See the module."""

    def note_checkpoint(self, row: CheckpointRow) -> None:
        """The job's supervisor says what its checkpoints cost now."""
        with self._db.write() as connection:
            connection.execute(upsert(self._db, _CHECKPOINTS), [dataclasses.asdict(row)])

    def checkpoint_of(self, job_id: int) -> CheckpointRow | None:
        """What is known of its checkpoints; None: nothing yet."""
        with self._db.read() as connection:
            row = connection.execute(select(_CHECKPOINTS).where(_CHECKPOINTS.c.job_id == job_id)).first()
        return record(CheckpointRow, row) if row else None

    def checkpoints(self, limit: int) -> list[tuple[CheckpointRow, str]]:
        """The youngest of all jobs, each with its program ("": not said), the youngest first."""
        programs = schema.programs
        query = select(_CHECKPOINTS, func.coalesce(programs.c.program, "").label("program"))
        joined = query.outerjoin(programs, programs.c.job_id == _CHECKPOINTS.c.job_id)
        with self._db.read() as connection:
            rows = connection.execute(joined.order_by(_CHECKPOINTS.c.at.desc()).limit(limit)).all()
        return [(record(CheckpointRow, row), row.program) for row in rows]

    def pauses(self, limit: int, job_id: int | None = None) -> list[PauseRow]:
        """What the youngest resizes cost, of all jobs or of one, the youngest first; not those of a batch alone."""
        query = select(_ROWS.c.job_id, _ROWS.c.pause_s, _ROWS.c.reason)
        query = query.where(_ROWS.c.pause_s > 0, _ROWS.c.reason != BATCH)
        if job_id is not None:
            query = query.where(_ROWS.c.job_id == job_id)
        with self._db.read() as connection:
            rows = connection.execute(query.order_by(_ROWS.c.id.desc()).limit(limit)).all()
        return [PauseRow(number, pause_s, reason == REQUEUE) for number, pause_s, reason in rows]

    def node_failures(self, partition: str, since: float, now: float) -> tuple[int, float]:
        """(times that a job of the partition had to start again, seconds that its nodes have trained) since then. A job
        that starts again more than once within an hour counts once: its script fails, not its nodes."""
        jobs = schema.jobs
        of = _ROWS.c.job_id.in_(select(jobs.c.job_id).where(jobs.c.partition == partition)), _ROWS.c.start >= since
        seconds = func.sum(_ROWS.c.nodes * (func.coalesce(_ROWS.c.end, now) - _ROWS.c.start))
        first = select(func.min(_ROWS.c.id)).group_by(_ROWS.c.job_id)
        lost = select(_ROWS.c.job_id, _ROWS.c.start).where(*of, _ROWS.c.reason.in_(LOST), _ROWS.c.id.not_in(first))
        with self._db.read() as connection:
            trained = connection.execute(select(seconds).where(*of)).scalar() or 0.0
            found = {(job_id, int(start // HOUR_S)) for job_id, start in connection.execute(lost)}
        return len(found), max(0.0, float(trained))

    def save_predictions(self, rows: Iterable[PredictionRow]) -> None:
        """Keep what came of these."""
        values = [dataclasses.asdict(row) for row in rows]
        if values:
            with self._db.write() as connection:
                connection.execute(insert(_PREDICTIONS), values)

    def predictions(self, limit: int) -> list[PredictionRow]:
        """The youngest, the youngest first."""
        with self._db.read() as connection:
            rows = connection.execute(select(_PREDICTIONS).order_by(_PREDICTIONS.c.id.desc()).limit(limit))
            return [record(PredictionRow, row) for row in rows]
