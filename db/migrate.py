"""Brings a database to this code's schema with Alembic, in one transaction where the database can.

Never goes back: a database newer than the code is refused, since it may hold what this code would destroy.
"""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection

from slurm_elastic.trainer_shim.errors import StoreError

from .engine import Database

SCRIPTS = Path(__file__).resolve().parent / "migrations"


def migrate(database: Database) -> None:
    """Create or upgrade the schema. Raises StoreError; a failed upgrade leaves the old schema on SQLite."""
    if revision(database) == head():
        return
    with database.write() as connection:
        config = _config()
        config.attributes["connection"] = connection
        _refuse_newer(database, connection)
        command.upgrade(config, "head")


def check(database: Database) -> None:
    """Raise StoreError unless the schema is exactly this code's."""
    with database.read() as connection:
        _refuse_newer(database, connection)
        found = _revision(connection)
    if found != head():
        raise StoreError(f"database {database.name} has schema {found or 'none'}, not {head()}; start selasticd once")


def head() -> str:
    """The newest revision that this code knows."""
    return str(ScriptDirectory.from_config(_config()).get_current_head())


def revision(database: Database) -> str | None:
    """The revision that the database has; None when it is empty."""
    with database.read() as connection:
        return _revision(connection)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(database: Database, connection: Connection) -> None:
    found = _revision(connection)
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if found is not None and found not in known:
        raise StoreError(
            f"database {database.name} has schema {found}, newer than this version of slurm-elastic ({head()}); "
            "install the newer version again, or choose another database_url"
        )


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(SCRIPTS).replace("%", "%%"))
    return config
