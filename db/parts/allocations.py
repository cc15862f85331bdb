"""What a job trains on now, and every size it has had.

Counters of a row come from the training's own (`step`, `samples` since its start): a row holds the difference to where
it began. A training that went back to a checkpoint lowers that beginning, so that work done twice is counted twice: it
was. Progress is counted in one statement for all jobs of a batch.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Row, bindparam, case, delete, func, insert, select, update

from slurm_elastic.protocol.messages import Piece

from .. import schema
from ..engine import Database
from ..rows import BATCH, COMPANION_ENDS, REQUEUE, AllocationRow, InUse, records_in, records_out
from .base import Ended, Many, StorePart, upsert

_ROWS = schema.allocations


class Progress(NamedTuple):
    """A stretch of training, from (`from_step`, `from_samples`) to (`step`, `samples`)."""

    job_id: int
    generation: int
    from_step: int
    from_samples: int
    step: int
    samples: int

    @property
    def key(self) -> tuple[int, int]:
        return self.job_id, self.generation


def _advance_statement() -> Any:
    def first(column: Any, start: str) -> ColumnElement[int]:
        known: Any = bindparam(start)
        return case((column.is_(None) | (column > known), known), else_=column)

    def grown(column: Any, reached: str, beginning: ColumnElement[int]) -> ColumnElement[int]:
        value: Any = bindparam(reached) - beginning
        return case((value > column, value), else_=column)

    first_step = first(_ROWS.c.first_step, "p_from_step")
    first_samples = first(_ROWS.c.first_samples, "p_from_samples")
    return (
        update(_ROWS)
        .where(_ROWS.c.id == bindparam("p_row"))
        .values(
            steps=grown(_ROWS.c.steps, "p_step", first_step),
            samples=grown(_ROWS.c.samples, "p_samples", first_samples),
            first_step=first_step,
            first_samples=first_samples,
        )
    )


_ADVANCE = Many(_advance_statement(), ("p_row", "p_from_step", "p_from_samples", "p_step", "p_samples"))


def allocation_of(connection: Connection, job_id: int, generation: int) -> int | None:
    """The newest row of this job and generation."""
    query = select(func.max(_ROWS.c.id)).where(_ROWS.c.job_id == job_id, _ROWS.c.generation == generation)
    row: int | None = connection.execute(query).scalar()
    return row


def advance(connection: Connection, progress: list[tuple[int, Progress]]) -> None:
    """Count progress into the rows it is given with."""
    if progress:
        _ADVANCE(connection, [(row, *item[2:]) for row, item in progress])


class Allocations(StorePart):
    def __init__(self, database: Database, ended: Ended) -> None:
        super().__init__(database, ended)
        self.on_change: Callable[[], None] = lambda: None
        """Called, within the write lock, when an allocation may have changed."""
        self._used: dict[int, InUse] | None = None
        self._pauses: dict[int, dict[str, float]] | None = None
        ended.connect(self._forget)

    def _forget(self, job_id: int) -> None:
        self._used = None
        if self._pauses is not None:
            self._pauses.pop(job_id, None)
        self.on_change()

    def note(
        self,
        job_id: int,
        generation: int,
        pieces: tuple[Piece, ...],
        batch: int,
        at: float,
        pause_s: float = 0.0,
        reason: str = "",
        resize: int = 0,
        *,
        step: int | None = None,
        samples: int | None = None,
        refusal: str | None = None,
        held: tuple[Piece, ...] | None = None,
    ) -> None:
        """Store what the supervisor says trains now. The same again only renews `registered_at`.

        When generation, pieces or batch differ, the open allocation row ends at `at` and the next begins. `step` and
        `samples` are the training's counters at that moment, where known; they close the old row's count exactly.
        refusal: see InUse; None: as before. held: what of the pieces Slurm says the job holds, which is what counts in
        the row; None: all.
        """
        with self._changing(job_id), self._db.write() as connection:
            before = connection.execute(select(schema.in_use).where(schema.in_use.c.job_id == job_id)).first()
            value = records_out(pieces)
            same = before is not None and (before.generation, before.pieces, before.batch) == (generation, value, batch)
            since = before.since if same and before is not None else at
            if refusal is None:
                refusal = before.refusal if before is not None else ""
            values = dict(job_id=job_id, generation=generation, pieces=value, batch=batch, since=since)
            stalled = before.stalled_since if same and before is not None else 0.0
            values |= dict(registered_at=at, refusal=refusal[: schema.LONGEST_REFUSAL], stalled_since=stalled)
            connection.execute(upsert(self._db, schema.in_use), values)
            if not same:
                begin = _close(connection, job_id, at, step, samples)
                connection.execute(
                    insert(_ROWS).values(
                        job_id=job_id,
                        generation=generation,
                        start=begin.at,
                        **_counted(pieces if held is None else held),
                        batch=batch,
                        samples=0,
                        steps=0,
                        pause_s=pause_s,
                        reason=reason,
                        resize=resize,
                        first_step=begin.step,
                        first_samples=begin.samples,
                    )
                )

    def counted_gpus(self, job_ids: Sequence[int]) -> dict[int, int]:
        """GPUs in the open rows of these jobs."""
        if not job_ids:
            return {}
        query = select(_ROWS.c.job_id, _ROWS.c.gpus).where(_ROWS.c.job_id.in_(job_ids), _ROWS.c.end.is_(None))
        return dict(tuple(row) for row in self._rows(query))

    def count_held(self, job_id: int, generation: int, held: tuple[Piece, ...]) -> None:
        """Slurm says only now that the job holds these pieces, on which this generation trains."""
        row = (_ROWS.c.job_id == job_id) & (_ROWS.c.generation == generation) & _ROWS.c.end.is_(None)
        with self._changing(job_id), self._db.write() as connection:
            connection.execute(update(_ROWS).where(row).values(**_counted(held)))

    def refuse(self, job_id: int, sentence: str) -> None:
        """The supervisor and the daemon do not understand each other, for this reason."""
        with self._changing(job_id), self._db.write() as connection:
            values = {"refusal": sentence[: schema.LONGEST_REFUSAL]}
            connection.execute(update(schema.in_use).where(schema.in_use.c.job_id == job_id).values(values))

    def stall(self, job_id: int, since: float) -> None:
        """The job has done no step since then; 0: steps are done."""
        with self._changing(job_id), self._db.write() as connection:
            row = schema.in_use.c.job_id == job_id
            connection.execute(update(schema.in_use).where(row).values(stalled_since=since))

    def note_progress(self, job_id: int, generation: int, step: int, samples: int) -> None:
        """The training's counters as told by a phase rather than a report: where a generation began, or at the end."""
        with self._db.write() as connection:
            row = allocation_of(connection, job_id, generation)
            if row is not None:
                advance(connection, [(row, Progress(job_id, generation, step, samples, step, samples))])

    def clear_in_use(self, job_id: int, at: float) -> None:
        """The supervisor has finished: nothing trains any more, though the job may still run."""
        with self._changing(job_id), self._db.write() as connection:
            connection.execute(delete(schema.in_use).where(schema.in_use.c.job_id == job_id))
            _close(connection, job_id, at, None, None)

    def in_use(self, job_id: int) -> InUse | None:
        """What the job trains on now; None: no supervisor has said so, or the job has ended."""
        return self._all().get(job_id)

    def all_in_use(self) -> dict[int, InUse]:
        return dict(self._all())

    def _all(self) -> dict[int, InUse]:
        used = self._used
        if used is None:
            with self._db.lock:
                used = self._used = {row.job_id: _in_use(row) for row in self._rows(select(schema.in_use))}
        return used

    @contextmanager
    def _changing(self, job_id: int) -> Iterator[None]:
        """Within the write lock; what is remembered is read again afterwards."""
        with self._db.lock:
            try:
                yield
            finally:
                self._forget(job_id)

    def rows(
        self,
        job_id: int | None = None,
        start: float | None = None,
        end: float | None = None,
        uid: int | None = None,
    ) -> list[AllocationRow]:
        """Rows that overlap [start, end), by job and then by start; of one job or of one uid's jobs."""
        query = select(_ROWS).order_by(_ROWS.c.job_id, _ROWS.c.id)
        if job_id is not None:
            query = query.where(_ROWS.c.job_id == job_id)
        if start is not None:
            query = query.where(_ROWS.c.end.is_(None) | (_ROWS.c.end > start))
        if end is not None:
            query = query.where(_ROWS.c.start < end)
        if uid is not None:
            query = query.join(schema.jobs, schema.jobs.c.job_id == _ROWS.c.job_id).where(schema.jobs.c.uid == uid)
        return self._records(AllocationRow, query)

    def gpu_seconds(self, job_id: int, now: float) -> float:
        """GPUs that the job has trained on, times how long."""
        return sum(row.gpus * max(0.0, (now if row.end is None else row.end) - row.start) for row in self.rows(job_id))

    def resized_since(self, start: float) -> dict[int, tuple[float, ...]]:
        """When a resize of ours began to train after `start`, by job, the earliest first; not of a batch alone, nor
        for a companion whose time was over, which was foreseen."""
        ours = _ROWS.c.start > start, _ROWS.c.resize > 0, _ROWS.c.reason.not_in((BATCH, COMPANION_ENDS))
        query = select(_ROWS.c.job_id, _ROWS.c.start).where(*ours)
        found: dict[int, tuple[float, ...]] = {}
        for row in self._rows(query.order_by(_ROWS.c.start)):
            found[row.job_id] = (*found.get(row.job_id, ()), row.start)
        return found

    def mean_pause(self, job_id: int, kind: str = "") -> float | None:
        """Mean measured pause of the job's resizes, in seconds: by requeue (REQUEUE), of its batch alone (BATCH), or
        all others; None: it has had none."""
        return self._means(job_id).get(kind)

    def _means(self, job_id: int) -> dict[str, float]:
        """Mean pause of the resizes of each kind that it has had: REQUEUE, BATCH, and "" for all others."""
        known = None if self._pauses is None else self._pauses.get(job_id)
        if known is not None:
            return known
        with self._db.lock:
            if self._pauses is None:
                # All jobs at once: one by one they would take seconds.
                active = select(schema.jobs.c.job_id).where(schema.jobs.c.ended.is_(False))
                none: dict[int, dict[str, float]] = {number: {} for number in self._values(active)}
                self._pauses = none | self._load_means(_ROWS.c.job_id.in_(active))
            if job_id not in self._pauses:
                self._pauses |= {job_id: {}, **self._load_means(_ROWS.c.job_id == job_id)}
            return self._pauses[job_id]

    def _load_means(self, where: ColumnElement[bool]) -> dict[int, dict[str, float]]:
        columns = _ROWS.c.job_id, _ROWS.c.reason
        query = select(*columns, func.sum(_ROWS.c.pause_s), func.count()).where(where, _ROWS.c.pause_s > 0)
        sums: dict[tuple[int, str], tuple[float, int]] = {}
        for job_id, reason, total, count in self._rows(query.group_by(*columns)):
            kind = reason if reason in (REQUEUE, BATCH) else ""
            before = sums.get((job_id, kind), (0.0, 0))
            sums[job_id, kind] = (before[0] + total, before[1] + count)
        found: dict[int, dict[str, float]] = {}
        for (job_id, kind), (total, count) in sums.items():
            found.setdefault(job_id, {})[kind] = float(total / count)
        return found

    def first_sizes(self) -> dict[int, tuple[int, int]]:
        """(GPUs, batch) of the first allocation of every job that has not ended and has had one."""
        active = select(schema.jobs.c.job_id).where(schema.jobs.c.ended.is_(False))
        counted = _ROWS.c.job_id.in_(active), _ROWS.c.gpus > 0
        first = select(func.min(_ROWS.c.id)).where(*counted).group_by(_ROWS.c.job_id)
        query = select(_ROWS.c.job_id, _ROWS.c.gpus, _ROWS.c.batch).where(_ROWS.c.id.in_(first))
        return {job_id: (gpus, batch) for job_id, gpus, batch in self._rows(query)}


