"""Brings a database to this code's schema, in one transaction where the database can.

An upgrade adds what is missing: tables, columns with their defaults, indexes. A change of the schema that is more than
that needs a step of its own here. Never goes back: a database newer than the code is refused, since it may hold what
this code would destroy. Limit: what 0.1.0 wrote is not read; from 0.2.0 on every schema is upgraded.
"""

import sqlite3
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import Connection, NullPool, create_engine, delete, insert, inspect, make_url, text
from sqlalchemy.exc import ArgumentError
from sqlalchemy.schema import CreateColumn

from slurm_elastic.protocol.errors import StoreError

from .engine import Database, parse_url
from .schema import REVISION, lease, metadata, version

OF_0_1_0 = ("0001", "0002", "0003", "0004")
"""The revisions of slurm-elastic 0.1.0."""
OLDEST = "0200"
"""Of those that are upgraded."""


def migrate(database: Database) -> None:
    """Create or upgrade the schema. Raises StoreError; a failed upgrade leaves the old schema on SQLite."""
    if revision(database) == REVISION:
        return
    with database.write() as connection:
        _refuse_foreign(database, connection)
        _add_what_is_missing(connection)
        connection.execute(delete(version))
        connection.execute(insert(version).values(version_num=REVISION))


def _add_what_is_missing(connection: Connection) -> None:
    there, quoted = inspect(connection), connection.dialect.identifier_preparer.format_table
    tables = set(there.get_table_names())
    for table in metadata.sorted_tables:
        if table.name not in tables:
            table.create(connection)
            continue
        known = {column["name"] for column in there.get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                added = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {quoted(table)} ADD COLUMN {added}")
        for index in table.indexes:
            index.create(connection, checkfirst=True)


def prepare(database: Database) -> None:
    """Make sure that there is a table for the lease, so that the rest is upgraded by its holder alone."""
    with database.read() as connection:
        _refuse_foreign(database, connection)
        there = inspect(connection).has_table(lease.name)
    if not there:
        migrate(database)


def check(database: Database) -> None:
    """Raise StoreError unless the schema is exactly this code's."""
    with database.read() as connection:
        _refuse_foreign(database, connection)
        found = _revision(connection)
    if found != REVISION:
        raise StoreError(f"database {database.name} has schema {found or 'none'}, not {REVISION}; start selasticd once")


def revision(database: Database) -> str | None:
    """The revision that the database has; None when it is empty."""
    with database.read() as connection:
        return _revision(connection)


def probe(url: str, coming: Path | None = None) -> str:
    """What opening the store will find, in words; changes nothing, neither the file nor SQLite's journals.

    `coming`: a directory that is not there yet, but is made before the store is opened. Raises StoreError where
    opening would.
    """
    if coming is not None and _lies_in(url, coming):
        # What holds for the place where the directory will be made holds in it.
        nearest = next(parent for parent in coming.parents if parent.exists())
        parse_url(make_url(url).set(database=str(nearest / coming.name)).render_as_string(hide_password=False))
        return "will be created"
    database = Database(url)
    try:
        found = _peek(database) if database.sqlite else revision(database)
    finally:
        database.close()
    if found == REVISION:
        return "ready"
    return "will be created" if found is None else f"will be upgraded from schema {found} to {REVISION}"


def _peek(database: Database) -> str | None:
    """The revision of an SQLite file, through a connection that could not write if it wanted to."""
    path = Path(database.name)
    if not path.exists():
        return None
    # Without a journal nobody has the file open. With one, reading may want to repair what a killed daemon left.
    how = "mode=ro&readonly_shm=1" if path.with_name(path.name + "-wal").exists() else "immutable=1"
    address = f"file:{quote(str(path.resolve()))}?{how}"
    engine = create_engine("sqlite://", creator=lambda: sqlite3.connect(address, uri=True), poolclass=NullPool)
    with database.errors(), engine.connect() as connection:
        _refuse_foreign(database, connection)
        return _revision(connection)


def _lies_in(url: str, coming: Path) -> bool:
    """Whether this is an SQLite file whose directory is there once `coming` has been made."""
    try:
        address = make_url(url)
    except ArgumentError:
        return False
    if address.get_backend_name() != "sqlite" or not address.database:
        return False
    folder = Path(address.database).parent
    return not folder.exists() and folder in (coming, *coming.parents)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return None if found is None else str(found)


def _refuse_foreign(database: Database, connection: Connection) -> None:
    """Refuse what an older version wrote that is not upgraded any more, and what a newer one wrote."""
    found = _revision(connection)
    if found in OF_0_1_0:
        raise StoreError(
            f"the database {database.name} was written by slurm-elastic 0.1.0, which 0.2.0 does not read: "
            f"{_way_out(database)} and start selasticd again; jobs that run with 0.1.0 keep their size until they end"
        )
    if found is not None and not OLDEST <= found <= REVISION:
        raise StoreError(
            f"database {database.name} has schema {found}, newer than this version of slurm-elastic ({REVISION}); "
            "install the newer version again, or choose another database_url"
        )


def _way_out(database: Database) -> str:
    if not database.sqlite:
        return "give database_url an empty one"
    old = Path(database.name).parent / "0.1.0"
    return f"move it away (mkdir {old} && mv {database.name}* {old}/)"
