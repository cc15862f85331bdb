"""Brings a database to this code's schema with Alembic, in one transaction where the database can.

Never goes back: a database newer than the code is refused, since it may hold what this code would destroy. Alembic is
loaded only when there is something to upgrade: a daemon started on its own database does without it. Limit: what 0.1.0
wrote is not read; from 0.2.0 on every schema is upgraded. A revision's first two digits are those of the release.
"""

from __future__ import annotations

import sqlite3
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from sqlalchemy import Connection, NullPool, create_engine, inspect, make_url, text
from sqlalchemy.exc import ArgumentError

from slurm_elastic.protocol.errors import StoreError

from .engine import Database, parse_url
from .schema import lease

if TYPE_CHECKING:
    from alembic.config import Config

SCRIPTS = Path(__file__).resolve().parent / "migrations"
OF_0_1_0 = ("0001", "0002", "0003", "0004")
"""The revisions of slurm-elastic 0.1.0."""


def migrate(database: Database) -> None:
    """Create or upgrade the schema. Raises StoreError; a failed upgrade leaves the old schema on SQLite."""
    if revision(database) == head():
        return
    from alembic import command

    config = alembic_config()
    with database.write() as connection:
        config.attributes["connection"] = connection
        _refuse_foreign(database, connection)
        command.upgrade(config, "head")


def alembic_config() -> Config:
    """How Alembic finds the migrations."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    return config


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
    if found != head():
        raise StoreError(f"database {database.name} has schema {found or 'none'}, not {head()}; start selasticd once")


def head() -> str:
    """The newest revision that this code knows."""
    return _revisions()[0]


@cache
def _revisions() -> tuple[str, ...]:
    """Every revision that this code knows, the newest first: one follows the other, and their files begin with them."""
    files = (SCRIPTS / "versions").glob("[0-9]*.py")
    return tuple(sorted((path.name.partition("_")[0] for path in files), reverse=True))


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
        parse_url(make_url(url).set(database=str(_nearest(coming) / coming.name)).render_as_string(hide_password=False))
        return "will be created"
    database = Database(url)
    try:
        found = _peek(database) if database.sqlite else revision(database)
    finally:
        database.close()
    if found == head():
        return "ready"
    return "will be created" if found is None else f"will be upgraded from schema {found} to {head()}"


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


def _nearest(folder: Path) -> Path:
    return next(parent for parent in folder.parents if parent.exists())


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
    if found is not None and found not in _revisions():
        raise StoreError(
            f"database {database.name} has schema {found}, newer than this version of slurm-elastic ({head()}); "
            "install the newer version again, or choose another database_url"
        )


def _way_out(database: Database) -> str:
    if not database.sqlite:
        return "give database_url an empty one"
    old = Path(database.name).parent / "0.1.0"
    return f"move it away (mkdir {old} && mv {database.name}* {old}/)"
