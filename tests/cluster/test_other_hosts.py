"""A user's own daemon and callers on another host: a network of its own, where Slurm says that a node is.

Limit: files and users are those of one machine, and nothing runs on that node; what is tried is who reaches the daemon.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from live_daemon import ROOT, live_daemon

from slurm_elastic.daemon.sandbox import Sandbox

HERE, THERE = "10.211.7.1", "10.211.7.2"
NODE, NETWORK = "n8", "selastic-host2"
INSIDE = ["nsenter", f"--net=/run/netns/{NETWORK}"]


def sh(*command: str) -> None:
    """Run a command to its good end."""
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@contextmanager
def second_network() -> Iterator[None]:
    """A network that reaches this one by one cable, and has a loopback of its own. Skips where none can be made."""
    try:
        sh("ip", "netns", "add", NETWORK)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no network namespace can be made here: {error}")
    try:
        sh("ip", "link", "add", "selastic0", "type", "veth", "peer", "name", "selastic1", "netns", NETWORK)
        for prefix, device, address in (([], "selastic0", HERE), (INSIDE, "selastic1", THERE)):
            sh(*prefix, "ip", "addr", "add", f"{address}/30", "dev", device)
            sh(*prefix, "ip", "link", "set", device, "up")
        sh(*INSIDE, "ip", "link", "set", "lo", "up")
        yield
    finally:
        sh("ip", "netns", "del", NETWORK)


@pytest.fixture
def far(empty_sandbox: Sandbox) -> Iterator[Sandbox]:
    """The private Slurm, which takes its last node to be on another host."""
    with second_network():
        empty_sandbox.run(["scontrol", "update", f"NodeName={NODE}", f"NodeAddr={THERE}"])
        try:
            yield empty_sandbox
        finally:
            empty_sandbox.run(["scontrol", "update", f"NodeName={NODE}", "NodeAddr=127.0.0.1"])


def test_a_users_daemon_is_reached_from_other_hosts(far: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """`selasticd --user` listens where compute nodes reach it, without being told: `selastic` on such a host finds it
    by client.json and is known by the secret there."""
    with live_daemon(far, monkeypatch, host="auto", options=("--user",)) as selasticd:
        assert selasticd.client().url == f"http://{HERE}:{selasticd.port}"
        job = selasticd.submit("-N1", "--gres=gpu:a100:4", user=None)
        selasticd.settles_at(job, 12, 120)
        command = [*INSIDE, sys.executable, "-m", "slurm_elastic.client.main", "status", "-n", "-o", "jobid,gpus"]
        env = {
            "PYTHONPATH": str(ROOT / "packaging/namespace"),
            "PATH": "/usr/bin:/bin",
            "SELASTIC_CLIENT_CONF": str(selasticd.state / "client.json"),
        }
        there = subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=60)
        assert there.stdout.split() == [str(job), "12"], there.stderr
        selasticd.finish(job)
