"""Slurm's shares on a real Slurm whose priorities count them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from live_daemon import live_daemon
from site_cluster import COLLEAGUE, SiteCluster
from waiting import wait_until

WIDE = "elastic:gpus=4-32,step=4,batch=240-3840"
BASE = ("-N1", "--gres=gpu:a100:4", "--time=30")
ACCOUNT = "account=research"
SETTINGS = 'fairness = "auto"\nsite_interval_s = 1.0'


def start_again(site: SiteCluster) -> None:
    """slurmctld reads PriorityType only when it starts."""
    site.sandbox.daemons.stop("slurmctld")
    site.sandbox.start_daemon("slurmctld")


@pytest.fixture
def counting(site: SiteCluster) -> Iterator[SiteCluster]:
    """Priorities count fair-share, and games has three times the shares of a colleague."""
    site.configure(PriorityType="priority/multifactor", PriorityWeightFairshare="1000")
    start_again(site)
    site.sacctmgr("modify", "user", "games", "where", ACCOUNT, "set", "fairshare=3")
    yield site
    site.sacctmgr("modify", "user", "games", "where", ACCOUNT, "set", "fairshare=1")
    site.reset()
    start_again(site)


def test_the_shares_of_slurm_are_those_of_the_plan(counting: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """With `auto`: games, with three times the shares, gets more than a colleague, and is told whose share it is."""
    with live_daemon(counting.sandbox, monkeypatch, SETTINGS) as selasticd:
        mine = selasticd.submit(*BASE, comment=WIDE)
        other = selasticd.submit(*BASE, comment=WIDE, user=COLLEAGUE)

        def told() -> str:
            return " ".join(selasticd.selastic("explain", str(mine)).stdout.split())

        def held() -> list[int]:
            return [selasticd.held(job) for job in (mine, other)]

        words = "account research, user games: 1 elastic job has 75.0% of the weight"
        wait_until(lambda: words in told(), 30, lambda: f"{told()}\n{selasticd.log()}")
        wait_until(lambda: sum(held()) == 32 and held()[0] >= held()[1] + 8 >= 16, 30, selasticd.log)
