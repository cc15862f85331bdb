"""What was acknowledged is there, whatever dies: kill -9 at any moment, a full disk, a database that others hold."""

from __future__ import annotations

import inspect
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from store_records import JOB, kept_reports
from waiting import wait_until

from slurm_elastic.db import engine
from slurm_elastic.db.parts import writer
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.api.client import Client
from slurm_elastic.protocol.errors import StoreError
from slurm_elastic.protocol.messages import Report

ROUNDS = int(os.environ.get("SELASTIC_KILL_ROUNDS", "12"))
"""How often the writer is killed; a hundred in the long run."""

# Four threads report while one decides and orders; each line is an acknowledgement, one write(2) and thus never torn.
WRITER = """
import dataclasses, os, sys, threading, itertools
from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.messages import Resize, Report
from slurm_elastic.protocol.codes import ResizeState

url, begin = sys.argv[1], int(sys.argv[2])
store = Store.open(url)

def said(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

def report(part):
    for i in itertools.count(begin):
        step = i * 8 + part
        one = Report(1, float(step), 4, 1, 64, 16, 1, 1, .1, .1, 640., step, step * 64, 0)
        store.reports.submit(7, [one], 1e12).result()
        said("report", step)

def decide():
    for i in itertools.count(begin):
        store.decisions.save(float(i), [DecisionRow(7, float(i), i, i + 1, 64, 64, "grow_idle", None, None)])
        said("decision", i)
        number = store.resizes.begin(Resize(0, 7, (), (), 4, 64, "grow_idle", 60.0), float(i)).id
        said("resize", number)
        store.resizes.advance(number, ResizeState.DONE, "", float(i))
        said("closed", number)

for resize in store.resizes.under_way():
    store.resizes.advance(resize.id, ResizeState.FAILED, "the daemon was killed", 0.0)
said("ready")
threads = [threading.Thread(target=report, args=(part,), daemon=True) for part in range(4)]
for thread in threads: thread.start()
decide()
"""


def report(step: int) -> Report:
    return Report(1, float(step), 4, 1, 64, 16, 1, 1, 0.1, 0.1, 640.0, step, step * 64, 0)


def test_kill_9_loses_nothing_acknowledged(url: str) -> None:
    """A writer under load is killed at random moments, again and again: every report, decision and resize that it was
    told is stored, is; the file is whole; and what was open can be closed by the next one."""
    with Store.open(url) as store:
        store.jobs.upsert(JOB)
    seed = random.randrange(1 << 30)
    chance, said = random.Random(seed), []
    for number in range(ROUNDS):
        lines = _killed_after(url, number * 100_000, chance.randrange(8, 120), chance.uniform(0.0, 0.01))
        assert lines and lines[0] == ["ready"], f"seed {seed}: the writer did not start"
        said += lines[1:]
    told = {
        kind: {int(word) for what, word in said if what == kind} for kind in ("report", "decision", "resize", "closed")
    }
    assert all(len(numbers) > ROUNDS for numbers in told.values())
    check = sqlite3.connect(url.removeprefix("sqlite:///"))
    assert check.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    assert check.execute("PRAGMA foreign_key_check").fetchall() == []
    check.close()
    with Store(url) as store:
        assert told["report"] <= {row.step for row in kept_reports(store, 7)}, f"seed {seed}"
        assert told["decision"] <= {row.gpus_from for row in store.decisions.of(7, 10**9)}, f"seed {seed}"
        states = {number: store.resizes.get(number).state for number in told["resize"]}
        assert all(states[number] == "done" for number in told["closed"]), f"seed {seed}"
        assert len(store.resizes.under_way()) <= 1


