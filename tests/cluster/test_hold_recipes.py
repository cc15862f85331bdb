"""The recipes of examples/hold, submitted as they stand to a real Slurm: each grows by a node and gives it back while
it works, and loses nothing. The test speaks for selasticd."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
from fake_daemon import FakeDaemon
from training import on
from training_job import NAMESPACE, OVER, ROOT, SlurmJob, TrainingJob
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

Recipe = Callable[..., SlurmJob]
FRAMEWORKS = os.environ.get("SELASTIC_FRAMEWORKS", "")
"""Where `ray` and `torchft_lighthouse` are, in `make test-frameworks`."""
large = pytest.mark.skipif(not FRAMEWORKS, reason="Ray and torchft are in make test-frameworks")


@pytest.fixture
def recipe(empty_sandbox: Sandbox, tmp_path: Path) -> Iterator[Recipe]:
    """Submits one, in a folder of its own, as a user would who has its framework in the PATH."""
    tmp_path.chmod(0o755)
    with FakeDaemon() as daemon:

        def submit(name: str, *words: str, alone: Sequence[str] = (), **env: str) -> SlurmJob:
            for file in (ROOT / "examples/hold").iterdir():
                shutil.copy(file, tmp_path)
            (tmp_path / "bin").mkdir()
            command = f'#!/bin/bash\nexec {shlex.quote(sys.executable)} -m slurm_elastic.client.main "$@"\n'
            (tmp_path / "bin/selastic").write_text(ALONE if alone else command)
            (tmp_path / "bin/selastic").chmod(0o755)
            own = FRAMEWORKS if name in ("ray", "torchft") else str(Path(sys.executable).parent)
            path = f"{tmp_path}/bin:{own}:/usr/bin:/bin"
            variables = {"PATH": path, "PYTHONPATH": NAMESPACE, "OMP_NUM_THREADS": "1", "HOME": str(tmp_path), **env}
            exports = ",".join(
                ["NONE", *(f"{key}={value}" for key, value in (variables | daemon.env(tmp_path)).items())]
            )
            job = SlurmJob(empty_sandbox, tmp_path, daemon)
            job.sbatch(f"--export={exports}", *alone, str(tmp_path / f"{name}.sbatch"), *words)
            return job

        yield submit


ALONE = """#!/bin/bash
[ "$1" = hold ] || exit 0
while [ "$1" != -- ]; do [ "$1" != --join ] || join=$2; shift; done
export SELASTIC_HEAD=$(hostname) SELASTIC_ADDRESS=$(hostname) SELASTIC_NODE_INDEX=1
export SLURM_EXPORT_ENV=ALL
srun --overlap --gres=none -N1 -n1 -x "$SLURMD_NODENAME" bash -c "export SELASTIC_NODE=\\$SLURMD_NODENAME; $join" &
shift; exec "$@"
"""
"""In the place of `selastic`: what joins is started once, on the other node that the job has, as on plain Slurm."""


def done(job: SlurmJob) -> list[str]:
    try:
        return (job.folder / "done").read_text().splitlines()
    except FileNotFoundError:
        return []


def grows(job: SlurmJob, works: Callable[[], bool]) -> float:
    """A node joins and works; seconds from Slurm's grant to that."""
    number = job.order(job.base(), on("n2"))
    job.daemon.wait_phase(number, "granted", 60)
    granted = time.monotonic()
    job.daemon.wait_phase(number, "running", 60)
    wait_until(works, 60, job.story)
    return time.monotonic() - granted


def shrinks(job: SlurmJob) -> float:
    """It goes; seconds from the order until the job is over to the rest."""
    ordered = time.monotonic()
    assert job.over(job.order(job.base()[:1])).what == "running", job.story()
    seconds = time.monotonic() - ordered
    companion = job.others()[0].split()[0]
    job.slurm("scancel", companion)
    return seconds


def figures(name: str, grown: float, shrunk: float, more: str) -> None:
    """For the table of docs/how-to/ray-torchrun-torchft-dask.md: pytest -s."""
    print(f"{name}: {grown:.1f} s to grow, {shrunk:.1f} s to shrink, {more}")


def test_torchrun(recipe: Recipe) -> None:
    """Workers begin again from the last checkpoint with two nodes, then with one: no step is left out."""
    job = recipe("torchrun", STEPS="1000")
    wait_until(lambda: len(done(job)) > 3, 60, job.story)
    grown = grows(job, lambda: done(job)[-1].endswith(" 2"))
    shrunk = shrinks(job)
    wait_until(lambda: done(job)[-1].endswith(" 1"), 60, job.story)
    wait_until(lambda: any(report.unit == "samples" and report.samples_per_s > 0 for report in job.daemon.reports), 30)
    (job.folder / "end").touch()
    job.ends()
    steps = [int(line.split()[0]) for line in done(job)]
    assert set(steps) == set(range(1, max(steps) + 1))
    figures("torchrun", grown, shrunk, f"{len(steps) - len(set(steps))} steps done twice")


def test_dask(recipe: Recipe) -> None:
    """A worker joins the pool, and is retired: every task is done, none is lost, and none is done twice."""
    job = recipe("dask", TASKS="60")
    wait_until(lambda: len(done(job)) > 3, 60, job.story)
    grown = grows(job, lambda: any(line.endswith(" n2") for line in done(job)))
    shrunk = shrinks(job)
    job.ends()
    assert sorted(int(line.split()[0]) for line in done(job)) == list(range(60))
    figures("Dask", grown, shrunk, f"{len(done(job)) - 60} tasks done twice")


