"""Slurm's shares on a real Slurm whose priorities count them."""

from __future__ import annotations

import re
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
    site.sacctmgr("modify", "qos", "second", "set", "UsageFactor=1")
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


def test_companions_in_a_qos_without_usage_cost_no_share(
    counting: SiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With UsageFactor=0 for the companions' QOS the user is charged the job's own nodes, and no more."""

    def used() -> int:
        shown = counting.sandbox.run(["sshare", "-nP", "-A", "research", "-u", "games", "-o", "User,RawUsage"]).stdout
        return next(int(line.partition("|")[2]) for line in shown.splitlines() if line.startswith("games|"))

    def field(job: int, name: str) -> str:
        shown = counting.sandbox.run(["scontrol", "-o", "show", "job", str(job)]).stdout
        return re.search(rf"\b{name}=(\S+)", shown)[1]  # type: ignore[index]

    def ran(job: int) -> float:
        hours, minutes, seconds = map(int, field(job, "RunTime").split(":"))
        return 3600 * hours + 60 * minutes + seconds

    counting.sacctmgr("modify", "qos", "second", "set", "UsageFactor=0")
    before = used()
    own = 'companion_qos = "second"\nsite_interval_s = 1.0'
    with live_daemon(counting.sandbox, monkeypatch, own) as selasticd:
        job = selasticd.submit(*BASE, comment=WIDE)
        selasticd.settles_at(job, 32)
        companions = [companion.job_id for companion in selasticd.companions()]
        wait_until(lambda: all(ran(companion) >= 5 for companion in companions), 60, selasticd.log)
        selasticd.finish(job)
        wait_until(lambda: not selasticd.jobs(), 60, selasticd.log)
        each = int(field(job, "billing").partition(",")[0])
        assert each * (ran(job) - 2) <= used() - before <= each * (ran(job) + 2)
