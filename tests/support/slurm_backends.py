"""The ways to a Slurm that one contract holds for: its commands, and the in-memory fake."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import pytest
from fake_slurm import Component, FakeSlurm
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.daemon.slurm import CommandClient, SlurmClient, Snapshot


class Cluster(Protocol):
    """Eight nodes n1..n8 with 4 a100 each, no jobs."""

    real: bool

    def client(self, user: str = "root") -> SlurmClient: ...
    def submit(
        self, *components: Component, user: str = "root", name: str = "job", comment: str = "", batch: bool = True
    ) -> int: ...
    def stop(self) -> None: ...
    def start(self) -> None: ...
    def drain(self, node: str, drained: bool) -> None: ...


def as_user(user: str) -> tuple[str, ...]:
    """The words before a command that run it as this user."""
    return () if user == "root" else ("setpriv", f"--reuid={user}", "--clear-groups", "--")


class RealCluster:
    """The private Slurm of the session."""

    real = True

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox

    def client(self, user: str = "root") -> SlurmClient:
        return CommandClient(self.sandbox.env["SLURM_CONF"], prefix=as_user(user))

    def submit(
        self, *components: Component, user: str = "root", name: str = "job", comment: str = "", batch: bool = True
    ) -> int:
        parts = []
        for asked in components:
            part = ["-N", str(asked.nodes), "--ntasks-per-node=1", f"--job-name={name}", f"--comment={comment}"]
            part += [f"--gres=gpu:{asked.gpus_per_node}"] if asked.gpus_per_node else []
            part += [f"--nodelist={','.join(asked.node_list)}"] if asked.node_list else []
            parts += [":", *part] if parts else part
        if batch:
            command = ["sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 900", *parts]
        else:
            command = ["salloc", "--no-shell", *parts]
        answer = self.sandbox.run(command, user=None if user == "root" else user)
        assert answer.returncode == 0, answer.stderr
        return int(
            answer.stdout.split(";")[0] if batch else answer.stderr.split("Granted job allocation ")[1].split()[0]
        )

    def stop(self) -> None:
        self.sandbox.daemons.stop("slurmctld")

    def start(self) -> None:
        self.sandbox.start_daemon("slurmctld")

    def drain(self, node: str, drained: bool) -> None:
        what = ["state=drain", "reason=test"] if drained else ["state=resume"]
        assert self.sandbox.run(["scontrol", "update", f"nodename={node}", *what]).returncode == 0


class FakeCluster:
    """The fake, as it is shipped."""

    real = False

    def __init__(self) -> None:
        self.slurm = FakeSlurm(nodes=8, gpus_per_node=4, now=time.time())

    def client(self, user: str = "root") -> SlurmClient:
        return self.slurm.client(user)

    def submit(self, *components: Component, **fields: Any) -> int:
        return self.slurm.submit(*components, **fields)

    def stop(self) -> None:
        self.slurm.reachable = False

    def start(self) -> None:
        self.slurm.reachable = True

    def drain(self, node: str, drained: bool) -> None:
        self.slurm.set_node_state(node, *(["IDLE", "DRAIN"] if drained else []))


@pytest.fixture(params=["real", "fake"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """Both implementations, one after the other."""
    return FakeCluster() if request.param == "fake" else RealCluster(request.getfixturevalue("empty_sandbox"))


def seen(client: SlurmClient, condition: Callable[[Snapshot], Any], what: str = "") -> Snapshot:
    """The first snapshot for which the condition holds."""

    def look() -> Snapshot | None:
        snapshot = client.snapshot()
        return snapshot if condition(snapshot) else None

    found = wait_until(look, 40, lambda: f"{what} {client.snapshot()}")
    assert found is not None
    return found


def running(client: SlurmClient, *job_ids: int) -> Snapshot:
    """The first snapshot in which all these jobs run."""
    return seen(client, lambda s: all(j in s.jobs and s.jobs[j].running for j in job_ids), f"{job_ids} run")


def gone(snapshot: Snapshot, job_id: int) -> bool:
    """Not listed, or only its processes are still being ended."""
    return job_id not in snapshot.jobs or snapshot.jobs[job_id].state == "COMPLETING"
