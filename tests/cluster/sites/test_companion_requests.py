"""Companions are what the base asked for, on a real Slurm: nodes of the same kind, whole nodes, the same project."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from live_daemon import live_daemon
from site_cluster import SiteCluster
from training import on
from training_job import Start
from waiting import wait_until

from slurm_elastic.daemon.capacity.constraints import meets
from slurm_elastic.daemon.selasticd.preflight import check
from slurm_elastic.daemon.selasticd.settings import Settings


@pytest.fixture
def features(site: SiteCluster) -> Iterator[None]:
    """n1 and n4 have InfiniBand, the others RoCE, until the test is over."""

    def give(kind: str, nodes: str) -> None:
        words = [f"nodename={nodes}", f"features={kind}", f"activefeatures={kind}"]
        assert site.sandbox.run(["scontrol", "update", *words]).returncode == 0

    give("ib", "n1,n4")
    give("roce", "n2,n3,n5,n6,n7,n8")
    yield
    give("", "n[1-8]")


def test_all_nodes_are_of_the_kind_that_the_base_got(
    site: SiteCluster, features: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--constraint=[ib|roce] and a base with InfiniBand: it grows to the one other node that has it, and no further."""
    with live_daemon(site.sandbox, monkeypatch) as daemon:
        job = daemon.submit("-N1", "-wn1", "--gres=gpu:a100:4", "--constraint=[ib|roce]")
        daemon.settles_at(job, 8)
        nodes = {node for held in daemon.jobs().values() for node in held.nodes}
        assert nodes == {"n1", "n4"}


