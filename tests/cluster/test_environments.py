"""Other people's environments, on a real Slurm: where a job lies, and what its batch script has set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_daemon import FakeDaemon
from sandbox_jobs import cancel_all
from training_job import TrainingJob

from slurm_elastic.daemon.sandbox import Sandbox

NO_UTF8 = "export LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0\n"
ENVIRONMENTS = {
    "my dür (2)": (NO_UTF8, ""),
    "plain": ("export LC_ALL=POSIX\numask 077\n", ""),
    "bare": ("set -euo pipefail\nunset HOME TMPDIR\n", "--export=NONE"),
}
"""By the job's directory: what its script does first, and options of sbatch."""


@pytest.fixture(scope="module")
def jobs(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, TrainingJob]]:
    """All of them side by side: each takes a while to import torch."""
    root, started = tmp_path_factory.mktemp("environments"), {}
    for name, (script, options) in ENVIRONMENTS.items():
        how = {"script": script + "exec {run}", "name": "träin.py"}
        started[name] = TrainingJob(
            sandbox, root / name, f"-N1 --gres=gpu:1 {options}", 400, 1, 0, daemon=FakeDaemon(), **how
        )
    yield started
    for job in started.values():
        job.daemon.close()
    cancel_all(sandbox)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_it_trains_there(jobs: dict[str, TrainingJob], name: str) -> None:
    """To its end, with its directory where the job lies, and selasticd hears its program's name."""
    job = jobs[name]
    job.finish(150)
    assert job.daemon.wait_registered().program == "träin.py 400 1 0"
    [run] = (job.folder / ".selastic").iterdir()
    assert run.name == str(job.id) and list(run.glob("checkpoints/step-*"))
    assert job.folder.parent.joinpath("my").exists() is False
