"""Slurm's limits of accounts, users and QOS: what elastic jobs leave of them to others, and what they may take."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from live_daemon import Selasticd, live_daemon
from site_cluster import COLLEAGUE, SiteCluster
from waiting import wait_until

from slurm_elastic.daemon.slurm import CommandClient
from slurm_elastic.daemon.slurm.site import PartitionRules
from slurm_elastic.trainer_shim.allocation.companions import said

WIDE = "elastic:gpus=4-32,step=4,batch=240-3840"


@contextmanager
def daemon_at(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Selasticd]:
    """A daemon that knows the limits set until now, and within a second those set later."""
    with live_daemon(site.sandbox, monkeypatch, "site_interval_s = 1.0") as selasticd:
        yield selasticd


def starts(site: SiteCluster, daemon: Selasticd, job: int) -> None:
    """Wait until it runs."""
    wait_until(lambda: site.squeue(job, "%T") == "RUNNING", 60, daemon.log)


def test_a_colleagues_job_gets_its_share_of_a_limit(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes are idle, and the account's GrpTRES is filled by elastic growth: it is given back in part, and stays so."""
    site.limit("account", "research", GrpTRES="gres/gpu=16")
    with daemon_at(site, monkeypatch) as selasticd:
        job = selasticd.submit("-N1", "--gres=gpu:a100:4", comment=WIDE)
        selasticd.settles_at(job, 16)
        colleagues = site.sbatch("-N1", "--gres=gpu:4", user=COLLEAGUE)
        starts(site, selasticd, colleagues)
        selasticd.settles_at(job, 12)


