"""`selastic run` without Slurm, as a process under test: what it says, which workers it has, how it ends."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from patience import Patience
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


class Run:
    """One supervisor process under test."""

    def __init__(
        self,
        folder: Path,
        *words: str,
        env: dict[str, str] | None = None,
        out: str = "out.txt",
        program: Sequence[str] = ("-m", "slurm_elastic.trainer_shim.supervisor.cli", "--job-dir"),
    ) -> None:
        """out: the file in the folder that takes its output. program: what Python runs, with the job directory."""
        self.job_dir = folder / "job"
        inherited = {key: value for key, value in os.environ.items() if not key.startswith(("SLURM", "SELASTIC"))}
        self.out = (folder / out).open("w")
        self.process = subprocess.Popen(
            [sys.executable, *program, str(self.job_dir), *words],
            cwd=folder,
            env={**inherited, "PYTHONPATH": str(NAMESPACE), "OMP_NUM_THREADS": "1", **(env or {})},
            stdout=self.out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def text(self) -> str:
        return Path(self.out.name).read_text()

    def wait(self, timeout: float = 90) -> int:
        patience = Patience(timeout)
        try:
            return patience.end_of(self.process)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {patience}:\n{self.text()}") from None

    def says(self, words: str, timeout: float = 60, times: int = 1) -> None:
        wait_until(lambda: self.text().count(words) >= times, timeout, lambda: f"{words!r} in:\n{self.text()}")

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


def workers_of(agent: int) -> list[int]:
    """The forked workers of an agent: not the process that keeps its logs."""
    return [pid for pid in children(agent) if not keeps_logs(pid)]


def keeps_logs(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip() == log_keeper.PROCESS_NAME.decode()
    return False


def children(pid: int) -> list[int]:
    """Process ids of the children that a process has now; none of one that is gone."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, task.read_text().split())
    return found
