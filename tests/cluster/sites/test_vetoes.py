"""A site's job_submit.lua refuses what selasticd asks: that concerns those jobs, and nobody else."""

from __future__ import annotations

import pytest
from live_daemon import Selasticd, live_daemon
from site_cluster import SiteCluster
from waiting import wait_until

SIZE = "elastic:gpus=4-8,step=4,batch=240-3840"


def test_vetoed_shrinks_of_one_partition_concern_nobody_else(
    site: SiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many as make a partition rest are refused: selasticd still acts, and a job of another one gives way."""
    site.veto("modify", "sizes are fixed here", partition="low")
    with live_daemon(site.sandbox, monkeypatch, "trip_after = 2") as selasticd:
        low = [selasticd.submit("-plow", "-N2", "--gres=gpu:a100:4", comment=SIZE) for _ in range(2)]
        other = selasticd.submit("-N2", "--gres=gpu:a100:4", comment=SIZE)
        for job in (*low, other):
            selasticd.settles_at(job, 8)
        for job in low:
            selasticd.selastic("pin", str(job), "4")
        wait_until(lambda: "rests" in selasticd.events(0), 60, selasticd.log)
        for job in low:
            selasticd.settles_at(job, 8)  # what Slurm did not take is trained on again
        rigid = selasticd.rigid(3)
        wait_until(lambda: selasticd.jobs()[rigid].running, 60, selasticd.log)
        selasticd.settles_at(other, 4)
        assert health(selasticd)["mode"] == "act"
        assert "tripped" not in selasticd.events(0)


def health(selasticd: Selasticd) -> dict[str, object]:
    return selasticd.client().get("/v1/health") or {}
