"""Training scripts, submitted to the private Slurm as their users would, and what their tests ask of them."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path

from fake_daemon import FakeDaemon
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

ROOT = Path(__file__).parents[2]
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


def submit(
    sandbox: Sandbox, folder: Path, batch_script: str, daemon: FakeDaemon, *words: str, custom: str = SLOW
) -> int:
    """sbatch BATCH_SCRIPT as a user would, in its folder, with a `selastic` that keeps a record of every sample.
    custom: what each Python of the job begins with."""
    run = f'#!/bin/bash\nshift\nexec {sys.executable} -m slurm_elastic.trainer_shim.supervisor.cli --audit audit "$@"\n'
    (folder / "bin").mkdir()
    (folder / "bin/selastic").write_text(run)
    (folder / "bin/selastic").chmod(0o755)
    (folder / "bin/sitecustomize.py").write_text(custom)
    ours = [f"{folder}/bin", str(ROOT / "packaging/namespace"), str(ROOT / "tests/support")]
    paths = [*ours, *os.environ.get("PYTHONPATH", "").split(":")]
    variables = {
        "PATH": f"{folder}/bin:/usr/bin:/bin",
        "PYTHONPATH": ":".join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        **daemon.env(folder),
    }
    exports = ",".join(["NONE", *(f"{key}={value}" for key, value in variables.items())])
    command = ["sbatch", "--parsable", f"--chdir={folder}", "--output=out.txt", f"--export={exports}"]
    answer = sandbox.run([*command, str(folder / batch_script), *words])
    assert answer.returncode == 0, (answer.stderr, shlex.join(command))
    return int(answer.stdout)


def story(folder: Path) -> str:
    """What a job has printed."""
    logs = [*folder.glob("out.txt"), *folder.glob(".selastic/*/logs/*")]
    return "\n".join(f"--- {log.name}\n{log.read_text()[-4000:]}" for log in logs)


OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT")


def state_of(sandbox: Sandbox, job: int) -> str:
    shown = sandbox.run(["scontrol", "-o", "show", "job", str(job)]).stdout
    return shown.partition("JobState=")[2].partition(" ")[0]


def completes(sandbox: Sandbox, job: int, folder: Path) -> None:
    """Wait for its end, which is a good one."""

    def ended() -> str:
        state = state_of(sandbox, job)
        return state if state in OVER else ""

    assert wait_until(ended, 120, lambda: story(folder)) == "COMPLETED", story(folder)


def resizes(sandbox: Sandbox, daemon: FakeDaemon, number: int, job: int, folder: Path) -> None:
    """Wait until it trains at another size; not where it has ended, or does without."""

    def came() -> str:
        told = [phase.phase for phase in daemon.phases if phase.resize == number]
        last = next((phase for phase in ("running", "failed", "withdrawn") if phase in told), "")
        return last or (state_of(sandbox, job) in OVER) * "ended"

    assert wait_until(came, 120, lambda: story(folder), every=0.5) == "running", (number, daemon.phases, story(folder))
