"""What every part of the store stands on: the database, and the memory that spares it repeated questions.

A cache here is only ever of rows that this process alone writes; it is changed after the commit, never before.
"""

import functools
import threading
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, TypeVar

from sqlalchemy import Connection, Table
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, StatementError

from slurm_elastic.protocol.errors import StoreError

from ..engine import Database

T = TypeVar("T")


class Ended:
    """The signal that a job has ended, or that its rows were changed behind the parts' memories."""

    def __init__(self) -> None:
        self._told: list[Callable[[int], None]] = []

    def connect(self, forget: Callable[[int], None]) -> None:
        """Call this with the id of each such job, to drop what is remembered of it."""
        self._told.append(forget)

    def __call__(self, job_id: int) -> None:
        for forget in self._told:
            forget(job_id)


class StorePart:
    """Base of the store's parts: one database and one signal, shared."""

    def __init__(self, database: Database, ended: Ended) -> None:
        self._db, self._ended = database, ended
        # Held only for dictionary work, never across a query.
        self._memory = threading.Lock()

    def _rows(self, query: Any) -> Sequence[Any]:
        with self._db.read() as connection:
            return connection.execute(query).all()

    def _records(self, kind: type[T], query: Any) -> list[T]:
        return records(kind, self._rows(query))

    def _record(self, kind: type[T], query: Any) -> T | None:
        """The first; None: there is none."""
        return next(iter(self._records(kind, query)), None)

    def _value(self, query: Any) -> Any:
        """The first value of the first row; None: there is none."""
        with self._db.read() as connection:
            return connection.execute(query).scalar()

    def _values(self, query: Any) -> list[Any]:
        """The first value of each row."""
        with self._db.read() as connection:
            return list(connection.execute(query).scalars())


@functools.cache
def names_of(kind: type[Any]) -> tuple[str, ...]:
    """The fields of a record, as the columns are called."""
    return tuple(kind.__dataclass_fields__)


def records(kind: type[T], rows: Sequence[Any]) -> list[T]:
    """The records that the rows of one query hold; further columns are left out."""
    columns = rows[0]._fields if rows else names_of(kind)  # type: ignore[arg-type]  # a class is hashable
    values = itemgetter(*(columns.index(name) for name in names_of(kind)))  # type: ignore[arg-type]
    return [kind(*values(row)) for row in rows]


def insert_or_ignore(database: Database, table: Table) -> Any:
    """An INSERT that passes over rows whose key is already there."""
    name = database.engine.dialect.name
    if name == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    if name == "postgresql":
        return postgresql.insert(table).on_conflict_do_nothing()
    return mysql.insert(table).prefix_with("IGNORE")


def blames_a_record(error: StoreError) -> bool:
    """Whether one of the records, rather than the database itself, is the cause."""
    cause = error.__cause__
    if isinstance(cause, DBAPIError):
        return isinstance(cause, (IntegrityError, DataError))
    return isinstance(cause, (StatementError, OverflowError, UnicodeError))


class Many:
    """A statement for many rows at a time, which are given as tuples in the order of `names`.

    It is compiled once: SQLAlchemy's own way, from a dictionary for each row, costs several times what SQLite needs to
    store the row.
    """

    def __init__(self, statement: Any, names: Sequence[str]) -> None:
        self._statement, self._names = statement, list(names)
        self._ready: dict[tuple[str, str], tuple[str, Any]] = {}

    def __call__(self, connection: Connection, rows: Sequence[tuple[Any, ...]]) -> None:
        """Execute it with these rows, of which there is at least one."""
        dialect = connection.dialect
        sql, ordered = self._ready.get((dialect.name, dialect.driver)) or self._prepared(dialect)
        connection.exec_driver_sql(sql, [ordered(row) for row in rows])

    def _prepared(self, dialect: Any) -> tuple[str, Any]:
        compiled = self._statement.compile(dialect=dialect, column_keys=self._names)
        ordered: Any
        if not compiled.positional:
            ordered = lambda row: dict(zip(self._names, row, strict=True))  # noqa: E731
        else:
            ordered = itemgetter(*(self._names.index(name) for name in compiled.positiontup))
        ready = self._ready[dialect.name, dialect.driver] = (str(compiled), ordered)
        return ready


def upsert(database: Database, table: Table) -> Any:
    """An INSERT that replaces the row of the same primary key; values come with the execution."""
    key = [column.name for column in table.primary_key]
    others = [column.name for column in table.columns if column.name not in key]
    name = database.engine.dialect.name
    if name in ("sqlite", "postgresql"):
        insert: Any = (sqlite if name == "sqlite" else postgresql).insert(table)
        return insert.on_conflict_do_update(index_elements=key, set_={n: insert.excluded[n] for n in others})
    other: Any = mysql.insert(table)
    return other.on_duplicate_key_update({n: other.inserted[n] for n in others})
