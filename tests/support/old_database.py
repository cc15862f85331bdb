"""A database of slurm-elastic 0.1.0. database_0_1_0.sql is what that release wrote itself: one job and one event."""

from __future__ import annotations

import sqlite3
from pathlib import Path

DUMP = Path(__file__).with_name("database_0_1_0.sql")


def write(path: Path, revision: str = "0004") -> None:
    """Write it here, as of one of 0.1.0's revisions, with SQLite's log as the daemon leaves it."""
    with sqlite3.connect(path) as connection:
        connection.executescript(DUMP.read_text())
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()


def content(path: Path) -> list[str]:
    """All that is in it."""
    connection = sqlite3.connect(path)
    found = list(connection.iterdump())
    connection.close()
    return found
