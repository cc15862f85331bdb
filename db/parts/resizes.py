"""Resizes: at most one of a job is open, and its id names it for ever.

Promise: a resize is on the disk before the call returns, so before its supervisor can hear of it. States only go
forward, and what is closed stays closed. Limit: which resize is wanted, and when it is overdue, is not decided here.
"""

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, func, insert, select, update

from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.errors import NotFound, StoreError
from slurm_elastic.protocol.messages import TOO_LARGE, Piece, Resize, Shape

from .. import schema
from ..clock import steady_now
from ..engine import Database
from ..rows import BATCH, ResizeRow, records_in, records_out
from .base import Ended, StorePart, blames_a_record, records

_ROWS = schema.resizes
_LAST = select(func.coalesce(func.max(_ROWS.c.id), 0))
FAR_AHEAD = 1_000_000
"""Resizes that a backup may lack, at most."""
Closed = tuple[ResizeRow | None, ResizeRow | None]
"""The last resize of a job's nodes that is over, and the last one of its batch alone; None: there was none."""
_NONE: Closed = (None, None)
IS_TOO_LARGE = (_ROWS.c.state == ResizeState.FAILED.value) & _ROWS.c.detail.startswith(TOO_LARGE)


class Resizes(StorePart):
    def __init__(self, database: Database, ended: Ended) -> None:
        super().__init__(database, ended)
        self._open: dict[int, ResizeRow] | None = None
        self._closed: dict[int, Closed] | None = None
        self._too_large: dict[int, frozenset[int]] | None = None
        self._hearing = threading.Lock()
        self._heard_of = 0
        ended.connect(self._forget)

    def heard_of(self, resize_id: int) -> None:
        """A supervisor knows this id: the next ones are above it, also where the database is new or was restored.

        An id further above all others than a database ever falls behind is not believed.
        """
        if resize_id <= self._heard_of:
            return
        last = self._value(_LAST)
        with self._hearing:
            if resize_id <= max(self._heard_of, last) + FAR_AHEAD:
                self._heard_of = max(self._heard_of, resize_id)

    def begin(self, resize: Resize, at: float) -> ResizeRow:
        """Store a resize; the given id is not looked at. Raises StoreError when the job has one open."""
        begun, refused = self.begin_all((resize,), at)
        if refused:
            raise StoreError(refused[resize.job_id])
        return begun[0]

    def begin_all(self, resizes: Sequence[Resize], at: float) -> tuple[list[ResizeRow], dict[int, str]]:
        """Store these in one transaction: those that have begun, with their ids (the given ones are not looked at), and
        by job why others have not. One that the database refuses keeps no other from beginning."""
        with self._db.lock:
            try:
                numbers, refused = self._begin(resizes, at)
            except BaseException:
                self._open = None  # the disk may have them nevertheless
                raise
            with self._hearing:
                self._heard_of = max(self._heard_of, *numbers, 0)
            begun = self._load(_ROWS.c.id.between(numbers[0], numbers[-1])) if numbers else []
            return [self._remembered(row) for row in begun], refused

    def _begin(self, resizes: Sequence[Resize], at: float) -> tuple[list[int], dict[int, str]]:
        try:
            with self._db.write() as connection:
                free, refused = _free(connection, resizes)
                return self._issue(connection, free, at), refused
        except StoreError as error:
            if not blames_a_record(error):
                raise
        with self._db.write() as connection:
            free, refused = _free(connection, resizes)
            numbers: list[int] = []
            for resize in free:
                try:
                    with self._db.errors(), connection.begin_nested():
                        numbers += self._issue(connection, [resize], at)
                except StoreError as error:
                    if not blames_a_record(error):
                        raise
                    refused[resize.job_id] = str(error)
            return numbers, refused

    def _issue(self, connection: Connection, resizes: Sequence[Resize], at: float) -> list[int]:
        first = max(connection.execute(_LAST).scalar_one(), self._heard_of) + 1
        rows = [_issued(resize, number, at) for number, resize in enumerate(resizes, first)]
        if rows:
            connection.execute(insert(_ROWS), rows)
        return [row["id"] for row in rows]

    def under_way(self) -> list[ResizeRow]:
        """Resizes under way, by id."""
        return self._load(_ROWS.c.open_job.is_not(None))

    def of(self, job_id: int) -> ResizeRow | None:
        """The job's resize under way, from memory: every supervisor asks for it again and again."""
        known = self._open
        if known is None:
            with self._db.lock:
                known = self._open = {row.job_id: row for row in self.under_way()}
        return known.get(job_id)

    def last_id(self, job_id: int) -> int:
        """Id of the job's last resize, open or closed; 0: it had none."""
        last = self.of(job_id) or self.last_closed(job_id)
        return last.id if last else 0

    def get(self, resize_id: int) -> ResizeRow:
        """One resize. Raises NotFound."""
        found = self._load(_ROWS.c.id == resize_id)
        if not found:
            raise NotFound(f"there is no resize {resize_id}")
        return found[0]

    def last_closed(self, job_id: int) -> ResizeRow | None:
        """The job's last resize that is over, however it ended."""
        return max(self.last_of_each(job_id), key=lambda row: row.id if row is not None else 0)

    def last_of_each(self, job_id: int) -> Closed:
        """The same of those that change its nodes, and of those that change its batch alone."""
        known = self._closed
        if known is not None:
            try:
                return known[job_id]
            except KeyError:  # asked for the first time
                pass
        with self._db.lock:
            if self._closed is None:
                # All jobs at once: one by one they would take seconds.
                none = dict.fromkeys(self._values(_active()), _NONE)
                self._closed = none | self._load_closed(_ROWS.c.job_id.in_(_active()))
            if job_id not in self._closed:
                self._closed |= {job_id: _NONE, **self._load_closed(_ROWS.c.job_id == job_id)}
            return self._closed[job_id]

    def failed_in_a_row(self, job_id: int) -> int:
        """How many of the job's last resizes have failed, one after the other."""
        over = (_ROWS.c.job_id == job_id) & _ROWS.c.open_job.is_(None)
        failed = _ROWS.c.state == ResizeState.FAILED.value
        other = select(func.coalesce(func.max(_ROWS.c.id), 0)).where(over, ~failed).scalar_subquery()
        return int(self._value(select(func.count()).where(over, failed, _ROWS.c.id > other)))

    def too_large(self, job_id: int) -> frozenset[int]:
        """Sizes in GPUs at which the job was out of its GPUs' memory: they are not asked for again."""
        with self._db.lock:
            if self._too_large is None:
                self._too_large = {}
                for row in self._load(IS_TOO_LARGE & _ROWS.c.job_id.in_(_active())):
                    self._note_too_large(row)
            return self._too_large.get(job_id, frozenset())

    def _note_too_large(self, resize: ResizeRow) -> None:
        if self._too_large is not None and resize.too_large:
            self._too_large[resize.job_id] = self._too_large.get(resize.job_id, frozenset()) | {resize.gpus}

    def advance(self, resize_id: int, state: ResizeState, detail: str = "", at: float | None = None) -> ResizeRow:
        """The resize has come to `state`; returns where it stands. Raises NotFound.

        A phase that arrives twice or late changes nothing.
        """
        with self._db.lock:
            with self._db.write() as connection:
                row = self._load(_ROWS.c.id == resize_id, connection)
                if row and row[0].open and row[0].state.comes_before(state):
                    moved = row[0].come_to(state, steady_now() if at is None else at, detail)
                    values: dict[str, Any] = {"state": state.value, "detail": detail, "phases": moved.phases}
                    if state.closed:
                        values["open_job"] = None
                    connection.execute(update(_ROWS).where(_ROWS.c.id == resize_id), values)
            return self._remembered(self.get(resize_id))

    def _remembered(self, resize: ResizeRow) -> ResizeRow:
        """The same, which the memory follows. Under the lock."""
        known = self._open if self._open is not None else {}
        if resize.open:
            known[resize.job_id] = resize
        elif (before := known.get(resize.job_id)) is not None and before.id == resize.id:
            del known[resize.job_id]
        self._note_too_large(resize)
        if not resize.open and self._closed is not None:
            self._closed.pop(resize.job_id, None)
        return resize

    def _load_closed(self, where: Any) -> dict[int, Closed]:
        # A job's resizes come one after the other, so the highest id is the last.
        last = select(func.max(_ROWS.c.id)).where(where, _ROWS.c.open_job.is_(None))
        found: dict[int, Closed] = {}
        for row in self._load(_ROWS.c.id.in_(last.group_by(_ROWS.c.job_id, _ROWS.c.reason == BATCH))):
            nodes, batch = found.get(row.job_id, _NONE)
            found[row.job_id] = (nodes, row) if row.reason == BATCH else (row, batch)
        return found

    def _load(self, where: Any, connection: Connection | None = None) -> list[ResizeRow]:
        query = select(_ROWS).where(where).order_by(_ROWS.c.id)
        return [_row(row) for row in (self._rows(query) if connection is None else connection.execute(query))]

    def _forget(self, job_id: int) -> None:
        with self._db.lock:
            self._open = None
            for known in (self._closed, self._too_large):
                if known is not None:
                    known.pop(job_id, None)


