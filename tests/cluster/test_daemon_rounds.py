"""selasticd as a process of its own on a real Slurm: grow, give way, shrink, release, end, die and come back.

Supervisors are stubs that speak the real protocol and submit real companions (stub_supervisor.py); jobs belong to
another user than the daemon.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import cancel_all
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.daemon.slurm import CommandClient, Job
from slurm_elastic.trainer_shim.client import Client
from slurm_elastic.trainer_shim.errors import DaemonUnreachable

ROOT = Path(__file__).parents[2]
STUB = Path(__file__).with_name("stub_supervisor.py")
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
"""One that other users may run: the tests' own may lie in root's home."""
USER, OTHER = "games", "nobody"
REQUEST = "elastic:gpus=4-12,step=4,batch=240-3840"
SETTINGS = """
mode = "act"
listen = "127.0.0.1:{port}"
state_dir = "{state}"
slurm_conf = "{slurm_conf}"
round_interval_s = 0.5
min_round_gap_s = 0.05
cooldown_grow_s = 1.0
cooldown_shrink_s = 0.5
min_gain = 0.01
assumed_pause_s = 0.05
companion_wait_s = 20.0
failed_backoff_s = 2.0
report_interval_s = 0.2
requests_per_s = 1000.0
"""


class Selasticd:
    """The daemon, and a clusterful of stubs."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox, self.folder = sandbox, folder
        self.state = folder / "state"
        self.state.mkdir()
        self.stubs = folder / "stubs"
        self.stubs.mkdir()
        self.stubs.chmod(0o777)
        self.slurm = CommandClient(sandbox.env["SLURM_CONF"])
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.options: list[str] = []

    def start(self) -> None:
        """Start it (again, at the same address), and wait until it answers."""
        config = self.folder / "selasticd.toml"
        values = {"port": self.port, "state": self.state, "slurm_conf": self.sandbox.env["SLURM_CONF"]}
        config.write_text(SETTINGS.format(**values))
        log = (self.folder / "selasticd.log").open("ab")
        command = [sys.executable, "-m", "slurm_elastic.daemon.service", "--config", str(config), *self.options]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "packaging/namespace")}
        with log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd="/")
        wait_until(self.answers, 30, self.log)
        self.port = int(self.client().url.rpartition(":")[2])

    def answers(self) -> bool:
        assert self.process is not None and self.process.poll() is None, self.log()
        try:
            return self.client().get("/v1/health", token="none") is not None
        except DaemonUnreachable:
            return False

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send a signal, and wait for the end."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def client(self) -> Client:
        """Finds the daemon, and with --user the secret, in client.json; the fixture names it."""
        if not (self.state / "client.json").exists():
            raise DaemonUnreachable("no client.json yet")
        return Client()

    def log(self) -> str:
        logs = [self.folder / "selasticd.log", *sorted(self.stubs.glob("*.log")), *sorted(self.stubs.glob("*.out"))]
        queue = self.sandbox.run(["squeue", "-o", "%i %T %D %N %b %j %r %k"]).stdout
        return "\n".join(f"--- {path.name}\n{path.read_text()[-4000:]}" for path in logs if path.exists()) + queue

    def submit(self, *options: str, hold: str = "", comment: str = REQUEST, user: str | None = USER) -> int:
        """An elastic job, whose first component carries the request."""
        exports = {
            "PYTHONPATH": str(ROOT / "packaging/namespace"),
            "SELASTIC_CLIENT_CONF": str(self.state / "client.json"),
            "HOME": "/tmp",
        }
        lines = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in exports.items())
        script = self.stubs / f"job{len(list(self.stubs.iterdir()))}.sh"
        run = shlex.join([PYTHON, str(STUB), str(self.stubs), hold])
        script.write_text(f"#!/bin/bash\n{lines}\nexec {run}\n")
        script.chmod(0o755)
        first, *others = " ".join(options).split(" : ")
        words = ["--time=30", f"--comment={comment}", *shlex.split(first)]
        for other in others:
            words += [":", "--time=30", *shlex.split(other)]
        command = ["sbatch", "--parsable", f"--output={self.stubs}/%j.out", *words, str(script)]
        answer = self.sandbox.run(command, user=user)
        assert answer.returncode == 0, answer.stderr
        return int(answer.stdout.split(";")[0])

    def rigid(self, nodes: int) -> int:
        """An ordinary job of OTHER."""
        command = ["sbatch", "--parsable", "--output=/dev/null", f"-N{nodes}", "--gres=gpu:a100:4", "--time=10"]
        answer = self.sandbox.run([*command, "--wrap", "sleep 600"], user=OTHER)
        assert answer.returncode == 0, answer.stderr
        return int(answer.stdout)

    def jobs(self) -> dict[int, Job]:
        return dict(self.slurm.snapshot().jobs)

    def companions(self) -> list[Job]:
        return [job for job in self.jobs().values() if job.name.startswith("selastic-")]

    def trains_on(self, job_id: int) -> int:
        """GPUs that the daemon knows the job to train on; 0 while it does not know."""
        try:
            row: dict[str, Any] = self.client().get(f"/v1/jobs/{job_id}") or {}
        except Exception:
            return 0
        return int(row.get("gpus") or 0)

    def held(self, job_id: int) -> int:
        """GPUs that Slurm holds for the job, all its pieces together."""
        return sum(
            job.gpus
            for job in self.jobs().values()
            if job.running and (job_id in (job.job_id, job.het_job_id) or job.name == f"selastic-{job_id}")
        )

    def settles_at(self, job_id: int, gpus: int, timeout: float = 40) -> None:
        """The daemon, the supervisor and Slurm agree on this size."""
        wait_until(lambda: self.trains_on(job_id) == self.held(job_id) == gpus, timeout, self.log)

    def finish(self, job_id: int) -> None:
        """Let the stub's training be over."""
        (self.stubs / f"{job_id}.end").touch()

    def events(self, job_id: int) -> list[str]:
        answer = self.client().get(f"/v1/jobs/{job_id}/events") or {"events": []}
        return [event["kind"] for event in answer["events"]]


