"""Growth needs no luck on a real Slurm that looks at companions rarely, or has little time for them."""

from __future__ import annotations

import pytest
from live_daemon import live_daemon
from site_cluster import SiteCluster
from training import on
from training_job import Start
from waiting import wait_until


def test_a_companion_waits_for_the_backfill_scheduler(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a wide job that waits, Slurm looks at it once in `bf_interval`, which is longer than companion_wait_s."""
    site.configure(SchedulerParameters="batch_sched_delay=0,sched_interval=2,bf_interval=15")
    with live_daemon(site.sandbox, monkeypatch, more="companion_wait_s = 1.0") as daemon:
        job = daemon.submit("-N1", "-wn1", "--gres=gpu:a100:4")
        site.sbatch("-N1", "-wn2", "--gres=gpu:4", "--time=60")
        wide = site.sbatch("-N8", "--gres=gpu:4", "--time=60")
        daemon.settles_at(job, 12, timeout=90)
        assert site.squeue(wide, "%T") == "PENDING"


def test_a_companion_that_outlasts_a_waiting_jobs_start_gets_the_time_until_then(
    site: SiteCluster, start: Start
) -> None:
    """A wide job is to start in twelve minutes: the companion is granted until then, and that start does not move; one
    on a node that nobody waits for has the time that its job has."""
    blocker = site.sbatch("-N1", "-wn2", "--gres=gpu:4", "--time=12")
    wait_until(lambda: site.squeue(blocker, "%T") == "RUNNING", 30)
    job = start("-N1 -wn1 --gres=gpu:1 --time=60", 8000)
    pieces = job.base()
    wide = site.sbatch("-N7", "-wn[2-8]", "--gres=gpu:4", "--time=60")
    begin = wait_until(lambda: (at := site.squeue(wide, "%S")) not in ("", "N/A") and at, 60)
    number = job.order(pieces, on("n3"), on("n1"), wait=60)
    limits = {}
    for companion in job.resized(number).pieces[1:]:
        hours, minutes, _ = job.field("TimeLimit", companion.slurm_job_id).split(":")
        limits[companion.nodes] = 60 * int(hours) + int(minutes)
    assert 9 <= limits["n3",] <= 12 and limits["n1",] >= 55
    assert site.squeue(wide, "%S") == begin
    job.finish()
