"""Slurm's limits of minutes, its order of QOS and associations, and who may use companions' QOS: on a real Slurm."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from urllib.request import urlopen

import pytest
from live_daemon import Selasticd, live_daemon
from site_cluster import COLLEAGUE, SiteCluster
from training_job import Start
from waiting import wait_until

from slurm_elastic.daemon.sandbox.host import slurm_release
from slurm_elastic.daemon.slurm.commands import ASKED_OF_SLURMDBD_S

WIDE = "elastic:gpus=4-32,step=4,batch=240-3840"
OFTEN = "site_interval_s = 1.0"
BASE = ("-N1", "--gres=gpu:a100:4", "--time=30")


def tells(daemon: Selasticd, job: int, words: str) -> None:
    """Wait until `explain` has these words."""

    def told() -> str:
        return " ".join(daemon.selastic("explain", str(job)).stdout.split())

    wait_until(lambda: words in told(), 60, lambda: f"{told()}\n{daemon.log()}")


def no_companion_waits(daemon: Selasticd, job: int) -> None:
    """Slurm held none of the job's back, for a limit that selasticd did not know."""
    events = str(daemon.client().get(f"/v1/jobs/{job}/events"))
    before, kept, after = events.partition("keeps companion")
    assert not kept, before[-600:] + kept + after[:600]


