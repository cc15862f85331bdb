"""Another user on another host attacks a training that is resized, and then the port of the daemon that resizes it."""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stranger
from live_daemon import OTHER, PYTHON, live_daemon
from sandbox_of_hosts.names import HEAD, address
from sandbox_of_hosts.sandbox import HostsSandbox
from training_job import Start
from waiting import wait_until

from slurm_elastic.daemon.sandbox.lifecycle import becoming

MOST_KB = 100_000
"""Of memory that rank 0 may take while it is attacked; what the stranger sends would be a thousand times as much."""


class Stranger:
    """A process of a user who has no job, on this host."""

    def __init__(self, hosts: HostsSandbox, host: str) -> None:
        self.folder = hosts.home / f"stranger-{host}"
        self.folder.mkdir()
        self.folder.chmod(0o777)
        program = shutil.copy(stranger.__file__, self.folder)
        command = [*becoming(OTHER), PYTHON, program, str(self.folder)]
        self.process = subprocess.Popen(hosts.daemons.on_host(host, command), env={"PATH": "/usr/bin:/bin"}, cwd="/")

    def tell(self, name: str, line: str) -> None:
        with (self.folder / name).open("a") as file:
            file.write(f"{line}\n")

    def did(self) -> dict[str, Any]:
        assert self.process.poll() is None
        with contextlib.suppress(OSError):
            found: dict[str, Any] = json.loads((self.folder / "did").read_text())
            return found
        return {}

    def end(self) -> None:
        (self.folder / "end").touch()
        self.process.wait(30)


@contextlib.contextmanager
def told_of_ports(hosts: HostsSandbox, by: Stranger, *nodes: str) -> Iterator[None]:
    """The stranger hears at once of every port on which something begins to listen there, as a scan might find it, but
    for those of Slurm's own commands: srun of 22.05 ends its step when somebody else speaks to it."""
    over = threading.Event()
    known = {node: set(_listening(hosts, node)) for node in nodes}

    def watch() -> None:
        while not over.wait(0.002):
            for node in nodes:
                for port, inode in _listening(hosts, node).items():
                    if port not in known[node]:
                        known[node].add(port)
                        if inode not in _slurms_sockets():
                            by.tell("ports", f"{address(node)} {port}")

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _slurms_sockets() -> set[str]:
    """Inodes of the sockets of srun and salloc, wherever they run."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (process / "comm").read_text().strip() in ("srun", "salloc"):
                found |= {str(entry.readlink()).strip("socket:[]") for entry in (process / "fd").iterdir()}
    return found


def _listening(hosts: HostsSandbox, node: str) -> dict[int, str]:
    """Ports on which that host listens, but for those of the loopback alone, each with its socket's inode."""
    found = {}
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/{hosts.daemons.pid(f'host-{node}')}/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, _, _, _, _, _, inode, *_ = line.split()
            where, _, port = local.rpartition(":")
            if state == "0A" and not where.endswith("0100007F"):
                found[int(port, 16)] = inode
    return found


def test_a_stranger_on_another_host_neither_stops_nor_feeds_a_training(
    hosts: HostsSandbox, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever listens is filled, lied to and held by idle connections while worlds form: they form, rank 0 takes no
    more memory, and the job says from where. Then the stranger is selasticd while that is stopped: no order of theirs
    is taken, and nothing that they heard is worth anything to the daemon afterwards."""
    if hosts.spec.hosts != "full":
        pytest.skip("once is enough")
    monkeypatch.setattr(tempfile, "tempdir", str(hosts.home))  # a folder that all hosts see
    with live_daemon(hosts, monkeypatch, host=address(HEAD)) as selasticd, contextlib.ExitStack() as ends:
        outside, inside = Stranger(hosts, "n3"), Stranger(hosts, HEAD)
        ends.callback(outside.end)
        ends.callback(inside.end)
        ends.enter_context(told_of_ports(hosts, outside, "n1", "n2"))
        options = "-N1 -w n1 --exclude=n3 --gres=gpu:2 --time=30 --comment=elastic:gpus=2-4,batch=16-16"
        job = start(options, alone=True, env=selasticd.found)

        def story() -> str:
            return f"{outside.did()} {inside.did()}\n{selasticd.log()}{job.text()}"

        def comes_to(size: int) -> None:
            assert selasticd.selastic("pin", str(job.id), str(size)).returncode == 0
            wait_until(lambda: selasticd.trains_on(job.id) == size, 120, story)

        wait_until(lambda: selasticd.trains_on(job.id) == 2 and job.trained() > 3, 120, story)
        rank_0, *_ = sorted(job.worker_pids(job.id))
        before = _resident_kb(rank_0)
        for size in (4, 2, 4):
            comes_to(size)
        wait_until(lambda: outside.did()["idle"] >= stranger.IDLE_A_PORT, 60, story)
        job.says(f"somebody at {address('n3')} calls without this job's key")
        assert _resident_kb(rank_0) - before < MOST_KB, story()
        assert outside.did()["most"] < stranger.MOST, story()

        selasticd.kill()
        steps = job.trained()
        inside.tell("take", str(selasticd.port))
        wait_until(
            lambda: any("POST" in one for one in inside.did()["heard"]) and len(inside.did()["heard"]) > 3, 60, story
        )
        wait_until(lambda: job.trained() > steps + 3, 60, story)
        (inside.folder / "take").unlink()
        wait_until((inside.folder / "heard").exists, 30, story)
        selasticd.start()
        shutil.copy(inside.folder / "heard", outside.folder)
        outside.tell("replay", f"{address(HEAD)} {selasticd.port}")
        wait_until(lambda: len(outside.did()["answers"]) == len(inside.did()["heard"]), 60, story)
        assert {status for *_, status in outside.did()["answers"]} <= {401, 403}, story()
        comes_to(2)
        job.finish()
    assert "starting again" not in job.text()


def _resident_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