Starter = Callable[[], Selasticd]


@pytest.fixture
def selasticd(empty_sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selasticd]:
    """A running daemon on an empty cluster."""
    # The client looks there for MUNGE's socket.
    monkeypatch.setenv("SLURM_CONF", empty_sandbox.env["SLURM_CONF"])
    # Not pytest's own directory: other users' jobs have to read what lies here.
    with tempfile.TemporaryDirectory(prefix="selasticd-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        daemon = Selasticd(empty_sandbox, folder)
        monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(daemon.state / "client.json"))
        daemon.start()
        try:
            yield daemon
            if daemon.process is not None and daemon.process.poll() is None:
                assert daemon.kill(signal.SIGTERM) == 0, daemon.log()
        finally:
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.kill()
            cancel_all(empty_sandbox)


def test_grow_give_way_take_back_and_end(selasticd: Selasticd) -> None:
    """The story: a job grows by a companion, gives way to a rigid job, takes it back, and ends leaving nothing."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4")
    selasticd.settles_at(job, 12)
    assert selasticd.companions()[0].user == USER
    rigid = selasticd.rigid(7)
    wait_until(lambda: selasticd.jobs()[rigid].running, 30, selasticd.log)
    selasticd.settles_at(job, 4)
    selasticd.sandbox.run(["scancel", str(rigid)])
    selasticd.settles_at(job, 12)
    selasticd.finish(job)
    wait_until(lambda: job not in selasticd.jobs() and not selasticd.companions(), 30, selasticd.log)
    wait_until(lambda: "ended" in selasticd.events(job), 30, selasticd.log)
    explained = selasticd.client().get(f"/v1/jobs/{job}/explain")
    assert explained is not None


def test_a_base_is_shrunk_in_place_for_a_rigid_job(selasticd: Selasticd) -> None:
    """No companion to give: the base itself gives up its second node, and keeps its batch host."""
    job = selasticd.submit("-N2", "--gres=gpu:a100:4", comment="elastic:gpus=4-8,step=4,batch=240-3840")
    selasticd.settles_at(job, 8)
    host = selasticd.jobs()[job].batch_host
    rigid = selasticd.rigid(7)
    wait_until(lambda: selasticd.jobs()[rigid].running, 30, selasticd.log)
    base = selasticd.jobs()[job]
    assert base.running and base.nodes == (host,)


def test_a_heterogeneous_component_is_released(selasticd: Selasticd) -> None:
    """A component is cancelled by its own id; the base and its script run on."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", ":", "-N1", "--gres=gpu:a100:4", comment=REQUEST)
    wait_until(lambda: selasticd.held(job) >= 8, 60, selasticd.log)
    rigid = selasticd.rigid(7)
    wait_until(lambda: selasticd.jobs()[rigid].running, 60, selasticd.log)
    selasticd.settles_at(job, 4)
    assert selasticd.jobs()[job].running


def test_two_elastic_jobs_share(selasticd: Selasticd) -> None:
    """An elastic job that waits for its starting size is let in by one that has more than its minimum."""
    first = selasticd.submit("-N1", "--gres=gpu:a100:4", comment="elastic:gpus=4-32,step=4,batch=240-3840")
    selasticd.settles_at(first, 32, 90)
    second = selasticd.submit("-N2", "--gres=gpu:a100:4", comment="elastic:gpus=8-12,step=4,batch=240-3840")
    wait_until(lambda: selasticd.trains_on(second) >= 8, 40, selasticd.log)
    assert 4 <= selasticd.held(first) <= 24


