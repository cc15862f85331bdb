"""A batch job that trains on a private Slurm, and what a test asks of it (training.py has what it asks of any)."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import kill_targets
from fake_daemon import FakeDaemon
from training import TRAIN, Training, on
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.daemon.slurm import CommandClient, Size

ROOT = Path(__file__).parents[2]
NAMESPACE = str(ROOT / "packaging" / "namespace")
RUN = f"{shlex.quote(sys.executable)} -m slurm_elastic.trainer_shim.supervisor.cli --audit audit"
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
SLOW = """
import itertools, os, sys, time
if "slurm_elastic.trainer_shim.node.agent" in sys.orig_argv:
    from torch.optim.optimizer import register_optimizer_step_post_hook
    steps = itertools.count(1)
    def wait(*_):
        until = time.monotonic() + next(steps) * 0.03
        while time.monotonic() < until and not os.path.exists("go"):
            time.sleep(0.05)
    register_optimizer_step_post_hook(wait)
"""
"""Every step takes longer than the one before it until there is a file `go`: 130 steps take four minutes, so that the
training does not end before it was resized, however busy the machine. The scripts themselves know nothing of tests."""


class SlurmJob(Training):
    """A job of Slurm whose folder is `folder`."""

    checkpoints = ".selastic/*/checkpoints"

    def __init__(self, sandbox: Sandbox, folder: Path, daemon: FakeDaemon | None = None) -> None:
        super().__init__(folder, daemon)
        self.sandbox = sandbox

    def sbatch(self, *words: str, within: str = "") -> None:
        """Submit it. within: options of an srun of which the second task does so."""
        command = ["sbatch", "--parsable", f"--chdir={self.folder}", "--output=out.txt", *words]
        if within:
            command = ["srun", *within.split(), "bash", "-c", f'[ "$SLURM_PROCID" != 1 ] || exec {shlex.join(command)}']
        self.id = int(self.slurm(*command))

    # --- what is seen -------------------------------------------------------------------------------------------------

    def text(self) -> str:
        """What it and its agents have said."""
        return self._said("agents*")

    def story(self) -> str:
        """The ends of what it, its agents and its workers have said."""
        return self._said("*", 4000)

    def _said(self, logs: str, most: int = 1 << 30) -> str:
        out = self.folder / "out.txt"
        files = [*([out] if out.exists() else []), *self.folder.glob(f".selastic/*/logs/{logs}")]
        return "\n".join(f"--- {file.name}\n{file.read_text()[-most:]}" for file in files) or "no output"

    def slurm(self, *command: str) -> str:
        answer = self.sandbox.run(command)
        assert answer.returncode == 0, f"{shlex.join(command)}: {answer.returncode}, {answer.stderr}"
        return answer.stdout

    def field(self, name: str, job: int | str = 0) -> str:
        """One field of `scontrol show job`."""
        shown = self.sandbox.run(["scontrol", "-o", "show", "job", str(job or self.id)]).stdout
        return next((word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}=")), "")

    def state(self) -> str:
        return self.field("JobState")

    def others(self) -> list[str]:
        """What is in the queue besides this job."""
        lines = self.slurm("squeue", "-h", "-o", "%i %j %T").splitlines()
        return [line for line in lines if line.split()[0] != str(self.id)]

    def worker_pids(self, slurm_job_id: int) -> list[int]:
        """The workers of one piece."""
        return kill_targets.workers(self.sandbox, slurm_job_id)

    # --- what is waited for -------------------------------------------------------------------------------------------

    def comes_to(self, *states: str, timeout: float = 60) -> None:
        wait_until(lambda: self.state() in states, timeout, lambda: self.state() + self.story())

    def ends(self, timeout: float = 120) -> None:
        self.comes_to(*OVER, timeout=timeout)
        assert self.state() == "COMPLETED", self.story()

    def comes_back(self, size: Size) -> None:
        """It was put back, and starts at this size, without the two minutes that Slurm lets it wait."""
        self.comes_to("PENDING")
        settled = time.time() + 2.0  # as Slurm demands: see SlurmClient.resize_waiting
        wait_until(lambda: time.time() > settled)
        CommandClient(self.sandbox.env["SLURM_CONF"]).resize_waiting(self.id, size)

    def gives_back(self) -> None:
        """Slurm has no companion of it any more."""
        wait_until(lambda: not any("selastic-" in other for other in self.others()), 60, self.others)

    def grow_until(self, state: str, happens: Callable[[], object], node: str = "n2", wait: float = 120) -> None:
        """Order a companion on this node, and have something happen when the growth has come to this state: before it
        is asked for (issued), while it waits for the node (submitted), while its workers warm up (granted), or when
        they do and rank 0 is in a step (ready)."""
        grow = (self.base(), on(node))
        if state == "issued":
            happens()
            self.order(*grow, wait=wait)
        elif state == "submitted":
            gpus = f"--gres=gpu:a100:{self.sandbox.spec.gpus_per_node}"
            options = [f"-p{self.field('Partition')}", f"-w{node}", gpus, "--no-requeue", "--output=/dev/null"]
            filler = self.slurm("sbatch", "--parsable", *options, "--wrap", "sleep 600").strip()
            wait_until(lambda: self.field("JobState", filler) == "RUNNING", 60, self.others)
            self.order(*grow, wait=wait)
            wait_until(lambda: f"selastic-{self.id} PENDING" in "\n".join(self.others()), 60, self.others)
            happens()
            self.slurm("scancel", filler)
        else:
            with self.there_is("cold" if state == "granted" else "stuck"):
                self.daemon.wait_phase(self.order(*grow, wait=wait), state, 120)
                happens()


class TrainingJob(SlurmJob):
    """One that runs `selastic run` on a script that the test has written."""

    def __init__(
        self,
        sandbox: Sandbox,
        folder: Path,
        options: str,
        samples: int = 20000,
        epochs: int = 1,
        nap: float = 0.1,
        *,
        daemon: FakeDaemon | None = None,
        words: str = "",
        env: dict[str, str] | None = None,
        script: str = "exec {run}",
        train: str = TRAIN,
        name: str = "train.py",
        within: str = "",
    ) -> None:
        """options: of sbatch. words: options of `selastic run`. script: what the batch script does; {run} stands for
        `selastic run` with these words. train: the program in the file `name`."""
        super().__init__(sandbox, folder, daemon)
        self.samples, self.epochs = samples, epochs
        folder.mkdir(exist_ok=True)
        folder.chmod(0o755)
        (folder / name).write_text(train)
        variables = {"PYTHONPATH": NAMESPACE, "OMP_NUM_THREADS": "1", **(daemon.env(folder) if daemon else {})}
        exports = "\n".join(f"export {key}={shlex.quote(value)}" for key, value in {**variables, **(env or {})}.items())
        run = f"{RUN} {words} {name} {samples} {epochs} {nap}"
        (folder / "job.sh").write_text(f"#!/bin/bash\n{exports}\n{script.format(run=run)}\n")
        self.sbatch("--open-mode=append", *options.split(), str(folder / "job.sh"), within=within)


Start = Callable[..., TrainingJob]
"""start("-N2 --gres=gpu:1", 8000) -> a submitted job of so many samples, for whose selasticd the test speaks; with
alone=True, or the environment of a real one, it doesn't."""


