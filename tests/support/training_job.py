"""A batch job that runs `selastic run` on the private Slurm, with real training, and what a test asks of it."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path

import audited
from local_run import keeps_logs
from small_training import TRAIN
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

ROOT = Path(__file__).parents[2]


class TrainingJob:
    """One batch job that runs `selastic run`."""

    def __init__(
        self,
        sandbox: Sandbox,
        folder: Path,
        options: str,
        words: str,
        env: dict[str, str],
        script: str = "exec {run}",
        train: str = TRAIN,
        name: str = "train.py",
        within: str = "",
    ) -> None:
        """script: what the batch script does; {run} stands for `selastic run` with these words. train: the program in
        the file `name`. within: options of an srun of which the second task asks for the job."""
        self.sandbox, self.folder = sandbox, folder
        (folder / name).write_text(train)
        variables = {"PYTHONPATH": str(ROOT / "packaging/namespace"), "OMP_NUM_THREADS": "1", **env}
        exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in variables.items())
        run = f"{sys.executable} -m slurm_elastic.trainer_shim.supervisor.cli --audit audit {words}"
        (folder / "job.sh").write_text(f"#!/bin/bash\n{exports}\n{script.format(run=run)}\n")
        command = ["sbatch", "--parsable", f"--chdir={folder}", "--output=out.txt", "--open-mode=append"]
        command += [*options.split(), str(folder / "job.sh")]
        if within:
            second = f'[ "$SLURM_PROCID" != 1 ] || exec {shlex.join(command)}'
            command = ["srun", *within.split(), "bash", "-c", second]
        answer = sandbox.run(command)
        assert answer.returncode == 0, answer.stderr
        self.id = int(answer.stdout)

    def text(self) -> str:
        out = self.folder / "out.txt"
        logs = self.folder.glob(".selastic/*/logs/agents*")
        return (out.read_text() if out.exists() else "no output") + "".join(log.read_text() for log in logs)

    def slurm(self, *command: str) -> str:
        answer = self.sandbox.run(command)
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def field(self, name: str, job_id: int = 0) -> str:
        """One field of `scontrol show job`."""
        shown = self.sandbox.run(["scontrol", "-o", "show", "job", str(job_id or self.id)]).stdout
        return next((word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}=")), "")

    def go(self) -> None:
        """Let the training run to its end at full speed."""
        (self.folder / "go").touch()

    def ends(self, state: str = "COMPLETED", timeout: float = 90) -> None:
        over = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_until(lambda: self.field("JobState") in over, timeout, self.text)
        assert self.field("JobState") == state, self.text()

    def says(self, words: str, timeout: float = 60) -> None:
        wait_until(lambda: words in self.text(), timeout, lambda: f"{words!r} in:\n{self.text()}")

    def others(self) -> list[str]:
        """What is in the queue besides this job."""
        return [
            line
            for line in self.slurm("squeue", "-h", "-o", "%i %j %T").splitlines()
            if line.split()[0] != str(self.id)
        ]

    def checked(self, samples: int, epochs: int) -> None:
        result = audited.check(self.folder / "audit", samples, epochs)
        assert result.ok, result

    def worker_pids(self, slurm_job_id: int) -> list[int]:
        """The workers of one piece: they are forks of their agent, and show its command and environment."""
        agents = {}
        for path in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                environ = (path / "environ").read_bytes()
                if f"SLURM_JOB_ID={slurm_job_id}\0".encode() in environ and b"\0SELASTIC_SECRET=" in environ:
                    agents[int(path.name)] = int((path / "stat").read_text().rpartition(")")[2].split()[1])
        return [pid for pid, parent in agents.items() if parent in agents and not keeps_logs(pid)]
