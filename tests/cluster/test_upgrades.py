"""Jobs that live through an upgrade of the daemon, on a real Slurm: real trainings, a real selasticd of two builds."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from live_daemon import Selasticd, live_daemon
from next_build import next_build
from training_job import TrainingJob
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.protocol.codec import VERSION

OPTIONS = "-N1 --gres=gpu:a100:1 -c1 --time=20 --comment=elastic:gpus=1-2,batch=16-64"


def test_jobs_of_two_builds_are_resized_before_and_after_an_upgrade(
    empty_sandbox: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One job is of the daemon's build, the other of the next one, whose messages have further fields and lack others.
    Both are resized by each daemon, and no sample is lost."""
    following = next_build(tmp_path / "next")
    tmp_path.chmod(0o755)
    with live_daemon(empty_sandbox, monkeypatch) as daemon:
        jobs = [_start(daemon, tmp_path / name, path) for name, path in (("this", ""), ("other", str(following)))]
        for version, gpus in ((VERSION, 2), (VERSION + 1, 1)):
            if version != VERSION:
                assert daemon.kill(signal.SIGTERM) == 0, daemon.log()
                daemon.build = following
                daemon.start()
            health = daemon.client().get("/v1/health") or {}
            assert health["version"] == version
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


def _start(daemon: Selasticd, folder: Path, path: str) -> TrainingJob:
    env = daemon.found | ({"PYTHONPATH": path} if path else {})
    job = TrainingJob(daemon.sandbox, folder, OPTIONS, 16000, 1, 0.05, env=env)
    wait_until(lambda: daemon.trains_on(job.id), 120, job.text)
    return job
