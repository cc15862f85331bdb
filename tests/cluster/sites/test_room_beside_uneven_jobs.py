"""Waiting jobs come first also where some job holds other GPUs on its nodes than it asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_daemon import Selasticd, live_daemon
from site_cluster import COLLEAGUE, SiteCluster
from waiting import wait_until

from slurm_elastic.daemon.slurm import CommandClient


@pytest.fixture
def daemon(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selasticd]:
    with live_daemon(site.sandbox, monkeypatch) as started:
        yield started


def test_elastic_jobs_give_way_beside_jobs_that_hold_more_than_they_asked_for(
    site: SiteCluster, daemon: Selasticd
) -> None:
    """One GPU asked for with --exclusive, or in a partition of whole nodes, is four; six on two nodes are four and
    two. Each of them used to stop all giving way, without a word."""
    exclusive = site.sbatch("--exclusive", "-N1", "-wn1", "--gres=gpu:1", user=COLLEAGUE)
    whole = site.sbatch("-pwhole", "-N1", "-wn2", "--gres=gpu:1", user=COLLEAGUE)
    spread = site.sbatch("-N2", "-wn[3-4]", "--gpus=6", user=COLLEAGUE)
    others = (exclusive, whole, spread)
    wait_until(lambda: all(site.squeue(job, "%T") == "RUNNING" for job in others), 60, daemon.log)
    jobs = CommandClient(site.sandbox.env["SLURM_CONF"]).snapshot().jobs
    assert [(jobs[job].gpus, jobs[job].gpus_per_node) for job in others] == [(4, 4), (4, 4), (6, 0)]
    elastic = daemon.submit("-N1", "-wn5", "--gres=gpu:a100:4")
    daemon.settles_at(elastic, 12)
    rigid = daemon.rigid(2)
    wait_until(lambda: site.squeue(rigid, "%T") == "RUNNING", 60, daemon.log)
    daemon.settles_at(elastic, 8)


def test_an_exclusive_elastic_job_is_managed_with_all_it_holds(site: SiteCluster, daemon: Selasticd) -> None:
    """Two GPUs a node asked for with --exclusive are four held and trained on; it gives its nodes up like any other."""
    elastic = daemon.submit("-N3", "--exclusive", "--gres=gpu:a100:2")
    daemon.settles_at(elastic, 12)
    daemon.rigid(5)
    rigid = daemon.rigid(1)
    wait_until(lambda: site.squeue(rigid, "%T") == "RUNNING", 60, daemon.log)
    daemon.settles_at(elastic, 8)


def test_a_job_behind_one_of_another_partition_counts(site: SiteCluster, daemon: Selasticd) -> None:
    """A job that needs all nodes waits in another partition. Slurm then says of all others that their nodes are DOWN,
    DRAINED or reserved; one that fits before it is given way to all the same."""
    site.sbatch("-N5", "--gres=gpu:4", "--time=30", user=COLLEAGUE)
    elastic = daemon.submit("-N1", "--gres=gpu:a100:4")
    daemon.settles_at(elastic, 12)
    daemon.kill()
    wide = site.sbatch("-pwhole", "-N8", "--gres=gpu:4", "--time=30", user=COLLEAGUE)
    site.wait_for_reason(wide, "Resources")
    small = site.sbatch("-N1", "--gres=gpu:4", "--time=2", user=COLLEAGUE)
    wait_until(lambda: site.squeue(small, "%r").startswith("Nodes required"), 60, lambda: site.squeue(small, "%r"))
    daemon.start()
    wait_until(lambda: site.squeue(small, "%T") == "RUNNING", 60, daemon.log)