def test_a_dead_base_takes_its_companions_with_it(selasticd: Selasticd) -> None:
    """The base is killed with its supervisor, and nobody but the daemon is left to clean up."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4")
    selasticd.settles_at(job, 12)
    selasticd.sandbox.run(["scancel", "--signal=KILL", "--full", str(job)])
    wait_until(lambda: job not in selasticd.jobs() and not selasticd.companions(), 30, selasticd.log)


@pytest.mark.parametrize("stage", ["accepted", "granted", "ready"])
def test_a_killed_daemon_goes_on_where_it_was(selasticd: Selasticd, stage: str) -> None:
    """SIGKILL in the middle of a resize, the resize goes on without it, and the next daemon ends at the same size."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", hold=stage)
    log = selasticd.stubs / f"{job}.log"
    wait_until(lambda: log.exists() and f"holds at {stage}" in log.read_text(), 30, selasticd.log)
    selasticd.kill()
    (selasticd.stubs / f"{job}.go").touch()
    wait_until(lambda: "running 12" in log.read_text(), 30, selasticd.log)
    selasticd.start()
    selasticd.settles_at(job, 12)
    wait_until(lambda: "resize_done" in selasticd.events(job), 30, selasticd.log)
    assert log.read_text().count("running") == 1


def test_a_daemon_killed_during_a_release_finishes_it(selasticd: Selasticd) -> None:
    """What the switch gave up is released by the daemon that comes next."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", hold="ready")
    log = selasticd.stubs / f"{job}.log"
    go = selasticd.stubs / f"{job}.go"
    wait_until(lambda: log.exists() and "holds at ready" in log.read_text(), 30, selasticd.log)
    go.touch()
    selasticd.settles_at(job, 12)
    go.unlink()
    rigid = selasticd.rigid(7)
    wait_until(lambda: log.read_text().count("holds at ready") == 2, 30, selasticd.log)
    selasticd.kill()
    go.touch()
    wait_until(lambda: log.read_text().count("running") == 2, 30, selasticd.log)
    assert not selasticd.jobs()[rigid].running
    selasticd.start()
    wait_until(lambda: selasticd.jobs()[rigid].running, 30, selasticd.log)
    selasticd.settles_at(job, 4)


def test_malformed_requests_are_told_to_the_supervisor(selasticd: Selasticd) -> None:
    """The job runs on as an ordinary one, and its log has the sentence."""
    job = selasticd.submit("-N1", "--gres=gpu:a100:4", comment="elastic:gpus=8-4,batch=240")
    log = selasticd.stubs / f"{job}.log"
    wait_until(lambda: log.exists() and "managed=False" in log.read_text(), 30, selasticd.log)
    assert "minimum above its maximum" in log.read_text()
    wait_until(lambda: "not_managed" in selasticd.events(job), 30, selasticd.log)
    assert selasticd.jobs()[job].running and not selasticd.companions()


def test_check_says_that_all_is_well(selasticd: Selasticd) -> None:
    """`selasticd --check` tries settings, database, munge and Slurm."""
    command = [sys.executable, "-m", "slurm_elastic.daemon.service", "--check"]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "packaging/namespace")}
    config = str(selasticd.folder / "selasticd.toml")
    answer = subprocess.run([*command, "--config", config], capture_output=True, text=True, env=env, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    assert "8 nodes, 32 GPUs" in answer.stdout and "all is well" in answer.stdout


def test_a_users_own_daemon_manages_only_their_jobs(selasticd: Selasticd) -> None:
    """`selasticd --user`: another user's elastic job is an ordinary one, and comes first when it waits."""
    assert selasticd.kill(signal.SIGTERM) == 0
    selasticd.options = ["--user"]
    selasticd.start()
    mine = selasticd.submit("-N1", "--gres=gpu:a100:4", user=None)
    selasticd.settles_at(mine, 12)
    command = ["sbatch", "--parsable", "--output=/dev/null", "-N7", "--gres=gpu:a100:4", "--time=10"]
    comment = "--comment=elastic:gpus=4-32,step=4,batch=240"
    answer = selasticd.sandbox.run([*command, comment, "--wrap", "sleep 600"], user=USER)
    theirs = int(answer.stdout)
    wait_until(lambda: selasticd.jobs()[theirs].running, 30, selasticd.log)
    selasticd.settles_at(mine, 4)
    listed = selasticd.client().get("/v1/jobs") or {"jobs": []}
    assert [row["job_id"] for row in listed["jobs"]] == [mine]