def _counted(pieces: tuple[Piece, ...]) -> dict[str, int | str]:
    """Of an allocation row, what these pieces make of it."""
    nodes = list(dict.fromkeys(node for piece in pieces for node in piece.nodes))
    return {"gpus": sum(piece.gpus for piece in pieces), "nodes": len(nodes), "node_list": ",".join(nodes)}


def _in_use(row: Row[Any]) -> InUse:
    who = row.job_id, row.generation, records_in(Piece, row.pieces), row.batch
    return InUse(*who, row.since, row.registered_at, row.refusal, row.stalled_since)


@dataclass(frozen=True, slots=True)
class _Begin:
    """Where the next row begins: time, and the training's counters where they are known."""

    at: float
    step: int | None
    samples: int | None


def _close(connection: Connection, job_id: int, at: float, step: int | None, samples: int | None) -> _Begin:
    """End the job's open row."""
    last = connection.execute(
        select(_ROWS).where(_ROWS.c.job_id == job_id).order_by(_ROWS.c.id.desc()).limit(1)
    ).first()
    if last is None:
        return _Begin(at, step, samples)
    if step is not None and samples is not None:
        if last.end is None:
            advance(connection, [(last.id, Progress(job_id, last.generation, step, samples, step, samples))])
    elif last.first_step is not None and last.first_samples is not None:
        step, samples = last.first_step + last.steps, last.first_samples + last.samples
    # After a clock was set back, no row may end before it began, nor begin before the last one ended.
    at = max(at, last.start if last.end is None else last.end)
    connection.execute(update(_ROWS).where(_ROWS.c.job_id == job_id, _ROWS.c.end.is_(None)).values(end=at))
    return _Begin(at, step, samples)
