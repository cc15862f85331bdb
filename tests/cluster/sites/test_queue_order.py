"""The service `queue` on a real Slurm with priority/multifactor and the backfill scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from live_daemon import live_daemon
from site_cluster import SiteCluster
from waiting import wait_until

ON = 'services = ["queue=act"]\nsite_interval_s = 1.0\nqueue_weight = 5000'
WHOLE = ("-N8", "--gres=gpu:a100:4", "--time=60")
NEWCOMER = "news"
"""A user of whose jobs nothing is known; others' short jobs of earlier tests stand in slurmdbd."""


def start_again(site: SiteCluster) -> None:
    """slurmctld reads PriorityType only when it starts."""
    site.sandbox.daemons.stop("slurmctld")
    site.sandbox.start_daemon("slurmctld")


@pytest.fixture
def multifactor(site: SiteCluster) -> Iterator[SiteCluster]:
    site.configure(PriorityType="priority/multifactor", PriorityWeightAge="1000", PriorityCalcPeriod="1")
    start_again(site)
    site.sacctmgr("add", "user", NEWCOMER, "account=research")
    yield site
    site.reset()
    start_again(site)


def test_who_needs_less_starts_first_and_all_is_as_before_when_it_is_off(
    multifactor: SiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """games' programs are known to be short; the newcomer's, that came first, may take its hour. The order that
    `selastic queue` shows is the one in which Slurm starts them. Off, what was added is taken off again."""
    site = multifactor

    def factors() -> dict[str, str]:
        rows = site.sandbox.run(["sprio", "-h", "-o", "%i|%S"]).stdout.splitlines()
        return {row.split("|")[0].strip(): row.split("|")[1].strip() for row in rows}

    def state(job: int) -> str:
        return site.sandbox.run(["squeue", "-h", "-j", str(job), "-o", "%T"]).stdout.strip()

    for _ in range(2):
        job = site.sbatch(*WHOLE, wrap="sleep 1.1")
        wait_until(lambda job=job: not state(job), 60)  # type: ignore[misc]
    holds = site.sbatch(*WHOLE)
    late, early = site.sbatch(*WHOLE, user=NEWCOMER), site.sbatch(*WHOLE)
    with live_daemon(site.sandbox, monkeypatch, ON) as selasticd:
        wait_until(lambda: int(factors()[str(early)]) > int(factors()[str(late)]) > 0, 60, selasticd.log)
        shown = json.loads(selasticd.selastic("queue", "--json").stdout)
        assert [row["job_id"] for row in shown["jobs"]] == [early, late] and shown["mode"] == "act"
        assert shown["jobs"][0]["start"] < shown["jobs"][1]["start"]
        assert "probably runs for" in selasticd.selastic("queue").stdout
        site.sandbox.run(["scancel", str(holds)])
        wait_until(lambda: state(early) == "RUNNING", 60, selasticd.log)
        assert state(late) == "PENDING"
        selasticd.kill(15)
        selasticd.more = "site_interval_s = 1.0"
        selasticd.start()
        wait_until(lambda: factors()[str(late)] == "0", 60, selasticd.log)
        assert "queue is off" in selasticd.selastic("queue").stderr
