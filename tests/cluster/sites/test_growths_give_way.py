"""A growth under way, or one that has failed, does not keep its job from giving way to a job that waits."""

from __future__ import annotations

import pytest
from live_daemon import live_daemon
from site_cluster import COLLEAGUE, SiteCluster
from waiting import wait_until


def test_a_growth_that_warms_up_is_withdrawn_for_a_waiting_job(
    site: SiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its companions hold all idle nodes, and their workers are not ready: the waiting job gets one of them now, not
    when the time for the growth is over."""
    with live_daemon(site.sandbox, monkeypatch, "companion_wait_s = 600.0") as daemon:
        site.sbatch("-N5", "--gres=gpu:a100:4", user=COLLEAGUE)
        elastic = daemon.submit("-N1", "--gres=gpu:a100:4", hold="granted")
        wait_until(lambda: daemon.held(elastic) == 12, 60, daemon.log)
        rigid = daemon.rigid(1)
        wait_until(lambda: site.squeue(rigid, "%T") == "RUNNING", 120, daemon.log)
        assert "resize_overtaken" in daemon.events(elastic)
        wait_until(lambda: daemon.held(elastic) == 8, 60, daemon.log)
        (daemon.stubs / f"{elastic}.go").touch()
        daemon.settles_at(elastic, 8)


def test_a_job_whose_growth_failed_gives_way(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not grow for a while, and that is all."""
    with live_daemon(site.sandbox, monkeypatch, "failed_backoff_s = 3600.0") as daemon:
        site.sbatch("-N5", "--gres=gpu:a100:4", user=COLLEAGUE)
        elastic = daemon.submit("-N2", "--gres=gpu:a100:4", hold="fail")
        wait_until(lambda: daemon.trains_on(elastic) == 8, 60, daemon.log)
        wait_until(lambda: "resize_failed" in daemon.events(elastic), 60, daemon.log)
        daemon.settles_at(elastic, 8)
        rigid = daemon.rigid(2)
        wait_until(lambda: site.squeue(rigid, "%T") == "RUNNING", 120, daemon.log)
        daemon.settles_at(elastic, 4)