def test_nodes_that_the_base_excludes_are_not_asked_for(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only excluded nodes are idle but one, it grows by that one."""
    with live_daemon(site.sandbox, monkeypatch) as daemon:
        job = daemon.submit("-N1", "--gres=gpu:a100:4", "--exclude=n[2-7]")
        daemon.settles_at(job, 8)
        nodes = {node for held in daemon.jobs().values() for node in held.nodes}
        assert nodes == {"n1", "n8"}


def test_after_a_refused_size_a_smaller_one_is_tried(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A site that refuses jobs of two nodes or three, by a rule that nobody can read: the job grows by single ones."""
    for nodes in "23":
        site.veto("submit", "at most one node", min_nodes=nodes)
    with live_daemon(site.sandbox, monkeypatch, "failed_backoff_s = 600.0") as daemon:
        job = daemon.submit("-N1", "--gres=gpu:a100:4", comment="elastic:gpus=4-16,step=4,batch=240-3840")
        daemon.settles_at(job, 16)


def test_a_job_does_not_grow_for_less_time_than_a_resize_is_worth(site: SiteCluster, start: Start) -> None:
    """Where the site's plugin cuts companions to a minute; selasticd is told why."""
    site.cut_companions_to(1)
    job = start("-N1 --gres=gpu:1", 800)
    ended = job.over(job.order(job.base(), on("n3")))
    assert ended.what == "withdrawn" and "was given 1 minutes of the" in ended.detail
    site.allow()
    job.grow("n3")
    job.finish()


def test_nodes_can_be_reserved_that_companions_hold(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where companions have a time limit of their own: for what begins after it, though their job may run longer."""
    with live_daemon(site.sandbox, monkeypatch, "companion_minutes = 10") as daemon:
        job = daemon.submit("-N1", "-wn1", "--gres=gpu:a100:4", "--time=600", "--exclude=n[3-8]")
        daemon.settles_at(job, 8)
        words = ["nodes=n2", "reservation=course", "starttime=now+660", "duration=60", "users=root"]
        assert site.sandbox.run(["scontrol", "create", *words]).returncode == 0
        site.sandbox.run(["scontrol", "delete", "reservationname=course"])


def test_an_exclusive_job_grows_by_whole_nodes(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node with two GPUs free is passed over for one that is idle."""
    with live_daemon(site.sandbox, monkeypatch) as daemon:
        site.sbatch("-wn[2-7]", "-N6", "--gres=gpu:2")
        job = daemon.submit(
            "-N1", "-wn1", "--exclusive", "--gres=gpu:a100:4", comment="elastic:gpus=2-8,batch=240-3840"
        )
        daemon.settles_at(job, 8)
        assert {node for held in daemon.companions() for node in held.nodes} == {"n8"}


def test_a_job_in_a_reservation_stays_in_it(site: SiteCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not grow, and is told why."""
    words = ["reservationname=course", "starttime=now", "duration=60", "users=games", "nodes=n1,n2"]
    assert site.sandbox.run(["scontrol", "create", "reservation", *words]).returncode == 0
    with live_daemon(site.sandbox, monkeypatch) as daemon:
        job = daemon.submit("-N1", "--reservation=course", "--gres=gpu:a100:4")
        why = "it runs in reservation course, and a companion would leave it"
        try:
            wait_until(
                lambda: why in daemon.selastic("explain", str(job)).stdout,
                40,
                lambda: daemon.selastic("explain", str(job)).stdout + daemon.log(),
            )
            assert daemon.trains_on(job) == daemon.held(job) == 4
        finally:
            site.sandbox.run(["scancel", str(job)])
            gone = ["scontrol", "delete", "reservationname=course"]
            wait_until(lambda: site.sandbox.run(gone).returncode == 0, 40)


def test_a_companion_is_charged_to_the_same_project_and_has_its_nodes_for_itself(
    site: SiteCluster, start: Start
) -> None:
    """--wckey and --exclusive, read from the base's own record."""
    site.sacctmgr("add", "user", "root", "wckey=paper")
    job = start("-N1 --gres=gpu:4 --exclusive --wckey=paper", 800)
    companion = job.resize(job.base(), on(gpus=4)).pieces[1]
    fields = [job.field(name, companion.slurm_job_id) for name in ("WCKey", "OverSubscribe")]
    assert fields == ["paper", "NO"]
    job.finish()


def test_a_constraint_is_read_as_slurm_reads_it(site: SiteCluster) -> None:
    """Generated expressions of & and |, on nodes with each set of three features: Slurm starts jobs where we say."""
    sets = {f"n{number + 1}": [name for bit, name in enumerate("abc") if number >> bit & 1] for number in range(8)}

    def give(node: str, features: str) -> None:
        words = [f"nodename={node}", f"features={features}", f"activefeatures={features}"]
        assert site.sandbox.run(["scontrol", "update", *words]).returncode == 0

    for node, features in sets.items():
        give(node, ",".join(features))
    pick = random.Random(7)
    drawn = {"".join(pick.choice("abc") + pick.choice("&|") for _ in range(pick.randint(2, 4)))[:-1] for _ in range(8)}
    try:
        for constraint in sorted({"a|b&c", *drawn}):
            for node in pick.sample(sorted(sets), 4):
                words = ["sbatch", "--test-only", "-N1", "-w", node, "-C", constraint, "--wrap", "true"]
                said = site.sandbox.run(words, user="games")
                assert (said.returncode == 0) == meets(constraint, sets[node]), (constraint, node, said.stderr)
    finally:
        for node in sets:
            give(node, "")


def test_a_site_without_interactive_jobs_and_node_lists(site: SiteCluster, start: Start) -> None:
    """Its plugin refuses jobs without a script, and one that names nodes: the companion is a batch job where Slurm
    likes, training grows onto it, and leaves it as any other."""
    site.veto("submit", "interactive jobs are not allowed; use sbatch", script="nil")
    site.veto("submit", "nodes are not to be named", req_nodes="n3")
    job = start("-N1 --gres=gpu:1", 800)
    companion = job.grow("n3").slurm_job_id
    fields = [job.field(name, companion) for name in ("BatchFlag", "Requeue", "ReqNodeList")]
    assert fields == ["1", "0", "(null)"]
    job.finish()
    wait_until(lambda: site.squeue(companion, "%T") != "RUNNING", 30)


def test_selasticds_check_says_how_companions_can_be_asked_for(
    site: SiteCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the words of the site's plugin; nothing is submitted."""
    found = {"state_dir": str(tmp_path), "slurm_conf": site.sandbox.env["SLURM_CONF"], "listen": "127.0.0.1:0"}
    found |= {"partitions": ("main",)}  # else in that which Slurm lists first, and a change of one changes the order
    check(Settings(**found))  # type: ignore[arg-type]
    assert "companions: in partition main, by salloc can be asked for; by sbatch can be" in capsys.readouterr().out
    site.veto("submit", "interactive jobs are not allowed; use sbatch", script="nil")
    site.veto("submit", "nodes are not to be named", req_nodes="n1")
    check(Settings(**found))  # type: ignore[arg-type]
    told = capsys.readouterr().out
    assert "by salloc refused (" in told and "interactive jobs are not allowed; use sbatch" in told
    assert "by sbatch only where Slurm chooses the nodes (" in told and "nodes are not to be named" in told
    assert site.sandbox.run(["squeue", "-h"]).stdout == ""
