"""Jobs that live through an upgrade of the daemon, on a real Slurm: real trainings, a real selasticd of two builds."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from live_daemon import Selasticd, live_daemon
from next_build import THIS, Build, former_build, next_build
from training_job import TrainingJob
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox

OPTIONS = "-N1 --gres=gpu:a100:1 -c1 --time=20 --comment=elastic:gpus=1-2,batch=16-64"


@pytest.mark.parametrize("other", ["next", "former"])
def test_jobs_of_two_builds_are_resized_before_and_after_an_upgrade(
    empty_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """One job is of this build, the other of the next one, whose messages have further fields and lack others, or of
    the release before. Both are resized by the daemon before the upgrade, and by that after it, and no sample is
    lost."""
    tmp_path.chmod(0o755)
    if other == "next":
        builds = THIS, next_build(tmp_path / "build")
    else:
        if "SELASTIC_FORMER" not in os.environ:
            pytest.skip("make test-upgrade tries the release before")
        former = former_build(tmp_path / "build")
        if former is None:
            pytest.skip("this checkout has no history with the release before in it")
        builds = former, THIS
    with live_daemon(empty_sandbox, monkeypatch, build=builds[0]) as daemon:
        jobs = [_start(daemon, tmp_path / f"job{number}", build) for number, build in enumerate(builds)]
        for build, gpus in zip(builds, (2, 1), strict=True):
            if daemon.build != build:
                assert daemon.kill(signal.SIGTERM) == 0, daemon.log()
                daemon.build = build
                daemon.start()
            health = daemon.client().get("/v1/health") or {}
            assert health["version"] == build.version
            for job in jobs:
                assert daemon.selastic("pin", str(job.id), str(gpus)).returncode == 0
            for job in jobs:
                daemon.settles_at(job.id, gpus, 90)
        for job in jobs:
            job.go()
        for job in jobs:
            job.finish()
            kinds = daemon.events(job.id)
            assert kinds.count("resize_done") >= 2 and "not_understood" not in kinds, job.text()
            assert "resize_failed" not in kinds and "resize_withdrawn" not in kinds, job.text()
            assert (daemon.client().get(f"/v1/jobs/{job.id}") or {})["step_time_s"], job.text()


def _start(daemon: Selasticd, folder: Path, build: Build) -> TrainingJob:
    job = TrainingJob(
        daemon.sandbox, folder, OPTIONS, 16000, 1, 0.05, env=daemon.found | {"PYTHONPATH": str(build.path)}
    )
    wait_until(lambda: daemon.trains_on(job.id), 120, job.text)
    return job
