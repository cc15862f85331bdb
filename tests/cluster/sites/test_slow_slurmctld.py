"""slurmctld that hangs in the middle of a round costs that round one call, however much it has to do."""

from __future__ import annotations

import pytest
from live_daemon import live_daemon
from site_cluster import SiteCluster
from waiting import wait_until

HANG_S = 30.0
"""Three times Slurm's own MessageTimeout: one call of the round, then the next round's look, run into it."""


def test_a_hang_in_the_middle_of_a_round_costs_one_call(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three shrinks are due; the first hangs slurmctld. The others wait for the next round, and all are made."""
    with live_daemon(site.sandbox, monkeypatch) as selasticd:
        size = "elastic:gpus=4-8,step=4,batch=240"
        jobs = [selasticd.submit("-N2", "--gres=gpu:a100:4", comment=size, hold="ready") for _ in range(3)]
        logs = [selasticd.stubs / f"{job}.log" for job in jobs]
        for job in jobs:
            selasticd.settles_at(job, 8)
            selasticd.selastic("pin", str(job), "4")
        wait_until(lambda: all(log.exists() and "holds at ready" in log.read_text() for log in logs), 60, selasticd.log)
        site.hang_at_next_shrink(HANG_S)
        selasticd.kill()  # so that one round sees all of them switch
        for job in jobs:
            (selasticd.stubs / f"{job}.go").touch()
        wait_until(lambda: all("running 4" in log.read_text() for log in logs), 60, selasticd.log)
        selasticd.start()
        wait_until(lambda: "could not be observed" in selasticd.log(), 90, selasticd.log)
        assert selasticd.log().count("Slurm does not answer") == 1
        for job in jobs:
            selasticd.settles_at(job, 4, 90)
