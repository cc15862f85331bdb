"""A selasticd of the tests' own on the private Slurm, as a process, with stub supervisors that speak the real protocol.

Limit: jobs run stub_supervisor.py, which trains nothing; their throughput is made up.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from next_build import THIS, Build
from patience import Patience, slowness_now
from sandbox_jobs import cancel_all
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.daemon.slurm import CommandClient, Job
from slurm_elastic.protocol.api.client import Client
from slurm_elastic.protocol.errors import DaemonUnreachable

ROOT = Path(__file__).parents[2]
STUB = Path(__file__).with_name("stub_supervisor.py")
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
"""One that other users may run: the tests' own may lie in root's home."""
USER, OTHER = "games", "daemon"
REQUEST = "elastic:gpus=4-12,step=4,batch=240-3840"
SETTINGS = """
mode = "act"
listen = "{host}:{port}"
state_dir = "{state}"
slurm_conf = "{slurm_conf}"
round_interval_s = 0.5
min_round_gap_s = 0.05
cooldown_grow_s = 1.0
max_resizes_per_job_hour = 3600
cooldown_shrink_s = 0.5
min_gain = 0.01
assumed_pause_s = 0.05
companion_wait_s = {wait_s:.0f}
failed_backoff_s = 2.0
report_interval_s = 0.2
requests_per_s = 1000.0
{more}
"""


class Selasticd:
    """The daemon, and a clusterful of stubs."""

    def __init__(self, sandbox: Sandbox, folder: Path, more: str = "", host: str = "127.0.0.1") -> None:
        """more: further lines of the settings file, or others in their place. host: the address that it listens on."""
        self.sandbox, self.folder, self.more, self.host = sandbox, folder, more, host
        self.state = folder / "state"
        self.state.mkdir()
        self.stubs = folder / "stubs"
        self.stubs.mkdir()
        self.stubs.chmod(0o777)
        self.shim = _everyones_copy(folder / "code")
        self.slurm = CommandClient(sandbox.env["SLURM_CONF"])
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.options: list[str] = []
        self.build = THIS

    @property
    def found(self) -> dict[str, str]:
        """The environment by which a supervisor finds it."""
        return {"SELASTIC_CLIENT_CONF": str(self.state / "client.json")}

    def start(self) -> None:
        """Start it (again, at the same address), and wait until it answers."""
        self.launch()
        wait_until(self.answers, 60, self.log)

    def launch(self) -> None:
        """Start it, and do not wait."""
        config = self.folder / "selasticd.toml"
        values = {"port": self.port, "state": self.state, "slurm_conf": self.sandbox.env["SLURM_CONF"]}
        values |= {"more": self.more, "host": self.host, "wait_s": 40 * slowness_now()}
        others = {line.partition("=")[0].strip() for line in self.more.splitlines()} - {""}
        lines = SETTINGS.splitlines()
        config.write_text("\n".join(x for x in lines if x.partition("=")[0].strip() not in others).format(**values))
        log = (self.folder / "selasticd.log").open("ab")
        command = [
            sys.executable,
            "-m",
            f"slurm_elastic.daemon.{self.build.folder}.main",
            "--config",
            str(config),
            *self.options,
        ]
        # Before what the caller has on it.
        found = os.pathsep.join(filter(None, [str(self.build.path), os.environ.get("PYTHONPATH", "")]))
        env = {**os.environ, "PYTHONPATH": found}
        with log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=env, cwd="/")

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
        return Patience(60).end_of(self.process)

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
            "PYTHONPATH": str(self.shim),
            "SELASTIC_CLIENT_CONF": str(self.state / "client.json"),
            "HOME": "/tmp",
        }
        lines = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in exports.items())
        script = self.stubs / f"job{len(list(self.stubs.iterdir()))}.sh"
        run = shlex.join([PYTHON, str(self.shim / STUB.name), str(self.stubs), hold])
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

    def selastic(self, *words: str) -> subprocess.CompletedProcess[str]:
        """The real command line, as the user of the tests."""
        command = [sys.executable, "-m", "slurm_elastic.client.main", *words]
        env = {**os.environ, "PYTHONPATH": str(ROOT / "packaging/namespace")}
        return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=60)


def _everyones_copy(folder: Path) -> Path:
    """What runs in a job, and the stub with what it imports, where every user may read them."""
    code = folder / "slurm_elastic"
    for name in ("protocol", "trainer_shim", "client"):
        shutil.copytree(ROOT / name, code / name, ignore=shutil.ignore_patterns("__pycache__"))
    for module in (STUB, STUB.with_name("waiting.py"), STUB.with_name("patience.py")):
        shutil.copy(module, folder)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    return folder


@contextmanager
def live_daemon(
    sandbox: Sandbox,
    monkeypatch: pytest.MonkeyPatch,
    more: str = "",
    host: str = "127.0.0.1",
    options: Sequence[str] = (),
    build: Build = THIS,
) -> Iterator[Selasticd]:
    """A running daemon on this cluster, which clients here find; it has to stop cleanly in the end."""
    # The client looks there for MUNGE's socket.
    monkeypatch.setenv("SLURM_CONF", sandbox.env["SLURM_CONF"])
    # Not pytest's own directory: other users' jobs have to read what lies here.
    with tempfile.TemporaryDirectory(prefix="selasticd-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        daemon = Selasticd(sandbox, folder, more, host)
        daemon.options += options
        daemon.build = build
        monkeypatch.setenv("SELASTIC_CLIENT_CONF", str(daemon.state / "client.json"))
        daemon.start()
        try:
            yield daemon
            if daemon.process is not None and daemon.process.poll() is None:
                assert daemon.kill(signal.SIGTERM) == 0, daemon.log()
        finally:
            if daemon.process is not None and daemon.process.poll() is None:
                daemon.kill()
            cancel_all(sandbox)
