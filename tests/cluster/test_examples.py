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
from example_jobs import completes, story, submit
from fake_daemon import FakeDaemon
from kill_targets import kill, workers
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.protocol.messages import Shape

ROOT = Path(__file__).parents[2]
RESIZED = ("ddp", "fsdp", "tensor_parallel", "lightning", "transformers")
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
    "fsdp": 6,
    "tensor_parallel": 6,
    "lightning": 2,
    "transformers": 2,
}


def submit_example(sandbox: Sandbox, folder: Path, name: str, daemon: FakeDaemon, *words: str) -> int:
    """sbatch NAME.sbatch."""
    for file in (ROOT / "examples").glob(f"*{name}.*"):
        shutil.copy(file, folder)
    return submit(sandbox, folder, f"{name}.sbatch", daemon, *words)


@pytest.mark.parametrize("name", RESIZED)
def test_an_example_is_resized(empty_sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    """A companion's GPUs join the training and leave it again, and so does another batch: the job ends COMPLETED,
    without a restart, each sample of each epoch trained on exactly once."""
    tmp_path.chmod(0o755)
    gpus = 2 if name == "tensor_parallel" else 1

    with FakeDaemon() as daemon:
        job = submit_example(empty_sandbox, tmp_path, name, daemon, "--epochs", "2", "--samples", "2053")
        [base] = daemon.wait_registered().pieces
        daemon.order(1, job, (base,), (Shape(1, gpus, gpus),), batch=64)
        grown = daemon.wait_phase(1, "running", 120)
        assert sum(piece.gpus for piece in grown.pieces) == 2 * gpus
        daemon.order(2, job, (base,), batch=48)
        assert daemon.wait_phase(2, "running", 60).pieces == (base,)
        (tmp_path / "go").touch()
        completes(empty_sandbox, job, tmp_path)
    found = audited.check(tmp_path / "audit", samples=2053, epochs=2)
    assert found.ok and found.worlds == 3 and found.restarts == 0, (found, story(tmp_path))


def test_a_loop_of_its_own_is_resized_and_killed(empty_sandbox: Sandbox, tmp_path: Path) -> None:
    """1 -> 2 -> 1 -> 2 GPUs, a worker killed, and back to 1: each micro batch of each iteration counts once, and the
    evaluations are those of the same script alone, printed once but for iterations that were done again."""
    tmp_path.chmod(0o755)
    size = ["--iterations", "60", "--evaluate-every", "5"]

    def restored() -> int:
        return (tmp_path / "out.txt").read_text().count("restored from")

    with FakeDaemon() as daemon:
        job = submit_example(empty_sandbox, tmp_path, "iterations", daemon, *size)
        [base] = daemon.wait_registered().pieces
        for number, more in enumerate(((Shape(1, 1, 1),), (), (Shape(1, 1, 1),)), start=1):
            daemon.order(number, job, (base,), more)
            daemon.wait_phase(number, "running", 120)
        assert kill(*workers(empty_sandbox, job)) == 1
        wait_until(lambda: restored() == 1, 120, lambda: story(tmp_path))
        daemon.order(4, job, (base,))
        daemon.wait_phase(4, "running", 120)
        (tmp_path / "go").touch()
        completes(empty_sandbox, job, tmp_path)
    found = audited.check(tmp_path / "audit", samples=8, epochs=60)
    assert found.ok and found.restarts == 1 and found.worlds >= 5, (found, story(tmp_path))
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
        daemons = {name: stack.enter_context(FakeDaemon()) for name in LOOPS}
        jobs, bases, folders = {}, {}, {name: tmp_path / name for name in LOOPS}
        for name, (words, *_) in LOOPS.items():
            folders[name].mkdir()
            jobs[name] = submit_example(empty_sandbox, folders[name], name, daemons[name], *words.split())
        for name, daemon in daemons.items():
            [bases[name]] = daemon.wait_registered().pieces
        for number, more in enumerate(((Shape(1, 1, 1),), ()), start=1):
            for name, daemon in daemons.items():
                daemon.order(number, jobs[name], (bases[name],), more)
            for daemon in daemons.values():
                daemon.wait_phase(number, "running", 120)
        for name, folder in folders.items():
            assert kill(*workers(empty_sandbox, jobs[name])) == 1, story(folder)
        for folder in folders.values():
            said = (folder / "out.txt").read_text
            wait_until(lambda said=said: said().count("restored from") == 1, 120, lambda folder=folder: story(folder))
            (folder / "go").touch()
        for name, folder in folders.items():
            completes(empty_sandbox, jobs[name], folder)
    for name, (words, numbers, samples, passes, tolerance) in LOOPS.items():
        found = audited.check(folders[name] / "audit", samples, passes)
        assert found.ok and found.restarts == 1 and found.worlds >= 4, (name, found, story(folders[name]))
        alone = evaluations(run_alone(name, *words.split()))
        ours = evaluations((folders[name] / "out.txt").read_text())
        assert sorted(ours) == sorted(alone) == list(numbers), (name, story(folders[name]))
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
