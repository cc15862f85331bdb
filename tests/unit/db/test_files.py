"""Where a store may lie, and which files it refuses."""

from __future__ import annotations

import hashlib
import os
import re
import sqlite3
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import old_database
import pytest
from sqlalchemy import inspect
from sqlalchemy.schema import CreateIndex, CreateTable
from store_records import JOB

from slurm_elastic.db import engine, migrate
from slurm_elastic.db.schema import REVISION, metadata
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import StoreError


def test_disk_settings_are_the_durable_ones(store: Store) -> None:
    """Every connection writes ahead, syncs fully and checks foreign keys."""
    with store._db.read() as connection:
        values = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert values == ["wal", 2, 1]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("sqlite:////nowhere/at/all/x.db", "directory /nowhere/at/all does not exist; create it"),
        ("sqlite://", "keeps nothing; accepted"),
        ("selastic.db", "cannot be read; accepted: sqlite"),
        ("nosuchdatabase://x/y", "cannot be read; accepted: sqlite"),
        ("postgres+nothing://ada:s:e@cret@db/x", r"nothing://ada:\*\*\*@db/x cannot be read"),
    ],
)
def test_an_address_that_cannot_work_is_refused(address: str, sentence: str) -> None:
    """Each mistake in database_url has its own sentence with the remedy."""
    with pytest.raises(StoreError, match=sentence):
        Store.open(address)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize(("mode", "sentence"), [(0o755, "is not writable by uid 65534"), (0o700, "is closed to uid")])
def test_a_directory_of_someone_else_is_refused(mode: int, sentence: str) -> None:
    """A daemon that may not write says which directory and which uid, before it touches anything."""
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "state"
        folder.mkdir()
        Path(outer).chmod(mode)
        os.seteuid(65534)
        try:
            with pytest.raises(StoreError, match=sentence):
                Store.open(f"sqlite:///{folder / 'x.db'}")
        finally:
            os.seteuid(0)


