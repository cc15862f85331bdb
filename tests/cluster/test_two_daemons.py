"""Two selasticd on one database and one real Slurm, as on two hosts: one acts, the other takes over, never both."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator

import pytest
from live_daemon import Selasticd, live_daemon
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.db.store import Store

LEASE_S = 4
"""Renewed five times meanwhile: a busy machine does not lose it."""


@pytest.fixture
def pair(empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Selasticd, Selasticd]]:
    """A daemon that leads and one that stands by, each with a state directory and a port of its own."""
    with live_daemon(empty_sandbox, monkeypatch, f"lease_s = {LEASE_S}") as first:
        folder = first.folder / "other"
        folder.mkdir()
        folder.chmod(0o755)
        database = f"sqlite:///{first.state / 'selastic.db'}"
        second = Selasticd(empty_sandbox, folder, f'lease_s = {LEASE_S}\ndatabase_url = "{database}"')
        second.launch()
        wait_until(lambda: "standing by" in second.log(), 60, second.log)
        try:
            yield first, second
        finally:
            for daemon in (first, second):
                if daemon.process is not None and daemon.process.poll() is None:
                    daemon.process.send_signal(signal.SIGCONT)
                    daemon.kill()


def test_one_stopped_through_its_lease_wakes_up_and_does_nothing(pair: tuple[Selasticd, Selasticd]) -> None:
    """SIGSTOP with a release due, takeover, the standby finishes the resize; continued, the first is refused and ends.

    From the takeover on, no event of the first daemon is in the record, and Slurm holds what the second one wants.
    """
    first, second = pair
    job = first.submit("-N1", "--gres=gpu:a100:4")
    first.settles_at(job, 12)
    assert first.process is not None and second.process is not None
    with sqlite3.connect(first.state / "selastic.db", timeout=60) as database:
        # Not in the middle of a write: SQLite would keep the lock of a process that is stopped. The lock is given back
        # when all of its threads have stopped: one that still runs could begin a write.
        database.execute("BEGIN IMMEDIATE")
        first.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, first.process.pid, os.WSTOPPED | os.WNOWAIT)
        database.rollback()
    database.close()
    rigid = first.rigid(7)
    wait_until(lambda: (second.state / "client.json").exists(), 60, second.log)
    # What a site does with a shared path or an address that moves: supervisors find the one that leads.
    (second.state / "client.json").replace(first.state / "client.json")
    wait_until(lambda: first.jobs()[rigid].running, 60, lambda: first.log() + second.log())
    first.settles_at(job, 4)
    with Store(f"sqlite:///{first.state / 'selastic.db'}") as store:
        leads = [event.detail["lease"] for event in store.events.of(0) if event.kind == "started"]
    assert leads == [1, 2]
    seen = first.events(job)
    first.process.send_signal(signal.SIGCONT)
    assert first.process.wait(60) == 1, first.log()
    assert "another selasticd has" in first.log()
    assert first.events(job)[: len(seen)] == seen
    assert first.held(job) == 4 and first.trains_on(job) == 4
    first.launch()
    wait_until(lambda: first.log().count("standing by") == 1, 60, first.log)
    assert first.kill() == -signal.SIGKILL


def test_a_clean_stop_and_a_kill_are_taken_over(pair: tuple[Selasticd, Selasticd]) -> None:
    """After SIGTERM the standby leads at once; after kill -9 of that one, the first, started anew, waits its lease."""
    first, second = pair
    job = first.submit("-N1", "--gres=gpu:a100:4")
    first.settles_at(job, 12)
    assert first.kill(signal.SIGTERM) == 0
    wait_until(lambda: (second.state / "client.json").exists(), 60, second.log)
    first.launch()
    wait_until(lambda: "standing by" in first.log(), 60, first.log)
    assert second.kill() == -signal.SIGKILL
    first.finish(job)
    wait_until(lambda: first.log().count("holds the lease, number") == 2, 60, first.log)
    wait_until(lambda: first.answers() and "ended" in first.events(job), 60, first.log)