def test_a_sweep(recipe: Recipe) -> None:
    """A node takes tasks, and puts back what it has begun when it goes: each is done once."""
    job = recipe("sweep", TASKS="50")
    folder = job.folder
    wait_until(lambda: len(list(folder.glob("done/*"))) > 3, 60, job.story)
    grown = grows(job, lambda: any(folder.glob("doing.n2/*")))
    shrunk = shrinks(job)
    assert not list(folder.glob("doing.n2/*"))
    job.ends()
    assert len(list(folder.glob("done/*"))) == 50 and not list(folder.glob("todo/*"))
    figures("sweep", grown, shrunk, "no task done twice")


@large
def test_ray(recipe: Recipe) -> None:
    """A Ray node joins, takes tasks, and is drained by Ray itself: every task is done."""
    job = recipe("ray", TASKS="80")
    wait_until(lambda: len(done(job)) > 3, 90, job.story)
    grown = grows(job, lambda: any(line.endswith(" n2") for line in done(job)))
    shrunk = shrinks(job)
    job.ends(180)
    assert {int(line.split()[0]) for line in done(job)} == set(range(80))
    figures("Ray", grown, shrunk, f"{len(done(job)) - 80} tasks done twice")


@large
def test_ray_train(recipe: Recipe) -> None:
    """A job of Ray Train takes the node that joins, and does without it: no step is left out."""
    job = recipe("ray", "train_ray.py", "8")
    wait_until(lambda: len(done(job)) > 3, 90, job.story)
    grown = grows(job, lambda: done(job)[-1].endswith(" 2"))
    shrunk = shrinks(job)
    wait_until(lambda: done(job)[-1].endswith(" 1"), 60, job.story)
    (job.folder / "end").touch()
    job.ends(180)
    steps = [int(line.split()[0]) for line in done(job)]
    assert set(steps) == set(range(1, max(steps) + 1))
    figures("Ray Train", grown, shrunk, f"{len(steps) - len(set(steps))} steps done twice")


@large
def test_torchft(recipe: Recipe) -> None:
    """A replica group joins and goes: the others' steps go on one after the other."""
    job = recipe("torchft")
    wait_until(lambda: len(done(job)) > 3, 90, job.story)
    grown = grows(job, lambda: done(job)[-1].endswith(" 2"))
    shrunk = shrinks(job)
    wait_until(lambda: done(job)[-1].endswith(" 1"), 60, job.story)
    (job.folder / "end").touch()
    job.ends()
    steps = [int(line.split()[0]) for line in done(job)]
    assert steps == list(range(1, len(steps) + 1))
    figures("torchft", grown, shrunk, "no step done twice")


def test_a_training_of_the_shim_beside_them(empty_sandbox: Sandbox, tmp_path: Path) -> None:
    """For the same table: `selastic run` grows and shrinks as the recipes do, and trains on each sample once."""
    tmp_path.chmod(0o755)
    with FakeDaemon() as daemon:
        job = TrainingJob(empty_sandbox, tmp_path / "trains", "-N1 --gres=gpu:1", 20_000, daemon=daemon)
        wait_until(lambda: job.trained() > 3, 60, job.story)
        grown = grows(job, lambda: True)
        shrunk = shrinks(job)
        job.finish()
    figures("selastic run", grown, shrunk, "each sample once")


PLAIN = {
    "torchrun": (("torchrun",), {"STEPS": "1000"}),
    "torchft": (("torchft",), {}),
    "Ray": (("ray",), {"TASKS": "400"}),
    "Ray Train": (("ray", "train_ray.py", "8"), {}),
    "Dask": (("dask",), {"TASKS": "400"}),
    "sweep": (("sweep",), {"TASKS": "400"}),
}


@large
@pytest.mark.parametrize("option", ["", "--no-kill"])
@pytest.mark.parametrize("name", PLAIN)
def test_alone_on_plain_slurm(recipe: Recipe, empty_sandbox: Sandbox, name: str, option: str) -> None:
    """On two nodes without `selastic hold`: it never gets a third that is idle, and when one is lost Slurm ends the
    job, or starts it anew; with --no-kill it goes on where its framework does."""
    words, env = PLAIN[name]
    job = recipe(*words, alone=["-N2", *option.split()], **env)

    def progress() -> int:
        return len(list(job.folder.glob("done/*"))) if name == "sweep" else len(done(job))

    def both_work() -> bool:
        if name == "sweep":
            return any(job.folder.glob("doing.n2/*"))
        return any(line.endswith((" n2", " 2")) for line in done(job))

    wait_until(both_work, 120, job.story)
    assert int(job.slurm("sinfo", "-h", "-t", "idle", "-o", "%D").split()[0]) > 0 and job.field("NumNodes") == "2"
    before, lost = progress(), time.monotonic()
    try:
        job.slurm("scontrol", "update", "nodename=n2", "state=down", "reason=lost")
        if option:
            with suppress(AssertionError):
                wait_until(lambda: progress() > before + 8 or job.state() in OVER, 30)
            how = "goes on" if progress() > before + 8 else "stands still"
            what = f"{job.state()} on {job.field('NumNodes')} nodes, {how} after {time.monotonic() - lost:.1f} s"
            assert job.field("Restarts") == "0"
        else:
            wait_until(lambda: job.field("Restarts") == "1" or job.state() in OVER, 120, job.story)
            what = f"Slurm ended it: {job.state()}, restarts {job.field('Restarts')}, after {before} steps or tasks"
    finally:
        job.slurm("scancel", str(job.id))
        # Where its slurmd answers, Slurm may have taken it back by itself.
        empty_sandbox.run(["scontrol", "update", "nodename=n2", "state=resume"])
    print(f"{name} alone on Slurm{', ' * bool(option)}{option}: {what}")
