"""A database from a backup, and an empty one, under a running job: as docs/how-to/operations.md tells it."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest
from live_daemon import Selasticd, live_daemon

from slurm_elastic.daemon.sandbox import Sandbox


@pytest.fixture
def daemon(empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selasticd]:
    with live_daemon(empty_sandbox, monkeypatch) as made:
        yield made


def shrinks_and_grows(daemon: Selasticd, job: int) -> None:
    """Give way to an ordinary job, and take what it leaves."""
    rigid = daemon.rigid(7)
    daemon.settles_at(job, 4)
    daemon.slurm.cancel(rigid)
    daemon.settles_at(job, 12)


@pytest.mark.parametrize("kept", ["a backup", "nothing"])
def test_running_jobs_are_resized_after_a_restore(daemon: Selasticd, kept: str) -> None:
    """The supervisor knows resizes that the database does not: later ones come above them."""
    job = daemon.submit("-N1", "--gres=gpu:a100:4")
    daemon.settles_at(job, 12)
    database, backup = daemon.state / "selastic.db", daemon.folder / "backup.db"
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(backup)) as copy:
        source.backup(copy)
    shrinks_and_grows(daemon, job)
    daemon.kill()
    for path in daemon.state.glob("selastic.db*"):
        path.unlink()
    if kept == "a backup":
        shutil.copy(backup, database)
    daemon.start()
    daemon.settles_at(job, 12)
    shrinks_and_grows(daemon, job)