@contextmanager
def starting(sandbox: Sandbox, home: Path, host: str = "127.0.0.1") -> Iterator[Start]:
    """A `Start`, of jobs in folders within `home`."""
    with contextlib.ExitStack() as daemons:

        def submit(options: str, samples: int = 20000, *numbers: float, alone: bool = False, **how: str) -> TrainingJob:
            daemon = None if alone else daemons.enter_context(FakeDaemon(host=host))
            folder = Path(tempfile.mkdtemp(prefix="training-", dir=home))
            return TrainingJob(sandbox, folder, options, samples, *numbers, daemon=daemon, **how)  # type: ignore[arg-type]

        yield submit


def submit_script(
    sandbox: Sandbox, folder: Path, batch_script: str, daemon: FakeDaemon, *words: str, custom: str = SLOW
) -> SlurmJob:
    """sbatch BATCH_SCRIPT as a user would, in its folder, with a `selastic` that keeps a record of every sample.
    custom: what each Python of the job begins with."""
    (folder / "bin").mkdir()
    (folder / "bin/selastic").write_text(f'#!/bin/bash\nshift\nexec {RUN} "$@"\n')
    (folder / "bin/selastic").chmod(0o755)
    (folder / "bin/sitecustomize.py").write_text(custom)
    paths = [f"{folder}/bin", NAMESPACE, str(ROOT / "tests/support"), *os.environ.get("PYTHONPATH", "").split(":")]
    variables = {
        "PATH": f"{folder}/bin:/usr/bin:/bin",
        "PYTHONPATH": ":".join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        **daemon.env(folder),
    }
    exports = ",".join(["NONE", *(f"{key}={value}" for key, value in variables.items())])
    job = SlurmJob(sandbox, folder, daemon)
    job.sbatch(f"--export={exports}", str(folder / batch_script), *words)
    return job
