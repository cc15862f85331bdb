"""The hook that wakes the daemon, as prolog and epilog of nodes and controller: it delivers, and it never does harm."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import pytest
from certificates import self_signed
from hooks_build import HOOKS
from own_sandbox import OwnSandbox
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.protocol.api.client import Client

HOOK_KINDS = ("PrologSlurmctld", "EpilogSlurmctld", "Prolog", "Epilog")
USER = "games"


class Ear:
    """Where a daemon would hear its hooks: counts what comes."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self._socket.setblocking(False)
        self.port = self._socket.getsockname()[1]
        self.heard = 0

    def count(self) -> int:
        """Datagrams until now."""
        with contextlib.suppress(BlockingIOError):
            while self._socket.recv(100):
                self.heard += 1
        return self.heard

    def close(self) -> None:
        """Nobody listens any more."""
        self._socket.close()


class Hooked:
    """A private Slurm whose four hooks are ours, and the file that tells them where the daemon is."""

    def __init__(self, sandbox: Sandbox, config: Path) -> None:
        self.sandbox, self.config, self.folder = sandbox, config, config.parent

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
    run = shlex.join([*without_names(folder), f"{HOOKS}/notify"])
    hook.write_text(f"#!/bin/bash\nexport PATH=/usr/bin:/bin SELASTIC_CLIENT_CONF={config}\nexec {run}\n")
    hook.chmod(0o755)
    extra = tuple(f"{kind}={hook}" for kind in HOOK_KINDS)
    with OwnSandbox.up(SandboxSpec(nodes=2, with_accounting=False, extra_slurm_conf=extra)) as sandbox:
        yield Hooked(sandbox, config)
    shutil.rmtree(folder)


@pytest.fixture
def ear() -> Iterator[Ear]:
    """Somebody listens."""
    with contextlib.closing(Ear()) as listener:
        yield listener


@contextlib.contextmanager
def silent_names(folder: Path) -> Iterator[socket.socket]:
    """While this is open, what runs after `without_names` has a name server that never says a word: this socket.
    Skips where no process may have mounts of its own."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False, timeout=60).returncode != 0:
        pytest.skip("no mount namespace can be made here")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.77", 53))
        server.settimeout(60)
        (folder / "resolv.conf").write_text("nameserver 127.0.0.77\n")
        yield server
        (folder / "resolv.conf").unlink()


def without_names(folder: Path) -> list[str]:
    """Put before a command: its /etc/resolv.conf is the folder's, if there is one."""
    inside = 'mount --bind "$0/resolv.conf" /etc/resolv.conf; exec "$@"'
    script = f'if [ -e "$0/resolv.conf" ]; then exec unshare --mount sh -c \'{inside}\' "$0" "$@"; fi; exec "$@"'
    return ["sh", "-c", script, str(folder)]


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


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_the_daemon_is_told_at_start_and_end(hooked: Hooked, ear: Ear, scheme: str) -> None:
    """From controller and nodes, at start and at end: one job of two nodes is told of six times, with TLS too."""
    hooked.point_to(f"{scheme}://127.0.0.1:{ear.port}")
    hooked.run_job()
    wait_until(lambda: ear.count() >= 6, 60, ear.count)
    wait_until(lambda: not leftovers(), 60, leftovers)
    assert ear.count() == 6


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1",
        "http://no-such-host.invalid:6850",
        "http://127.0.0.1:99999",
        "https://[::1]:1",
        "nonsense\"'`$(exit 1)",
        "",
    ],
)
def test_a_daemon_that_is_not_there_costs_nothing(hooked: Hooked, url: str) -> None:
    """Daemon down, name unknown, address nonsense: jobs run, and no node is drained."""
    hooked.point_to(url)
    assert hooked.run_job() < 20
    wait_until(lambda: not leftovers(), 60, leftovers)


def test_a_name_server_that_hangs_costs_nothing(hooked: Hooked) -> None:
    """A daemon's name that nobody answers for delays no job, and the delivery gives up by itself."""
    with silent_names(hooked.folder):
        hooked.point_to("https://head.cluster:6850")
        assert hooked.run_job() < 20
        wait_until(lambda: not leftovers(), 60, leftovers)


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
    wait_until(lambda: not leftovers(), 60, leftovers)


def test_the_hook_returns_at_once_with_status_0(tmp_path: Path) -> None:
    """Slurm waits for its hooks: ours is back within a moment even while its message hangs, and writes nothing."""
    config = tmp_path / "client.json"
    config.write_text(json.dumps({"url": "http://head.cluster:6850"}))
    took = []
    with silent_names(tmp_path) as names:
        for _ in range(5):  # a machine that is busy delays some; a hook that waits is never back before its limit, 1 s
            start = time.monotonic()
            # Slurm reads the hook's output to its end: what stays behind must not hold it open.
            done = subprocess.run(
                [*without_names(tmp_path), HOOKS / "notify"],
                env={"SELASTIC_CLIENT_CONF": str(config), "PATH": "/usr/bin:/bin"},
                capture_output=True,
                timeout=60,
                check=False,
            )
            took.append(time.monotonic() - start)
            assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
            assert names.recv(512), "it was delivering: it has asked for the name"
    assert min(took) < 0.9, "it waited for the delivery"
    for broken in ({}, {"SELASTIC_CLIENT_CONF": ""}, {"PATH": "/nowhere"}):
        assert subprocess.run([HOOKS / "notify"], env=broken, timeout=10, check=False).returncode == 0


def test_the_hook_runs_no_slurm_command() -> None:
    """A Slurm command in a prolog is a deadlock waiting for a busy day."""
    text = (HOOKS / "notify").read_text()
    code = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    assert not re.search(r"\b(s(batch|run|alloc|control|queue|info|acct|cancel|diag)|scontrol)\b", code)
    assert os.access(HOOKS / "notify", os.X_OK)


def test_a_daemon_with_tls_acts_when_a_job_starts_and_ends(hooked: Hooked, tmp_path: Path) -> None:
    """A real selasticd that would look again in an hour looks at once, twice at least: at the start and at the end."""
    cert, key = self_signed(tmp_path)
    config = tmp_path / "selasticd.toml"
    config.write_text(
        f'mode = "observe"\nlisten = "localhost:0"\nround_interval_s = 3600\nmin_round_gap_s = 0.05\n'
        f'tls_cert = "{cert}"\ntls_key = "{key}"\ntls_ca = "{cert}"\n'
        f'state_dir = "{tmp_path}"\nslurm_conf = "{hooked.sandbox.env["SLURM_CONF"]}"\n'
    )
    with (tmp_path / "log").open("w") as log:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "slurm_elastic.daemon.selasticd.main", "--config", config], stderr=log, cwd="/"
        )
    said = tmp_path / "client.json"
    try:
        wait_until(said.exists, 60, (tmp_path / "log").read_text)
        hooked.config.write_text(said.read_text())
        client = Client()

        def rounds() -> int:
            return int((client.get("/v1/health", token="none") or {})["rounds"])

        with mock.patch.dict(os.environ, SELASTIC_CLIENT_CONF=str(said)):
            assert client.url.startswith("https://")
            wait_until(lambda: rounds() == 1, 60, (tmp_path / "log").read_text)
            hooked.run_job()
            wait_until(lambda: rounds() >= 3, 60, rounds)
        daemon.terminate()
        assert daemon.wait(60) == 0
    finally:
        daemon.kill()
        daemon.wait(60)
