"""Where selasticd's log goes may go away: rotated, full, or with nobody left to read it. It serves on all the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from waiting import wait_until

SETTINGS = """
mode = "review"
listen = "127.0.0.1:0"
state_dir = "{state}"
slurm_conf = "{slurm_conf}"
round_interval_s = 1
"""


@contextmanager
def selasticd(folder: Path, log: IO[Any] | int) -> Iterator[subprocess.Popen[bytes]]:
    """A daemon of one's own that finds no Slurm, logging to `log`; stopped as systemd does it."""
    config, state, slurm_conf = folder / "selasticd.toml", folder / "state", folder / "slurm.conf"
    slurm_conf.touch()  # an empty one is refused at once; for one that is not there Slurm's commands wait a minute
    config.write_text(SETTINGS.format(state=state, slurm_conf=slurm_conf))
    command = [sys.executable, "-m", "slurm_elastic.daemon.selasticd.main", "--user", "--config", str(config)]
    process = subprocess.Popen(command, stderr=log, stdout=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or (state / "client.json").exists(), 120, "the daemon's address")
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0


def health(folder: Path) -> dict[str, Any]:
    """What the daemon answers."""
    url = json.loads((folder / "state" / "client.json").read_text())["url"]
    with urllib.request.urlopen(f"{url}/v1/health", timeout=60) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def fails_on(folder: Path) -> None:
    """It answers, goes on with its rounds, and says that they come to nothing."""
    wait_until(lambda: health(folder)["trouble"], 120, "a round without Slurm")
    assert health(folder)["status"] == "ok"


def test_a_log_that_is_cut_off_is_written_on(tmp_path: Path) -> None:
    """logrotate's copytruncate on a file that was opened for appending: what comes after is at its beginning."""
    path = tmp_path / "log"
    with path.open("ab") as log, selasticd(tmp_path, log):
        fails_on(tmp_path)
        wait_until(lambda: b"Slurm could not be observed" in path.read_bytes(), 60, "the first lines")
        path.write_bytes(b"")
    said = path.read_bytes()
    assert b"selasticd has stopped" in said and b"\0" not in said and b"holds the lease" not in said


def test_a_log_on_a_full_disk_stops_nothing(tmp_path: Path) -> None:
    """Every line is refused with ENOSPC: requests are answered, and the end is a clean one."""
    with open("/dev/full", "wb", buffering=0) as log, selasticd(tmp_path, log):
        fails_on(tmp_path)


def test_a_log_that_nobody_reads_any_more_stops_nothing(tmp_path: Path) -> None:
    """As when journald is restarted: every line is a broken pipe."""
    read, write = os.pipe()
    with open(write, "wb", buffering=0) as log:
        os.close(read)
        with selasticd(tmp_path, log):
            fails_on(tmp_path)
