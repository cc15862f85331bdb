"""The end of each test with two controllers: the primary is in charge again, and the backup stands by."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import two_controllers
from two_controllers import Controllers

HANDS_OVER = "Performing RPC: REQUEST_CONTROL\n"
STANDS_BY = "slurmctld running in background mode\n"


class Hosts:
    """Of a sandbox what is asked of it: a process for the backup's slurmctld, and the log that it has written."""

    def __init__(self, folder: Path, said: str) -> None:
        self.dir, self.daemons = folder, self
        (folder / "log").mkdir()
        self.file = folder / "log" / "slurmctld.log"
        self.file.write_text(said)
        self.backup = subprocess.Popen(["sleep", "600"])
        self.started: list[str] = []

    def pid(self, name: str) -> int:
        return 1 if name != "slurmctld" else self.backup.pid if self.backup.poll() is None else 0

    def run(self, words: list[str]) -> Any:
        return SimpleNamespace(stdout="SlurmdStartTime=now")

    def start_daemon(self, name: str) -> None:
        self.started.append(name)
        if name == "slurmctld":
            self.file.write_text(self.file.read_text() + STANDS_BY)


@pytest.mark.parametrize(
    ("said", "restarts"),
    [(STANDS_BY, False), (STANDS_BY + HANDS_OVER + STANDS_BY, False), (STANDS_BY + HANDS_OVER, True)],
)
def test_a_backup_that_hangs_while_it_hands_over_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, restarts: bool
) -> None:
    """And no other: one that stands by is left alone."""
    monkeypatch.setattr(two_controllers, "STANDS_BY_S", 0.1)
    hosts: Any = Hosts(tmp_path, said)
    try:
        Controllers(hosts).restore()
        assert hosts.started == ["slurmctld-n3", *(["slurmctld"] if restarts else [])]
        assert (hosts.backup.poll() is not None) == restarts
    finally:
        hosts.backup.kill()
        hosts.backup.wait()
