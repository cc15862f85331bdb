"""How a job of `selastic run` ends on a real Slurm: at its time limit, by scancel, by failing; arrays; --dry-run."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import audited
import pytest
from fake_daemon import FakeDaemon
from small_training import TRAIN
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.protocol.messages import Shape
from slurm_elastic.trainer_shim.training import audit

ROOT = Path(__file__).parents[2]
Submit = Callable[..., int]


@pytest.fixture
def submit(empty_sandbox: Sandbox, tmp_path: Path) -> Submit:
    """submit("name", "--gres=gpu:1", "train.py 100 1 0") -> job id, run in the folder of that name."""
    tmp_path.chmod(0o755)

    def sbatch(name: str, options: str, words: str) -> int:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "train.py").write_text(TRAIN)
        (folder / "fails.py").write_text(TRAIN + "\nsys.exit(7)\n")
        run = f"exec {shlex.quote(sys.executable)} -m slurm_elastic.trainer_shim.supervisor.cli --no-daemon {words}"
        lines = ["#!/bin/bash", f"export PYTHONPATH={ROOT / 'packaging/namespace'} OMP_NUM_THREADS=1", run]
        (folder / "job.sh").write_text("\n".join(lines) + "\n")
        command = ["sbatch", "--parsable", f"--chdir={folder}", "--output=out.%a.txt", "--open-mode=append"]
        answer = empty_sandbox.run([*command, *options.split(), str(folder / "job.sh")])
        assert answer.returncode == 0, answer.stderr
        return int(answer.stdout)

    return sbatch


def test_every_way_to_end(empty_sandbox: Sandbox, submit: Submit, tmp_path: Path) -> None:
    """At once, for Slurm looks at time limits every half minute only:

    - --signal=B:USR1@N: a checkpoint is on disk long before the end; at the time limit Slurm calls it TIMEOUT;
    - scancel: CANCELLED, and the steps since are in a checkpoint too; before, a signal to its steps, and one to the
      script too, is a checkpoint each and ends nothing;
    - an array: each task trains by itself, in a directory of its own;
    - a script that ends with 7: FAILED with 7:0, and --dry-run: COMPLETED, nothing but text.
    """

    def field(job: int | str, name: str) -> str:
        shown = empty_sandbox.run(["scontrol", "-o", "show", "job", str(job)]).stdout
        return next((word.partition("=")[2] for word in shown.split() if word.startswith(f"{name}=")), "")

    def over(job: int | str) -> str:
        ends = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        wait_until(lambda: field(job, "JobState") in ends, 150, lambda: f"{job}: {field(job, 'JobState')}\n{text()}")
        return field(job, "JobState")

    def text() -> str:
        return "\n".join(f"--- {log}\n{log.read_text()[-2000:]}" for log in tmp_path.glob("*/out*"))

    def steps(name: str) -> list[Path]:
        return sorted((tmp_path / name).glob(".selastic/*/checkpoints/step-*/checkpoint.json"))

    timed = submit("timed", "--gres=gpu:1 --time=5 --signal=B:USR1@600", "train.py 100000 1 0.1")
    cancelled = submit("cancelled", "--gres=gpu:1", "--audit audit train.py 100000 1 0.1")
    dry = submit("dry", "-N2 --gres=gpu:2", "--dry-run train.py 1 1 0")
    failing = submit("failing", "--gres=gpu:1", "fails.py 32 1 0")
    array = submit("array", "--gres=gpu:1 --array=1-2", "--audit audit.$SLURM_ARRAY_TASK_ID train.py 200 1 0")

    assert over(dry) == "COMPLETED"
    said = (tmp_path / "dry").joinpath(next(p.name for p in (tmp_path / "dry").glob("out*"))).read_text()
    assert "srun" in said and said.count("\nrank ") == 4, said
    assert not list((tmp_path / "dry").glob(".selastic/*"))
    assert over(failing) == "FAILED", text()
    assert field(failing, "ExitCode") == "7:0"
    for task in (1, 2):
        assert over(f"{array}_{task}") == "COMPLETED", text()
        assert audited.check(tmp_path / f"array/audit.{task}", samples=200, epochs=1).ok
    assert len(list((tmp_path / "array/.selastic").glob("*/run.json"))) == 2

    wait_until(lambda: "generation 1: 1 workers" in text() and field(cancelled, "JobState") == "RUNNING", 90, text)
    wait_until(lambda: steps("timed"), 120, text)  # USR1's
    wait_until(lambda: len(list(audit.read(tmp_path / "cancelled/audit"))) > 3, 60, text)  # it trains
    for options in (["--signal=USR2"], ["--signal=USR1", "--full"]):  # to its steps; to its script too
        before = steps("cancelled")
        empty_sandbox.run(["scancel", *options, str(cancelled)])
        wait_until(lambda before=before: steps("cancelled")[-1:] > before[-1:], 60, text)
    assert "starting again" not in text() and field(cancelled, "JobState") == "RUNNING", text()
    empty_sandbox.run(["scancel", str(cancelled)])
    assert over(cancelled) == "CANCELLED"
    assert steps("cancelled"), text()
    first = steps("timed")[-1]
    empty_sandbox.run(["scontrol", "update", f"JobId={timed}", "EndTime=now"])
    assert over(timed) == "TIMEOUT", text()
    assert steps("timed")[-1] > first, text()


def test_the_end_of_an_interactive_allocation_is_an_end(empty_sandbox: Sandbox, tmp_path: Path) -> None:
    """Of what salloc holds, which has no batch script that Slurm would tell: the steps since are in a checkpoint,
    nothing is started again in a job that is dead, and the companion is given back."""
    (tmp_path / "train.py").write_text(TRAIN)
    run = [sys.executable, "-m", "slurm_elastic.trainer_shim.supervisor.cli", "--audit", "audit"]
    out = tmp_path / "out.txt"
    with FakeDaemon() as daemon, out.open("w") as file:
        env = {**empty_sandbox.env, **daemon.env(tmp_path), "PYTHONPATH": str(ROOT / "packaging/namespace")}
        command = ["salloc", "-N1", "--gres=gpu:1", *run, "train.py", "100000", "1", "0.1"]
        process = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=file, stderr=file)
        try:
            base = daemon.wait_registered().pieces
            daemon.order(1, base[0].slurm_job_id, base, (Shape(1, 1),))
            daemon.wait_phase(1, "running")
            wait_until(lambda: len(list(audit.read(tmp_path / "audit"))) > 20, 60, out.read_text)
            empty_sandbox.run(["scancel", str(base[0].slurm_job_id)])
            wait_until(lambda: process.poll() is not None, 90, out.read_text)
        finally:
            process.kill()
    done = max(line["step"] for line in audit.read(tmp_path / "audit") if "step" in line)
    saved = max(tmp_path.glob(".selastic/*/checkpoints/step-*/checkpoint.json"))
    assert "again" not in out.read_text(), out.read_text()
    assert int(saved.parent.name.removeprefix("step-")) >= done, out.read_text()
    wait_until(lambda: empty_sandbox.run(["squeue", "-h"]).stdout == "", 60)