def _killed_after(url: str, begin: int, lines: int, seconds: float) -> list[list[str]]:
    """Start the writer, kill it -9 this long after so many lines; what it said, by words."""
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    command = [sys.executable, "-c", WRITER, url, str(begin)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        first = b"".join(process.stdout.readline() for _ in range(lines))
        timer = threading.Timer(seconds, process.send_signal, [signal.SIGKILL])
        timer.start()
        rest = process.stdout.read()
        timer.cancel()
    assert process.returncode == -signal.SIGKILL
    return [line.split() for line in (first + rest).decode().splitlines()]


def test_a_full_disk_is_said_and_outlived(store: Store) -> None:
    """With no page left a report and a decision fail with the reason and the remedy; reading goes on; with space again
    so does writing, in the same process."""
    store.reports.submit(7, [report(1)], 1e6).result()
    with store._db.engine.connect() as connection:
        connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    _limit_pages(store, 1)
    with pytest.raises(StoreError, match="the disk is full; free some space, nothing acknowledged was lost"):
        store.reports.submit(7, [report(step) for step in range(10, 4000)], 1e6).result()
    with pytest.raises(StoreError, match="the disk is full"):
        for number in range(1000):
            store.events.add(7, "test", "selasticd", {"text": "x" * 1000}, float(number))
    assert [row.step for row in kept_reports(store, 7)] == [1]
    assert store.reports.observations(7)[0].count == 1 and store.jobs.get(7) == JOB
    _limit_pages(store, 1 << 30)
    store.reports.submit(7, [report(step) for step in range(10, 4000)], 1e6).result()
    assert store.reports.observations(7)[0].count == 3991


def _limit_pages(store: Store, pages: int) -> None:
    """Set the limit on every pooled connection: all are opened, then given back."""
    store._db.engine.dispose()
    taken = [store._db.engine.connect() for _ in range(4)]
    for connection in taken:
        connection.exec_driver_sql(f"PRAGMA max_page_count={pages}")
    for connection in taken:
        connection.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to mount a small disk")
def test_a_really_full_disk(tmp_path: Path) -> None:
    """The same on a real file system of 2 MB with something else filling it, and after that is deleted."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(tmp_path)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("this container may not mount")
    try:
        with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as store:
            store.jobs.upsert(JOB)
            filler = tmp_path / "filler"
            with pytest.raises(OSError, match="No space left"):
                filler.write_bytes(b"x" * (4 << 20))
            with pytest.raises(StoreError, match="disk"):
                for step in range(1, 10_000, 100):
                    store.reports.submit(7, [report(step + i) for i in range(100)], 1e6).result()
            kept = len(kept_reports(store, 7))
            assert store.jobs.get(7) == JOB
            filler.unlink()
            store.reports.submit(7, [report(step) for step in range(20_000, 20_100)], 1e6).result()
            assert len(kept_reports(store, 7)) == kept + 100
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_locked_database_is_said_and_outlived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While another process holds the file, writing fails with that reason after a bounded wait, all that wait at
    once; reading goes on; and writing too when it is let go."""
    monkeypatch.setattr(engine, "BUSY_S", 0.2)
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as store:
        store.jobs.upsert(JOB)
        other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        futures = [store.reports.submit(7, [report(step)], 1e6) for step in range(1, 40)]
        for future in futures:
            assert isinstance(future.exception(10), StoreError)
            assert "is held by another process" in str(future.exception())
        assert store.jobs.get(7) == JOB and kept_reports(store, 7) == []
        other.execute("ROLLBACK")
        other.close()
        store.reports.submit(7, [report(step) for step in range(1, 40)], 1e6).result()
        assert store.reports.observations(7)[0].count == 39


def test_a_client_hears_of_it_before_its_patience_is_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for its turn to write gives up in a bounded time, and that and the wait for another process are less
    than clients wait for an answer."""
    patience = inspect.signature(Client).parameters["timeout"].default
    assert patience > engine.TURN_S + engine.BUSY_S + writer.GATHER_S
    monkeypatch.setattr(engine, "TURN_S", 0.2)
    failed: list[StoreError] = []

    def write() -> None:
        try:
            store.events.add(7, "test", "selasticd", {}, 1.0)
        except StoreError as error:
            failed.append(error)

    with store._db.write():
        thread = threading.Thread(target=write)
        thread.start()
        thread.join(60)
    assert "is busy" in str(failed[0]) and not store.events.of(7)
    write()
    assert len(failed) == 1 and store.trouble == ""


def test_trouble_is_remembered_until_something_is_written(store: Store) -> None:
    """What health shows: a disk that is full, until it takes something."""
    _limit_pages(store, 1)
    for _ in range(2):
        with pytest.raises(StoreError, match="the disk is full"):
            for number in range(1000):
                store.events.add(7, "test", "selasticd", {"text": "x" * 1000}, float(number))
        assert "the disk is full" in store.trouble
    _limit_pages(store, 1 << 30)
    store.events.add(7, "test", "selasticd", {}, 1.0)
    assert store.trouble == ""


def test_reports_that_came_while_others_were_refused_are_refused_with_them() -> None:
    """They would wait as long for the same answer, and the next ones longer still."""
    begun, go, told = threading.Event(), threading.Event(), list[BaseException | None]()

    def commit(batch: list[writer.Submission]) -> None:
        begun.set()
        assert go.wait(60)
        raise StoreError(f"full at {len(batch)}")

    reports = writer.ReportWriter(commit)
    reports.put(writer.Submission(7, [report(1)], 1e6, told.append))
    assert begun.wait(60)
    for step in range(2, 6):
        reports.put(writer.Submission(7, [report(step)], 1e6, told.append))
    go.set()
    wait_until(lambda: len(told) == 5)
    assert {str(error) for error in told} == {"full at 1"}
    reports.close()


def test_a_reader_does_not_wait_for_a_writer(store: Store) -> None:
    """While one transaction writes, status and explain are answered from the state before it."""
    with store._db.write() as connection:
        connection.exec_driver_sql("UPDATE jobs SET name='changed'")
        seen: list[str] = []

        def read() -> None:
            job = store.jobs.get(7)
            seen.append(job.name if job else "")

        thread = threading.Thread(target=read)
        thread.start()
        thread.join(5)
        assert seen == [JOB.name]
    assert json.dumps(store.jobs.get(7).name) == '"changed"'  # type: ignore[union-attr]
