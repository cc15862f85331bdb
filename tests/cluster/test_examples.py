"""The examples, submitted by their own sbatch files to a real Slurm, and resized while they train."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import audited
import pytest
from fake_daemon import FakeDaemon
from kill_targets import workers
from local_run import kill
from training_job import ROOT, SlurmJob, submit_script
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.protocol.messages import Shape

RESIZED = ("ddp", "adasum", "fsdp", "tensor_parallel", "lightning", "transformers")
LOOPS = {
    # its words, the numbers it prints, samples and passes (or iterations) of the record, how far losses may be off
    "diffusion": ("--epochs 3 --samples 4099", range(3), 4099, 3, 0.1),
    "stream": ("--epochs 3", range(3), 1120, 3, 0.3),
    "wgan": ("--iterations 60 --print-every 5", range(0, 60, 5), 6 * 64, 60, 0.01),
    "ppo": ("--iterations 60", range(0, 60, 5), 3 * 48, 60, 0.01),
}
NAMES = (*RESIZED, "iterations", *LOOPS)
LINES = {
    "iterations": 9,
    "diffusion": 6,
    "stream": 6,
    "wgan": 11,
    "ppo": 8,
    "ddp": 6,
    "adasum": 6,
    "fsdp": 6,
    "tensor_parallel": 6,
    "lightning": 2,
    "transformers": 2,
}


def submit_example(sandbox: Sandbox, folder: Path, name: str, daemon: FakeDaemon, *words: str) -> SlurmJob:
    """sbatch NAME.sbatch."""
    for file in (ROOT / "examples").glob(f"*{name}.*"):
        shutil.copy(file, folder)
    return submit_script(sandbox, folder, f"{name}.sbatch", daemon, *words)


@pytest.mark.parametrize("name", RESIZED)
def test_an_example_is_resized(empty_sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    """A companion's GPUs join the training and leave it again, and so does another batch: the job ends COMPLETED,
    without a restart, each sample of each epoch trained on exactly once."""
    tmp_path.chmod(0o755)
    gpus = 2 if name == "tensor_parallel" else 1

    with FakeDaemon() as daemon:
        job = submit_example(empty_sandbox, tmp_path, name, daemon, "--epochs", "2", "--samples", "2053")
        base = job.base()
        grown = job.resize(base, Shape(1, gpus, gpus), batch=64, steps=0)
        assert sum(piece.gpus for piece in grown.pieces) == 2 * gpus
        assert job.resize(base, batch=48, steps=0).pieces == base
        job.go()
        job.ends()
    found = audited.check(tmp_path / "audit", samples=2053, epochs=2)
    assert found.ok and found.worlds == 3 and found.restarts == 0, (found, job.story())


def test_a_loop_of_its_own_is_resized_and_killed(empty_sandbox: Sandbox, tmp_path: Path) -> None:
    """1 -> 2 -> 1 -> 2 GPUs, a worker killed, and back to 1: each micro batch of each iteration counts once, and the
    evaluations are those of the same script alone, printed once but for iterations that were done again."""
    tmp_path.chmod(0o755)
    size = ["--iterations", "60", "--evaluate-every", "5"]

    def restored() -> int:
        return (tmp_path / "out.txt").read_text().count("restored from")

    with FakeDaemon() as daemon:
        job = submit_example(empty_sandbox, tmp_path, "iterations", daemon, *size)
        base = job.base()
        for more in ((Shape(1, 1, 1),), (), (Shape(1, 1, 1),)):
            job.resize(base, *more, steps=0)
        assert kill(*workers(empty_sandbox, job.id)) == 1
        wait_until(lambda: restored() == 1, 120, job.story)
        job.resize(base, steps=0)
        job.go()
        job.ends()
    found = audited.check(tmp_path / "audit", samples=8, epochs=60)
    assert found.ok and found.restarts == 1 and found.worlds >= 5, (found, job.story())
    alone = evaluations(run_alone("iterations", *size, "--out", tmp_path / "alone"))
    ours = evaluations((tmp_path / "out.txt").read_text())
    assert sorted(ours) == sorted(alone) == list(range(0, 60, 5))
    for iteration, losses in ours.items():
        assert losses == pytest.approx(alone[iteration] * len(losses), rel=1e-3), iteration
    assert sum(map(len, ours.values())) - len(ours) <= 12


def evaluations(out: str) -> dict[int, list[float]]:
    """The losses that were printed for each iteration, or epoch."""
    found: dict[int, list[float]] = {}
    for number, loss in re.findall(r"^(?:iteration|epoch) (\d+): loss (\S+)$", out, re.MULTILINE):
        found.setdefault(int(number), []).append(float(loss))
    return found


def test_loops_of_other_kinds_are_resized_and_killed(empty_sandbox: Sandbox, tmp_path: Path) -> None:
    """All four at once: each grows to 2 GPUs, shrinks to 1, loses its worker and goes on. Each sample of each pass, or
    of each iteration, counts once, and what they print is what they print alone: once, but for what was done again."""
    tmp_path.chmod(0o755)
    with contextlib.ExitStack() as stack:
        jobs = {}
        for name, (words, *_) in LOOPS.items():
            (tmp_path / name).mkdir()
            daemon = stack.enter_context(FakeDaemon())
            jobs[name] = submit_example(empty_sandbox, tmp_path / name, name, daemon, *words.split())
        bases = {name: job.base() for name, job in jobs.items()}
        for more in ((Shape(1, 1, 1),), ()):
            ordered = [(job, job.order(bases[name], *more)) for name, job in jobs.items()]
            for job, number in ordered:
                job.resized(number, steps=0)
        for job in jobs.values():
            assert kill(*workers(empty_sandbox, job.id)) == 1, job.story()
        for job in jobs.values():
            said = (job.folder / "out.txt").read_text
            wait_until(lambda said=said: said().count("restored from") == 1, 120, job.story)
            job.go()
        for job in jobs.values():
            job.ends()
    for name, (words, numbers, samples, passes, tolerance) in LOOPS.items():
        job = jobs[name]
        found = audited.check(job.folder / "audit", samples, passes)
        assert found.ok and found.restarts == 1 and found.worlds >= 4, (name, found, job.story())
        alone = evaluations(run_alone(name, *words.split()))
        ours = evaluations((job.folder / "out.txt").read_text())
        assert sorted(ours) == sorted(alone) == list(numbers), (name, job.story())
        for number, losses in ours.items():
            expected = [*alone[number]] * len(losses)
            assert losses == pytest.approx(expected, rel=tolerance, abs=1e-3), (name, number)
        assert sum(map(len, ours.values())) - len(ours) <= 12, name


def run_alone(name: str, *words: object) -> str:
    """What the example prints as one undisturbed process."""
    command = [sys.executable, ROOT / f"examples/train_{name}.py", *map(str, words)]
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "packaging/namespace"), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=variables, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", NAMES)
def test_an_example_differs_by_few_lines(name: str) -> None:
    """As many lines are marked as added or changed as the documentation says."""
    script = (ROOT / f"examples/train_{name}.py").read_text()
    assert script.count("  # elastic") == LINES[name]