def _active() -> Any:
    return select(schema.jobs.c.job_id).where(schema.jobs.c.ended.is_(False))


def _free(connection: Connection, resizes: Sequence[Resize]) -> tuple[list[Resize], dict[int, str]]:
    """Those of jobs that have none open, and by job why the others cannot begin."""
    query = select(_ROWS.c.open_job, _ROWS.c.id).where(_ROWS.c.open_job.is_not(None))
    taken = {job_id: number for job_id, number in connection.execute(query).all()}
    refused = {
        job_id: f"job {job_id} has resize {taken[job_id]} under way; it ends before the next begins"
        for job_id in (resize.job_id for resize in resizes)
        if job_id in taken
    }
    return [resize for resize in resizes if resize.job_id not in taken], refused


def _issued(resize: Resize, number: int, at: float) -> dict[str, Any]:
    """The row of a resize that begins."""
    values: dict[str, Any] = {name: getattr(resize, name) for name in ("job_id", "gpus", "batch", "reason", "wait_s")}
    values |= {"keep": records_out(resize.keep), "add": records_out(resize.add)}
    values |= {"id": number, "open_job": resize.job_id, "detail": ""}
    return values | {"state": ResizeState.ISSUED.value, "phases": [[ResizeState.ISSUED.value, at]]}


def _row(row: Row[Any]) -> ResizeRow:
    phases = tuple((ResizeState(state), at) for state, at in row.phases)
    pieces, shapes = records_in(Piece, row.keep), records_in(Shape, row.add)
    return replace(records(ResizeRow, [row])[0], keep=pieces, add=shapes, state=ResizeState(row.state), phases=phases)