def test_the_users_own_next_jobs_start(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """MaxTRESPerUser of a QOS in which Slurm had counted nobody's jobs when its limits were read; then MaxJobs, where
    companions are jobs."""
    site.limit("qos", "capped", MaxTRESPerUser="gres/gpu=12")
    with daemon_at(site, monkeypatch) as selasticd:
        job = selasticd.submit("-N1", "--gres=gpu:a100:4", "--qos=capped", comment=WIDE)
        selasticd.settles_at(job, 12)
        own = site.sbatch("--qos=capped", "-N1", "--gres=gpu:4")
        starts(site, selasticd, own)
        selasticd.settles_at(job, 8)
        site.limit("user", "games", MaxJobs=3)
        following = site.sbatch("-N1")  # no GPU: only the companion's place as a job
        starts(site, selasticd, following)
        selasticd.settles_at(job, 4)


def test_a_partitions_qos_limits_its_jobs(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever QOS they have themselves."""
    partition = ["scontrol", "update", "partitionname=whole"]
    site.limit("qos", "second", MaxTRESPerUser="gres/gpu=8")
    site.sandbox.run([*partition, "qos=second"])
    try:
        with daemon_at(site, monkeypatch) as selasticd:
            job = selasticd.submit("-pwhole", "-N1", "--gres=gpu:a100:4", comment=WIDE)
            selasticd.settles_at(job, 8)
            named = "gres/gpu=8 (QOS second, each user)"
            wait_until(lambda: named in " ".join(selasticd.selastic("explain", str(job)).stdout.split()), 60)
    finally:
        site.sandbox.run([*partition, "qos="])


def test_companions_leave_the_user_a_job_to_submit(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """MaxSubmitJobs=2: base and a companion would be all. The user can submit, and `explain` names the limit."""
    site.limit("user", "games", MaxSubmitJobs=2)
    with daemon_at(site, monkeypatch) as selasticd:
        job = selasticd.submit("-N1", "--gres=gpu:a100:4", comment=WIDE)
        wait_until(lambda: "submits=2" in selasticd.selastic("explain", str(job)).stdout, 60, selasticd.log)
        assert not selasticd.companions()
        site.sbatch("-N1")


def test_the_users_own_submissions_get_the_places_of_companions(
    site: SiteCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MaxSubmitJobs=3: a job takes the place that a companion had left free, which is given back for the next one."""
    site.limit("user", "games", MaxSubmitJobs=3)
    with daemon_at(site, monkeypatch) as selasticd:
        job = selasticd.submit("-N1", "--gres=gpu:a100:4", comment=WIDE)
        selasticd.settles_at(job, 32)
        site.sbatch("-N1", "--begin=now+1hour")
        selasticd.settles_at(job, 4)
        assert "shrink_submits" in str(selasticd.client().get(f"/v1/jobs/{job}/events"))
        site.sbatch("-N1", "--begin=now+1hour")


def test_all_that_salloc_says_is_kept(site: SiteCluster) -> None:
    """The limit's name is in the line before the last one."""
    site.limit("user", "games", MaxSubmitJobs=1)
    site.sbatch("-N1")
    refused = site.sandbox.run(["salloc", "--no-shell", "-N1"], user="games")
    assert refused.returncode != 0
    assert "AssocMaxSubmitJobLimit" in said(refused.stderr) and "violates" in said(refused.stderr)


def test_a_limit_that_was_not_known_is_named_and_kept(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set after the daemon read the limits: the companion that waits for it is withdrawn in the round that sees it, and
    the next one is as large as the limit allows."""
    with live_daemon(site.sandbox, monkeypatch, "site_interval_s = 3600") as daemon:
        first = daemon.submit("-N1", "--gres=gpu:a100:4", comment="elastic:gpus=4-8,step=4,batch=240-3840")
        daemon.settles_at(first, 8)  # a round has been, which read the limits
        daemon.finish(first)
        site.limit("account", "research", GrpTRES="gres/gpu=16")
        job = daemon.submit("-N1", "--gres=gpu:a100:4", comment=WIDE)
        daemon.settles_at(job, 16)
        events = daemon.client().get(f"/v1/jobs/{job}/events") or {}
        assert "AssocGrpGRES" in str(events)


def test_nobody_gives_way_in_vain(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a job that excludes all but the base's node, and one over a limit that ordinary jobs fill; then for one that
    can use what is freed, and for no more than it needs."""
    site.limit("qos", "second", GrpTRES="gres/gpu=2")
    with daemon_at(site, monkeypatch) as selasticd:
        job = selasticd.submit("-N1", "--gres=gpu:a100:4", comment=WIDE)
        selasticd.settles_at(job, 32)
        base = selasticd.jobs()[job].batch_host
        others = ",".join(f"n{i}" for i in range(1, 9) if f"n{i}" != base)
        idle = site.sbatch("-N1", "--gres=gpu:4", f"--exclude={others}", user=COLLEAGUE)
        over = site.sbatch("--qos=second", "-N1", "--gres=gpu:4", user=COLLEAGUE)
        site.wait_for_reason(over, "QOSGrpGRES")
        wait_until(lambda: site.squeue(idle, "%r") in ("Resources", "Priority"), 60, selasticd.log)
        usable = site.sbatch("-N1", "--gres=gpu:4", f"--exclude={base}", user=COLLEAGUE)
        starts(site, selasticd, usable)
        selasticd.settles_at(job, 28)
        assert site.squeue(idle, "%T") == site.squeue(over, "%T") == "PENDING"
        assert selasticd.events(job).count("resize_issued") == 2


def test_what_a_partition_takes_is_what_slurm_says(site: SiteCluster) -> None:
    """Generated partitions and requests: Slurm would start a job (--test-only) where we say so, and keeps one waiting
    whose account or QOS we take to be shut out, of which --test-only says nothing. Accounts below those that are listed
    count since 23.02."""
    pick, client = random.Random(7), CommandClient(site.sandbox.env["SLURM_CONF"])
    words = {
        "State": ("UP", "DRAIN", "INACTIVE"),
        "MinNodes": ("0", "2", "3"),
        "MaxNodes": ("UNLIMITED", "2"),
        "MaxCPUsPerNode": ("UNLIMITED", "4"),
        "AllowGroups": ("ALL", "games", "daemon", "daemon,games"),
    }
    lists = dict.fromkeys(("AllowAccounts", "AllowQos", "AllowGroups"), "ALL")
    plain = {**{word: values[0] for word, values in words.items()}, **lists}

    def rules(**drawn: str) -> PartitionRules:
        change = ["scontrol", "update", "PartitionName=low", *(f"{key}={value}" for key, value in drawn.items())]
        assert site.sandbox.run(change).returncode == 0
        return client.partitions()[0]["low"]

    def runs(job: int) -> bool:
        wait_until(lambda: site.squeue(job, "%r") != "None" or site.squeue(job, "%T") != "PENDING", 60)
        return site.squeue(job, "%T") != "PENDING"

    try:
        for word, value in ((word, value) for word, values in words.items() for value in values[1:]):
            other = pick.choice(sorted(words))
            drawn = {**plain, other: pick.choice(words[other]), word: value}
            found = rules(**drawn)
            for nodes, cpus in ((1, 1), (2, 8), (3, 4)):
                ours = not (found.closed("games", ["research"], "normal") or found.unfit(nodes))
                asked = ["-plow", f"-N{nodes}", f"--ntasks-per-node={cpus}", "--wrap", "true"]
                ours = ours and cpus <= found.max_cpus_per_node
                said = site.sandbox.run(["sbatch", "--test-only", *asked], user="games")
                starts = said.returncode == 0
                if (
                    starts and not ours
                ):  # of groups, since 24.11, and of MinNodes, since 26.05, the job itself says more
                    said = site.sandbox.run(["sbatch", "--parsable", *asked], user="games")
                    starts = said.returncode == 0 and runs(int(said.stdout))
                assert starts == ours, f"{drawn} {asked} {said.stderr}"
        for limit, shut in (
            ({"AllowQos": "second"}, True),
            ({"AllowQos": "Normal"}, False),  # whatever letters an admin has written
            ({"AllowAccounts": "root"}, not client.site().holds_those_below),  # research is below it
        ):
            closed = rules(**{**plain, **limit}).closed("games", client.site().listed_as("research"), "normal")
            assert bool(closed) == shut
            job, said = site.sbatch("-plow"), "not permitted" if closed else "None"
            wait_until(lambda job=job, said=said: said in site.squeue(job, "%r"), 30)  # type: ignore[misc]
    finally:
        rules(**plain)


@pytest.mark.parametrize("option", ["", "--exclusive=user"])
def test_a_node_of_another_user_is_no_room_where_nodes_are_not_shared(
    site: SiteCluster, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """ExclusiveUser of the partition, or of the job alone: it grows onto the node that nobody uses, not beside a
    colleague's small jobs."""
    change = ["scontrol", "update", "PartitionName=main"]
    assert site.sandbox.run([*change, f"ExclusiveUser={'NO' if option else 'YES'}"]).returncode == 0
    try:
        with live_daemon(site.sandbox, monkeypatch) as daemon:
            for node in range(2, 8):
                site.sbatch("-N1", f"-wn{node}", "--gres=gpu:1", user=COLLEAGUE)
            job = daemon.submit("-N1", "-wn1", "--gres=gpu:a100:4", *filter(None, [option]))
            daemon.settles_at(job, 8)
            assert {node for held in daemon.companions() for node in held.nodes} == {"n8"}
            assert "resize_withdrawn" not in daemon.events(job)
    finally:
        site.sandbox.run([*change, "ExclusiveUser=NO"])
