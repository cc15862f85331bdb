"""Databases of older releases, as they wrote them: that of 0.1.0 has one job and one event, that of 0.2.0 none."""

from __future__ import annotations

import sqlite3
from pathlib import Path


def write(path: Path, revision: str = "0004", release: str = "0_1_0") -> None:
    """Write it here, as of one of that release's revisions, with SQLite's log as the daemon leaves it."""
    with sqlite3.connect(path) as connection:
        connection.executescript(Path(__file__).with_name(f"database_{release}.sql").read_text())
        connection.execute("UPDATE alembic_version SET version_num = ?", [revision])
    connection.execute("PRAGMA journal_mode=WAL")
    connection.close()


def content(path: Path) -> list[str]:
    """All that is in it."""
    connection = sqlite3.connect(path)
    found = list(connection.iterdump())
    connection.close()
    return found
