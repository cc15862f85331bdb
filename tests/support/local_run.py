"""`selastic run` without Slurm, as a process under test: what it says, which workers it has, how it ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from fake_daemon import FakeDaemon
from patience import Patience
from training import T, Training
from waiting import wait_until

from slurm_elastic.trainer_shim.node import log_keeper

NAMESPACE = Path(__file__).resolve().parents[2] / "packaging" / "namespace"


def rehearsal(folder: Path, *words: str, **env: str) -> tuple[int, str]:
    """`selastic rehearse WORDS` in a folder: its exit code, and what it prints."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SELASTIC"))}
    command = [sys.executable, "-m", "slurm_elastic.client.main", "rehearse", *words]
    env = {**inherited, "PYTHONPATH": f"{folder}:{NAMESPACE}", "TMPDIR": str(folder), **env}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
    return done.returncode, done.stdout + done.stderr


class Run(Training):
    """One supervisor process under test."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        env: dict[str, str] | None = None,
        out: str = "out.txt",
        daemon: FakeDaemon | None = None,
        program: Sequence[str] = ("-m", "slurm_elastic.trainer_shim.supervisor.cli", "--job-dir"),
    ) -> None:
        """out: the file in the folder that takes its output. program: what Python runs, with the job directory."""
        super().__init__(folder, daemon)
        self.job_dir = folder / "job"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SELASTIC"))}
        found = daemon.env(folder) if daemon else {}
        self.out = (folder / out).open("w")
        self.process = subprocess.Popen(
            [sys.executable, *program, str(self.job_dir), *words],
            cwd=folder,
            env={**inherited, "PYTHONPATH": str(NAMESPACE), "OMP_NUM_THREADS": "1", **found, **(env or {})},
            stdout=self.out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def close(self) -> None:
        """Nothing of it is left running."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.out.close()

    def text(self) -> str:
        return Path(self.out.name).read_text()

    def wait(self, timeout: float = 90) -> int:
        patience = Patience(timeout)
        try:
            return patience.end_of(self.process)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {patience}:\n{self.text()}") from None

    def ends(self, timeout: float = 90) -> None:
        assert self.wait(timeout) == 0, self.text()

    def wait_for(self, predicate: Callable[[], T], timeout: float = 60, *, every: float = 0.05) -> T:
        """Of a training that goes on meanwhile."""

        def looked() -> T:
            assert self.process.poll() is None, f"the run has ended\n{self.story()}"
            return predicate()

        return wait_until(looked, timeout, self.story, every=every)

    def supervisor(self) -> int:
        """The process that supervises; its parent is what was started."""
        return wait_until(lambda: next(iter(children(self.process.pid)), 0))

    def agents(self) -> dict[str, int]:
        """The agents that there are now, by name (`<job>.<node>`), with their process ids."""
        found = {}
        for pid in children(self.supervisor()):
            with contextlib.suppress(OSError):
                environ = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
                found.update({word[15:].decode(): pid for word in environ if word.startswith(b"SELASTIC_AGENT=")})
        return found

    def worker_pids(self) -> list[int]:
        """The forked workers: children of the agents, which are children of the supervisor."""
        return [pid for agent in children(self.supervisor()) for pid in workers_of(agent)]


Start = Callable[..., Run]
"""start("--nproc 2", 4000, 2, 0.1) -> `selastic run` on train.py with so many samples and passes, and seconds to nap;
the test speaks for its selasticd, but for alone=True. Its record is in `audit`."""


def workers_of(agent: int) -> list[int]:
    """The forked workers of an agent: not the process that keeps its logs."""
    return [pid for pid in children(agent) if not keeps_logs(pid)]


def keeps_logs(pid: int) -> bool:
    return named(pid) == log_keeper.PROCESS_NAME.decode()


def named(pid: int) -> str:
    """What the process calls itself; "" of one that is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def children(pid: int) -> list[int]:
    """Process ids of the children that a process has now; none of one that is gone."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found


def kill(*pids: int) -> int:
    """SIGKILL; how many were there. 0, for a daemon that does not run, would be this very process group."""
    count = 0
    for pid in pids:
        if pid <= 1:
            continue
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    return count
