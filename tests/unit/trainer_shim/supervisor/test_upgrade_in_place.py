"""slurm-elastic is replaced on the disk while a job runs: real processes of two builds."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import audited
from fake_daemon import FakeDaemon
from local_run import Run
from next_build import next_build
from waiting import wait_until

from slurm_elastic.protocol.messages import Shape

ROOT = Path(__file__).parents[4]


def test_a_joiner_of_the_new_build_is_refused_until_the_job_is_of_it_too(
    start: Callable[..., Run], tmp_path: Path
) -> None:
    """A companion, which would run the new files, is refused with one sentence, and training goes on. When the batch
    host's agent is lost, all of the job is of the new build from then on, and grows."""
    code, following = tmp_path / "code", next_build(tmp_path / "next")
    for name in ("protocol", "trainer_shim"):
        shutil.copytree(ROOT / name, code / "slurm_elastic" / name, ignore=shutil.ignore_patterns("__pycache__"))
    with FakeDaemon() as daemon:
        words = ("--nproc", "2", "--audit", str(tmp_path / "audit"), "train.py", "4000", "1", "0.1")
        run = start(*words, env={**daemon.env(tmp_path), "PYTHONPATH": str(code)})
        base = daemon.wait_registered().pieces
        shutil.copytree(following, code, dirs_exist_ok=True)
        daemon.order(1, 0, base, (Shape(1, 1),))
        assert " has another slurm-elastic (" in daemon.wait_phase(1, "failed").detail
        assert "starting" not in run.text()
        wait_until(lambda: len(run.agents()) == 1, 60, run.text)  # the refused one has gone
        [agent] = run.agents().values()
        os.kill(agent, signal.SIGKILL)
        run.says("; starting over with it")
        run.says("generation 2: 2 workers")
        daemon.order(2, 0, base, (Shape(1, 1),))
        daemon.wait_phase(2, "running")
        (tmp_path / "go").touch()
        assert run.wait() == 0, run.text()
    result = audited.check(tmp_path / "audit", 4000, 1)
    assert result.ok, result
