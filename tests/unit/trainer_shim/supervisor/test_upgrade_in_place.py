"""slurm-elastic is replaced on the disk while a job runs: real processes of two builds."""

from __future__ import annotations

import shutil
from pathlib import Path

from local_run import Start, kill
from next_build import next_build
from training import on

ROOT = Path(__file__).parents[4]


def test_a_joiner_of_the_new_build_is_refused_until_the_job_is_of_it_too(start: Start, tmp_path: Path) -> None:
    """A companion, which would run the new files, is refused with one sentence, and training goes on. When the batch
    host's agent is lost, all of the job is of the new build from then on, and grows."""
    code, following = tmp_path / "code", next_build(tmp_path / "next").path
    for name in ("protocol", "trainer_shim"):
        shutil.copytree(ROOT / name, code / "slurm_elastic" / name, ignore=shutil.ignore_patterns("__pycache__"))
    run = start("--nproc 2", 4000, 1, 0.1, env={"PYTHONPATH": str(code)})
    base = run.base()
    shutil.copytree(following, code, dirs_exist_ok=True)
    number = run.order(base, on())
    assert " has another slurm-elastic (" in run.daemon.wait_phase(number, "failed").detail
    assert "starting" not in run.text()
    run.wait_for(lambda: len(run.agents()) == 1)  # the refused one has gone
    kill(*run.agents().values())
    run.says("; starting over with it")
    run.says("generation 2: 2 workers")
    run.resize(base, on(), steps=0)
    run.finish()
