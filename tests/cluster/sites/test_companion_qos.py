"""Companions in a QOS of their own on a real Slurm: its limits hold for them, preemption by QOS takes them alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_daemon import live_daemon
from site_cluster import SiteCluster
from training import on
from training_job import Start
from waiting import wait_until

from slurm_elastic.daemon.slurm import CommandClient


@pytest.fixture
def preemption_by_qos(site: SiteCluster) -> Iterator[None]:
    """Jobs of QOS `capped` preempt those of `second`, until the test is over."""

    def start_again() -> None:
        site.sandbox.daemons.stop("slurmctld")
        site.sandbox.start_daemon("slurmctld")

    site.sacctmgr("modify", "qos", "capped", "set", "preempt=second")
    site.configure(PreemptType="preempt/qos")
    start_again()
    yield
    site.sacctmgr("modify", "qos", "capped", "set", "preempt=")
    site.reset()
    start_again()


def test_companions_have_the_limits_of_their_own_qos(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those of their job's, which is full: the job grows as far as their own allows, and that one is named."""
    for qos, gpus in (("capped", 4), ("second", 8)):
        site.limit("qos", qos, MaxTRESPerUser=f"gres/gpu={gpus}")
    more = 'companion_qos = "second"\nsite_interval_s = 1.0'
    with live_daemon(site.sandbox, monkeypatch, more) as selasticd:
        job = selasticd.submit("-N1", "--gres=gpu:a100:4", "--qos=capped", comment="elastic:gpus=4-32,batch=240-3840")
        selasticd.settles_at(job, 12)
        assert {companion.qos for companion in selasticd.companions()} == {"second"}
        named = "gres/gpu=8 (QOS second, each user)"
        wait_until(lambda: named in " ".join(selasticd.selastic("explain", str(job)).stdout.split()), 60, selasticd.log)
    assert {"capped", "second", "normal"} <= CommandClient(site.sandbox.env["SLURM_CONF"]).qos_names()


def test_preemption_by_qos_takes_the_companion_alone(site: SiteCluster, preemption_by_qos: None, start: Start) -> None:
    """A job that either the base's node or the companion's would do for: the base trains on without a restart."""
    job = start("--gres=gpu:1 -w n1")
    companion = job.resize(job.base(), on("n2", qos="second")).pieces[1].slurm_job_id
    assert site.squeue(companion, "%q") == "second"
    urgent = site.sbatch("--qos=capped", "-N1", "--exclude=n[3-8]", "--gres=gpu:4")
    wait_until(lambda: site.squeue(urgent, "%T") == "RUNNING", 120, job.text)
    assert site.squeue(urgent, "%N") == "n2"
    job.trains_on()
    assert job.state() == "RUNNING"
    assert "starting again" not in job.text(), job.text()
