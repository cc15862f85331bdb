"""sd_notify against a socket of our own: ready when it serves, alive while it works, and silent when it hangs."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from waiting import wait_until

from slurm_elastic.daemon.selasticd import systemd
from slurm_elastic.daemon.selasticd.daemon import Daemon
from slurm_elastic.daemon.selasticd.systemd import Notifier, stalled, watchdog_s


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[socket.socket]:
    """What systemd listens on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(60)
        yield listener


def heard(manager: socket.socket) -> dict[str, str]:
    """The next message."""
    return dict(line.split("=", 1) for line in manager.recv(4096).decode().split("\n"))


def test_ready_is_said_once_and_life_when_it_is_due(manager: socket.socket) -> None:
    """READY once, whatever follows; WATCHDOG thrice in the time that systemd allows, however often it is called."""
    now = [100.0]
    environment = {"NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "6000000"}
    notifier = Notifier(environment, clock=lambda: now[0])
    notifier.standing_by("other pid 3")
    assert heard(manager) == {"READY": "1", "STATUS": "standing by: selasticd at other pid 3 holds the lease"}
    assert heard(manager)["WATCHDOG"] == "1"
    notifier.ready("mode act")
    assert heard(manager) == {"STATUS": "mode act"}
    for _ in range(40):
        notifier.alive(lambda: "well")
        now[0] += 0.1
    notifier.stopping()
    assert [heard(manager) for _ in range(2)] == [{"WATCHDOG": "1", "STATUS": "well"}, {"STOPPING": "1"}]
    notifier.close()
    notifier.alive(lambda: "closed")


def test_an_abstract_socket_and_none(tmp_path: Path) -> None:
    """Names that begin with @ are abstract; without systemd, or with one that has gone, nothing happens."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(f"\0selastic-test-{os.getpid()}")
        listener.settimeout(60)
        Notifier({"NOTIFY_SOCKET": f"@selastic-test-{os.getpid()}"}).ready("here")
        assert heard(listener)["READY"] == "1"
    Notifier({}).ready("nobody listens")
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready("nobody listens any more")


@pytest.mark.parametrize(
    ("usec", "pid", "seconds"),
    [("", "", 0.0), ("60000000", "", 60.0), ("60000000", "1", 0.0), ("x", "", 0.0), ("500000", "own", 0.5)],
)
def test_the_watchdog_that_is_meant(usec: str, pid: str, seconds: float) -> None:
    """The time is systemd's, in microseconds, and may be another process's."""
    pid = str(os.getpid()) if pid == "own" else pid
    assert watchdog_s({"WATCHDOG_USEC": usec, "WATCHDOG_PID": pid}) == seconds


def test_a_round_that_hangs_is_no_life() -> None:
    """A long interval is no hang; a round that does not end is one, and mode off has no rounds."""
    assert not stalled(3600.0, 3600.0) and stalled(3600.0 + systemd.ROUND_LIMIT_S + 1, 3600.0)
    settings = SimpleNamespace(mode="act", round_interval_s=10.0)
    daemon = SimpleNamespace(_round_ended=-1e9, settings=settings)
    hangs = Daemon.hangs.fget
    assert hangs(daemon)
    settings.mode = "off"
    assert not hangs(daemon)


def test_the_daemon_says_it_is_ready_lives_and_stops(manager: socket.socket, tmp_path: Path) -> None:
    """A real selasticd: ready when it answers, alive though its Slurm is away, and stopping on SIGTERM."""
    environment = os.environ | {
        "NOTIFY_SOCKET": manager.getsockname(), "WATCHDOG_USEC": "600000", "HOME": str(tmp_path), "PATH": "/nowhere",
    }  # fmt: skip
    environment.pop("WATCHDOG_PID", None)
    (tmp_path / "toml").write_text('listen = "127.0.0.1:0"\n')
    command = [sys.executable, "-m", "slurm_elastic.daemon.selasticd.main", "--user", "--config", tmp_path / "toml"]
    with (tmp_path / "log").open("w") as log:
        daemon = subprocess.Popen(command, env=environment, stderr=log)
    try:
        first = heard(manager)
        assert first["READY"] == "1" and first["STATUS"].startswith("mode act")
        assert (tmp_path / ".slurm-elastic" / "client.json").exists()
        told = [heard(manager)]
        wait_until(lambda: told.append(heard(manager)) or "could not be observed" in told[-1]["STATUS"], 60)
        assert all(message["WATCHDOG"] == "1" for message in told)
        daemon.send_signal(signal.SIGTERM)
        wait_until(lambda: heard(manager).get("STOPPING") == "1", 60)
        assert daemon.wait(60) == 0
    finally:
        daemon.kill()
        daemon.wait(60)
