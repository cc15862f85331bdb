"""The hook that wakes the daemon, as prolog and epilog of nodes and controller: it delivers, and it never does harm."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hooks_build import HOOKS
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec

HOOK_KINDS = ("PrologSlurmctld", "EpilogSlurmctld", "Prolog", "Epilog")
USER = "games"


class Wakes(ThreadingHTTPServer):
    """A daemon that counts how often it was woken."""

    def __init__(self) -> None:
        self.seen: list[str] = []
        super().__init__(("127.0.0.1", 0), Waker)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Waker(BaseHTTPRequestHandler):
    """Answers 202 to every POST."""

    server: Wakes

    def do_POST(self) -> None:
        self.server.seen.append(f"{self.path} {self.headers['Content-Length']}")
        self.send_response(202)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


class Hooked:
    """A private Slurm whose four hooks are ours, and the file that tells them where the daemon is."""

    def __init__(self, sandbox: Sandbox, config: Path) -> None:
        self.sandbox, self.config = sandbox, config

    def point_to(self, url: str) -> None:
        """Change the daemon's address; the hooks read it each time."""
        self.config.write_text(json.dumps({"url": url}, indent=2))

    def run_job(self) -> float:
        """Run a job of two nodes to its end; seconds it took. It must complete, and its nodes must stay usable."""
        start = time.monotonic()
        command = ["sbatch", "-W", "-N2", "-o", "/dev/null", "--wrap", "srun true"]
        answer = self.sandbox.run(command, user=USER)
        assert answer.returncode == 0, answer.stderr
        wait_until(lambda: set(self.sandbox.status().nodes.values()) == {"idle"}, 30, self.states)
        assert self.sandbox.run(["sinfo", "-h", "-R"]).stdout == ""
        return time.monotonic() - start

    def states(self) -> str:
        """What Slurm says of its nodes."""
        return self.sandbox.run(["sinfo", "-N", "-R"]).stdout


@pytest.fixture(scope="module")
def hooked(can_run_slurm: None) -> Iterator[Hooked]:
    """Two nodes; every hook that Slurm has is the one we ship."""
    folder = Path(tempfile.mkdtemp(prefix="selastic-notify-"))
    folder.chmod(0o755)
    config = folder / "client.json"
    # Slurm gives its hooks a bare environment, so the place of the file is said in a script of the site.
    hook = folder / "hook"
    hook.write_text(f"#!/bin/bash\nSELASTIC_CLIENT_CONF={config} {HOOKS}/notify\n")
    hook.chmod(0o755)
    extra = tuple(f"{kind}={hook}" for kind in HOOK_KINDS)
    with Sandbox.up(SandboxSpec(nodes=2, with_accounting=False, extra_slurm_conf=extra)) as sandbox:
        yield Hooked(sandbox, config)
    shutil.rmtree(folder)


@pytest.fixture
def daemon() -> Iterator[Wakes]:
    """A daemon that listens."""
    with Wakes() as server:
        yield server
        server.shutdown()


def leftovers() -> list[str]:
    """Command lines of deliveries that are still under way."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = entry.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"{HOOKS}/notify deliver" in line:
            found.append(line)
    return found


def test_the_daemon_is_woken_at_start_and_end(hooked: Hooked, daemon: Wakes) -> None:
    """From controller and nodes, at start and at end: one job of two nodes wakes it six times."""
    hooked.point_to(f"http://127.0.0.1:{daemon.server_port}")
    hooked.run_job()
    wait_until(lambda: len(daemon.seen) >= 6, 10, lambda: daemon.seen)
    wait_until(lambda: not leftovers(), 10, leftovers)
    assert daemon.seen == ["/v1/wake 0"] * 6


def silent_port() -> tuple[socket.socket, int]:
    """A port that takes connections and never says a word."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, listener.getsockname()[1]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "http://no-such-host.invalid:6850",
        "http://127.0.0.1:99999",
        "https://127.0.0.1:1",
        "nonsense\"'`$(exit 1)",
        "",
    ],
)
def test_a_daemon_that_is_not_there_costs_nothing(hooked: Hooked, url: str) -> None:
    """Daemon down, name unknown, address nonsense: jobs run, and no node is drained."""
    hooked.point_to(url)
    assert hooked.run_job() < 20
    wait_until(lambda: not leftovers(), 10, leftovers)


def test_a_daemon_that_hangs_costs_nothing(hooked: Hooked) -> None:
    """A daemon that takes the connection and never answers delays no job, and the delivery gives up by itself."""
    listener, port = silent_port()
    with listener:
        hooked.point_to(f"http://127.0.0.1:{port}")
        assert hooked.run_job() < 20
        wait_until(lambda: not leftovers(), 10, leftovers)


def test_a_configuration_that_cannot_be_read_costs_nothing(hooked: Hooked) -> None:
    """Missing, a directory, endless, binary: the hook never looks at more than it needs."""
    for make in (
        lambda p: None,
        lambda p: p.mkdir(),
        lambda p: p.symlink_to("/dev/zero"),
        lambda p: p.write_bytes(b"\0\xff" * 4000),
    ):
        if hooked.config.is_dir() and not hooked.config.is_symlink():
            hooked.config.rmdir()
        hooked.config.unlink(missing_ok=True)
        make(hooked.config)
        hooked.run_job()
    hooked.config.unlink()
    wait_until(lambda: not leftovers(), 10, leftovers)


def test_the_hook_returns_at_once_with_status_0(tmp_path: Path) -> None:
    """Slurm waits for its hooks: ours is back within a moment even while its message hangs, and writes nothing."""
    listener, port = silent_port()
    config = tmp_path / "client.json"
    config.write_text(json.dumps({"url": f"http://127.0.0.1:{port}"}))
    with listener:
        start = time.monotonic()
        # Slurm reads the hook's output to its end: what stays behind must not hold it open.
        done = subprocess.run(
            [HOOKS / "notify"], env={"SELASTIC_CLIENT_CONF": str(config)}, capture_output=True, timeout=10, check=False
        )
        took = time.monotonic() - start
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert took < 0.9, "it waited for the delivery"
    for broken in ({}, {"SELASTIC_CLIENT_CONF": ""}, {"PATH": "/nowhere"}):
        assert subprocess.run([HOOKS / "notify"], env=broken, timeout=10, check=False).returncode == 0


def test_the_hook_runs_no_slurm_command() -> None:
    """A Slurm command in a prolog is a deadlock waiting for a busy day."""
    text = (HOOKS / "notify").read_text()
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert not re.search(r"\b(s(batch|run|alloc|control|queue|info|acct|cancel|diag)|scontrol)\b", code)
    assert os.access(HOOKS / "notify", os.X_OK)