def test_network_file_systems_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SQLite on NFS and its like loses data: the sentence names the file system and both ways out."""
    mounts = f"/dev/sda1 / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\nx {tmp_path}/local\\040disk xfs rw 0 0\n"
    assert engine.file_system(tmp_path / "a.db", mounts) == "nfs4"
    assert engine.file_system(tmp_path / "local disk" / "a.db", mounts) == "xfs"
    assert engine.file_system(Path("/etc/x"), mounts) == "ext4"
    assert [engine.is_network(kind) for kind in ("lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "nfs")] == [True] * 6
    assert [engine.is_network(kind) for kind in ("ext4", "xfs", "tmpfs", "overlay", "fuse.fuse-overlayfs")] == [
        False
    ] * 5
    monkeypatch.setattr(engine, "file_system", lambda path: "nfs4")
    with pytest.raises(StoreError, match=r"network file system \(nfs4\).*local disk or to a PostgreSQL"):
        Store.open(f"sqlite:///{tmp_path / 'x.db'}")


def test_tables_that_change_have_another_number() -> None:
    """A database has the columns of its number: a change without a new one would not be made in those there are."""
    indexes = [
        index for table in metadata.sorted_tables for index in sorted(table.indexes, key=lambda one: str(one.name))
    ]
    ddl = [*map(CreateTable, metadata.sorted_tables), *map(CreateIndex, indexes)]
    digest = hashlib.sha256("".join(map(str, ddl)).encode()).hexdigest()
    assert (REVISION, digest[:12]) == ("0210", "91db71cedeaf")


def _tables(url: str) -> dict[str, tuple[object, ...]]:
    """Of each table of a database its columns, but for their order, its key and its indexes."""
    database = engine.Database(url)
    with database.read() as connection:
        there = inspect(connection)
        found = {
            name: (
                {column["name"]: (str(column["type"]), column["nullable"]) for column in there.get_columns(name)},
                there.get_pk_constraint(name)["constrained_columns"],
                there.get_foreign_keys(name),
                sorted((str(index["name"]), index["column_names"]) for index in there.get_indexes(name)),
            )
            for name in there.get_table_names()
        }
    database.close()
    return found


def test_a_database_of_0_2_0_is_upgraded(store: Store, url: str, tmp_path: Path) -> None:
    """It comes to the tables that a new one has, and keeps what is in it; what it did not know is at its default."""
    path = tmp_path / "old.db"
    old_database.write(path, "0200", "0_2_0")
    values = ("ada", 1001, "train", "a", "gpu", "", 1, "", "", 1.0, None, None, "RUNNING", 0)
    with sqlite3.connect(path) as connection:
        connection.execute(f"INSERT INTO jobs VALUES (7, {', '.join('?' * len(values))})", values)
        connection.execute("INSERT INTO in_use VALUES (7, 1, '[]', 64, 2.0, 3.0)")
    connection.close()
    assert migrate.probe(f"sqlite:///{path}") == f"will be upgraded from schema 0200 to {REVISION}"
    with Store.open(f"sqlite:///{path}") as old:
        row, used = old.jobs.get(7), old.allocations.in_use(7)
    assert row is not None and (row.user, row.task_name, row.held_gpus) == ("ada", "", 0)
    assert used is not None and (used.batch, used.refusal, used.stalled_since) == (64, "", 0.0)
    assert migrate.probe(f"sqlite:///{path}") == "ready"
    assert _tables(f"sqlite:///{path}") == _tables(url)


@pytest.mark.parametrize("revision", migrate.OF_0_1_0)
def test_a_database_of_0_1_0_is_refused_with_the_way_out(tmp_path: Path, revision: str) -> None:
    """Nothing in it is touched, and the sentence is the command: carried out, the daemon starts on an empty one."""
    path = tmp_path / "selastic.db"
    old_database.write(path, revision)
    before, url = old_database.content(path), f"sqlite:///{path}"
    for opening in (Store.open, Store, migrate.probe, lambda address: migrate.prepare(engine.Database(address))):
        with pytest.raises(StoreError, match=r"was written by slurm-elastic 0\.1\.0, which 0\.2\.0 does not") as caught:
            opening(url)
    assert old_database.content(path) == before
    command = re.search(r"\((mkdir .*)\)", str(caught.value))
    assert command is not None
    subprocess.run(["sh", "-c", command[1]], check=True)
    Store.open(url).close()
    assert old_database.content(tmp_path / "0.1.0" / "selastic.db") == before


def test_a_newer_schema_is_refused(store: Store, url: str) -> None:
    """An older program does not touch what a newer one has written."""
    store.close()
    connection = sqlite3.connect(store._db.name)
    connection.execute("UPDATE alembic_version SET version_num='9999'")
    connection.commit()
    connection.close()
    for opening in (Store.open, Store):
        with pytest.raises(StoreError, match=f"schema 9999, newer than this version .*{REVISION}"):
            opening(url)


def test_a_store_without_schema_says_so(url: str) -> None:
    """`Store(url)` does not create anything by itself."""
    with pytest.raises(StoreError, match=f"has schema none, not {REVISION}"):
        Store(url)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    """A path to something else is not overwritten."""
    path = tmp_path / "x.db"
    path.write_bytes(b"something else entirely, longer than a header" * 100)
    with pytest.raises(StoreError, match="another kind of file"):
        Store.open(f"sqlite:///{path}")
    assert path.read_bytes().startswith(b"something else")


def test_opened_while_somebody_writes_to_the_new_file(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite does not wait by itself there: a daemon that starts beside another one on a fresh database does."""
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("CREATE TABLE anything (x)")
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(url.removeprefix("sqlite:///"), timeout=60).execute("PRAGMA journal_mode=WAL")
    refused = threading.Event()
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=time.monotonic, sleep=lambda seconds: refused.set()))
    with ThreadPoolExecutor(1) as pool:
        opening = pool.submit(lambda: Store.open(url).close())
        assert refused.wait(60)
        other.execute("COMMIT")
        opening.result(60)
    other.close()


def test_opened_by_two_at_once(url: str) -> None:
    """Two daemons that start together on a fresh database both find it whole."""
    errors: list[BaseException] = []

    def opening() -> None:
        try:
            Store.open(url).close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=opening) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def test_the_database_is_its_owners_alone(tmp_path: Path) -> None:
    """With whatever umask the daemon is started; what SQLite lays beside it too, and one that others could read."""
    path = tmp_path / "selastic.db"
    before = os.umask(0)
    try:
        for _ in range(2):
            with Store.open(f"sqlite:///{path}") as store:
                store.jobs.upsert(JOB)
                modes = {place.name: place.stat().st_mode & 0o777 for place in tmp_path.iterdir()}
                assert modes == dict.fromkeys(("selastic.db", "selastic.db-wal", "selastic.db-shm"), 0o600)
        path.chmod(0o644)
        Store.open(f"sqlite:///{path}").close()
        assert path.stat().st_mode & 0o777 == 0o640
    finally:
        os.umask(before)