def test_run_minutes_are_kept_and_given_back(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """GrpTRESRunMins: the job grows as far as it leads, and no companion waits for it; a colleague's job that waits for
    it gets its share."""
    site.limit("account", "research", GrpTRESRunMins="gres/gpu=365")
    with live_daemon(site.sandbox, monkeypatch, OFTEN) as selasticd:
        job = selasticd.submit(*BASE, comment=WIDE)
        selasticd.settles_at(job, 12)
        tells(selasticd, job, "gres/gpu run minutes=365 (account research)")
        colleagues = site.sbatch("-N1", "--gres=gpu:4", "--time=27", user=COLLEAGUE)
        wait_until(lambda: site.squeue(colleagues, "%T") == "RUNNING", 60, selasticd.log)
        selasticd.settles_at(job, 8)
        no_companion_waits(selasticd, job)


@pytest.mark.parametrize("each", ["user", "account"])
def test_run_minutes_of_each_in_a_qos(site: SiteCluster, monkeypatch: pytest.MonkeyPatch, each: str) -> None:
    """MaxTRESRunMinsPerUser and PerAccount are kept as GrpTRESRunMins is, where Slurm holds jobs to them (24.05)."""
    site.limit("qos", "capped", **{f"MaxTRESRunMinsP{each[0].upper()}": "gres/gpu=365"})
    with live_daemon(site.sandbox, monkeypatch, OFTEN) as selasticd:
        job = selasticd.submit(*BASE, "--qos=capped", comment=WIDE)
        if slurm_release(site.sandbox.spec) < (24, 5):
            selasticd.settles_at(job, 32)
        else:
            selasticd.settles_at(job, 12)
            tells(selasticd, job, f"gres/gpu run minutes=365 (QOS capped, each {each})")
        no_companion_waits(selasticd, job)


def test_what_one_job_may_use_in_minutes(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """MaxTRESMinsPerJob holds for base and companions together."""
    site.limit("qos", "capped", MaxTRESMinsPerJob="gres/gpu=250")
    with live_daemon(site.sandbox, monkeypatch, OFTEN) as selasticd:
        job = selasticd.submit(*BASE, "--qos=capped", comment=WIDE)
        selasticd.settles_at(job, 8)
        tells(selasticd, job, "gres/gpu minutes=250 of each job (QOS capped)")


def start_again(site: SiteCluster) -> None:
    """slurmctld reads these lines only when it starts."""
    site.sandbox.daemons.stop("slurmctld")
    site.sandbox.start_daemon("slurmctld")


@pytest.fixture
def safe_limits(site: SiteCluster) -> Iterator[None]:
    """AccountingStorageEnforce has `safe`, until the test is over."""
    site.configure(AccountingStorageEnforce="associations,limits,qos,safe")
    start_again(site)
    yield
    site.reset()
    start_again(site)


@pytest.fixture
def counted_use(site: SiteCluster) -> Iterator[None]:
    """Slurm counts what jobs have used, each minute, until the test is over."""
    site.configure(PriorityType="priority/multifactor", PriorityCalcPeriod="1")
    start_again(site)
    yield
    site.reset()
    for kind, name in (("account", "research"), ("qos", "capped"), ("qos", "normal")):
        site.sacctmgr("modify", kind, name, "set", "RawUsage=0")
    start_again(site)


def test_minutes_that_are_left(site: SiteCluster, safe_limits: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """GrpWall, of which a companion needs as much as its job has left; then GrpTRESMins. Slurm starts nothing that
    could use them up."""
    site.limit("qos", "capped", GrpWall=50)
    site.limit("account", "research", GrpTRESMins="gres/gpu=485")
    with live_daemon(site.sandbox, monkeypatch, OFTEN) as selasticd:
        small = selasticd.submit(*BASE, "--qos=capped", comment=WIDE)
        tells(selasticd, small, "Slurm's limit wall minutes left=")
        job = selasticd.submit(*BASE, comment=WIDE)
        selasticd.settles_at(job, 12)
        assert selasticd.held(small) == 4
        for one in (small, job):
            no_companion_waits(selasticd, one)


@pytest.mark.skipif("SELASTIC_EVERYWHERE" not in os.environ, reason="takes minutes: `make soak-cluster` runs it")
def test_minutes_that_are_used_up(
    site: SiteCluster, counted_use: None, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """GrpTRESMins, then GrpWall, without `safe`: jobs grow until Slurm ends them, base and companions alike, and no
    companion is asked for after that. What was trained is in a checkpoint, but for the step under way at most."""
    site.limit("account", "research", GrpTRESMins="gres/gpu=8")
    with live_daemon(site.sandbox, monkeypatch, OFTEN) as selasticd:
        job = selasticd.submit(*BASE, comment=WIDE)
        selasticd.settles_at(job, 32)
        wait_until(lambda: site.squeue(job, "%T") == "TIMEOUT", 150, selasticd.log)
        wait_until(lambda: not selasticd.companions(), 60, selasticd.log)
        late = selasticd.submit(*BASE, comment=WIDE)
        site.wait_for_reason(late, "AssocGrpGRESMinutes")
        events = str(selasticd.client().get(f"/v1/jobs/{job}/events"))
        assert "keeps companion" not in events and not selasticd.companions()
    site.limit("account", "research", GrpTRESMins="gres/gpu=-1")
    site.limit("qos", "capped", GrpWall=1)
    training = start("--gres=gpu:1 --qos=capped", 100_000)
    companion = training.grow()
    training.comes_to("TIMEOUT", timeout=200)  # Slurm counts once a minute
    assert training.saved() >= training.trained() - 1, training.text()
    wait_until(lambda: site.squeue(companion.slurm_job_id, "%T") in ("TIMEOUT", "CANCELLED"), 60, training.text)


def test_a_qos_over_that_of_the_partition(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """OverPartQOS: the job's own QOS says how much it may have, and not the partition's."""
    partition = ["scontrol", "update", "partitionname=whole"]
    site.limit("qos", "second", MaxTRESPerUser="gres/gpu=8")
    site.limit("qos", "capped", MaxTRESPerUser="gres/gpu=12")
    site.sacctmgr("modify", "qos", "capped", "set", "flags=OverPartQOS")
    site.sandbox.run([*partition, "qos=second"])
    try:
        with live_daemon(site.sandbox, monkeypatch, OFTEN) as selasticd:
            job = selasticd.submit("-pwhole", "--qos=capped", "-N1", "--gres=gpu:a100:4", comment=WIDE)
            selasticd.settles_at(job, 12)
            tells(selasticd, job, "gres/gpu=12 (QOS capped, each user)")
    finally:
        site.sandbox.run([*partition, "qos="])
        site.sacctmgr("modify", "qos", "capped", "set", "flags=-1")


def test_an_association_with_one_partition(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it limits holds there alone, in place of what the user's other association does."""
    own = ("user", "name=games", "account=research", "partition=low")
    site.sacctmgr("add", *own)
    site.sacctmgr("modify", "user", "where", *own[1:], "set", "GrpTRES=gres/gpu=8")
    try:
        with live_daemon(site.sandbox, monkeypatch, OFTEN) as selasticd:
            there = selasticd.submit("-plow", *BASE, comment=WIDE)
            selasticd.settles_at(there, 8)
            tells(selasticd, there, "partition low) leaves")
            here = selasticd.submit(*BASE, comment=WIDE)
            selasticd.settles_at(here, 24)
    finally:
        site.reset()
        site.sacctmgr("delete", "user", "where", *own[1:])


def test_a_user_who_may_not_use_the_qos_of_companions(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """No companion is asked for, and `explain` says why; with leave to, the job grows."""
    site.sacctmgr("modify", "user", "games", "set", "qos-=second")
    with live_daemon(site.sandbox, monkeypatch, f'companion_qos = "second"\n{OFTEN}') as selasticd:
        job = selasticd.submit(*BASE)
        tells(selasticd, job, "games may not use the QOS of companions with account research")
        assert not selasticd.companions() and "resize_submitted" not in selasticd.events(job)
        site.sacctmgr("modify", "user", "games", "set", "qos+=second")
        selasticd.settles_at(job, 12)


def test_slurmdbd_that_does_not_answer(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round waits for it, a bounded time, and who may use the QOS of companions stays as it was read before."""
    site.sacctmgr("modify", "user", "games", "set", "qos-=second")
    slurmdbd = site.sandbox.daemons.pid("slurmdbd")
    with live_daemon(site.sandbox, monkeypatch, f'companion_qos = "second"\n{OFTEN}') as selasticd:

        def waited() -> bool:
            with urlopen(f"{selasticd.client().url}/metrics", timeout=30) as answer:
                shown = re.search(r'round_seconds{part="observe"} (\S+)', answer.read().decode())
            return shown is not None and float(shown[1]) > ASKED_OF_SLURMDBD_S

        not_his = "games may not use the QOS of companions with account research"
        job = selasticd.submit(*BASE)
        tells(selasticd, job, not_his)
        os.kill(slurmdbd, signal.SIGSTOP)
        try:
            wait_until(waited, 60, selasticd.log)
            another = selasticd.submit(*BASE)
            tells(selasticd, another, not_his)
            assert "resize_submitted" not in selasticd.events(job) + selasticd.events(another)
        finally:
            os.kill(slurmdbd, signal.SIGCONT)
            site.sacctmgr("modify", "user", "games", "set", "qos+=second")
