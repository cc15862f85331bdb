"""What the daemon may rely on where jobs come back, are made of several components, or end: on every way to Slurm."""

from __future__ import annotations

import time

import pytest
from fake_slurm import Component
from slurm_backends import Cluster, RealCluster, gone, running, seen
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.daemon.slurm import Size, Snapshot
from slurm_elastic.daemon.slurm.accounting import limits
from slurm_elastic.daemon.slurm.fair_share import ShareTree
from slurm_elastic.protocol.errors import SlurmRefused


def put_back(cluster: Cluster, job_id: int) -> Snapshot:
    """Requeue, and wait until the job may be given another size: not in the second of its end (see resize_waiting)."""
    client = cluster.client()
    client.requeue(job_id)
    snapshot = seen(client, lambda s: s.jobs[job_id].pending)
    ready = time.time() + (2.0 if cluster.real else 0.0)
    wait_until(lambda: time.time() > ready, 10)
    return snapshot


def test_requeued_job_comes_back_at_the_size_it_is_given(cluster: Cluster) -> None:
    """A job is put back, does not start by itself for a minute at least, and starts at once when it gets a size: more
    nodes with fewer GPUs each, and then fewer nodes with more."""
    client = cluster.client()
    job_id = cluster.submit(Component(1, 4), user="games", comment="elastic:x")
    assert running(client, job_id).jobs[job_id].asked_per_node == 4
    snapshot = put_back(cluster, job_id)
    job = snapshot.jobs[job_id]
    assert (job.restarts, job.nodes, job.gpus) == (1, (), 4)
    assert job.eligible_time > snapshot.at + 60
    client.resize_waiting(job_id, Size(3, 2))
    job = running(client, job_id).jobs[job_id]
    assert (job.num_nodes, job.gpus, job.gpus_per_node, job.asked_per_node) == (3, 6, 2, 2)
    assert (job.restarts, job.comment, job.user) == (1, "elastic:x", "games")
    put_back(cluster, job_id)
    client.resize_waiting(job_id, Size(1, 4))
    job = running(client, job_id).jobs[job_id]
    assert (len(job.nodes), job.gpus, job.restarts) == (1, 4, 2)


def test_a_job_that_has_never_run_gets_another_size_and_its_own_back(cluster: Cluster) -> None:
    """It keeps its place in the queue, is what it was when it has its own size again, and starts at one that fits."""
    client = cluster.client()
    running(client, cluster.submit(Component(6, 4)))
    job_id = cluster.submit(Component(4, 4), user="games", comment="elastic:x")
    before = seen(client, lambda s: s.jobs[job_id].pending and s.jobs[job_id].reason == "Resources").jobs[job_id]
    script = client.asked_size(job_id)
    assert script == Size(4, 4)
    client.resize_waiting(job_id, Size(3, 2))
    job = seen(client, lambda s: s.jobs[job_id].num_nodes == 3).jobs[job_id]
    assert (job.pending, job.gpus, job.asked_per_node, job.priority) == (True, 6, 2, before.priority)
    client.resize_waiting(job_id, script)
    assert client.asked_size(job_id) == script
    job = seen(client, lambda s: s.jobs[job_id].num_nodes == 4).jobs[job_id]
    same = "state", "num_nodes", "gpus", "asked_per_node", "cpus", "mem_mb", "priority", "submit_time", "time_limit_s"
    assert [getattr(job, name) for name in same] == [getattr(before, name) for name in same]
    client.resize_waiting(job_id, Size(2, 4))
    job = running(client, job_id).jobs[job_id]
    assert (len(job.nodes), job.gpus, job.restarts, job.comment) == (2, 8, 0, "elastic:x")


def test_what_cannot_be_requeued_is_refused(cluster: Cluster) -> None:
    """A job without a script, one that waits, one that has ended; a running job takes no size; others may not."""
    client = cluster.client()
    base, companion = cluster.submit(Component(1, 1), user="games"), cluster.submit(Component(7, 4), batch=False)
    waiting = cluster.submit(Component(8, 4))
    running(client, base, companion)
    seen(client, lambda s: s.jobs[waiting].pending)
    for job_id in (companion, waiting):
        with pytest.raises(SlurmRefused):
            client.requeue(job_id)
    with pytest.raises(SlurmRefused):
        cluster.client("nobody").requeue(base)
    with pytest.raises(SlurmRefused):
        client.resize_waiting(base, Size(2, 1))
    job = client.snapshot().jobs[base]
    assert job.running and (job.num_nodes, job.gpus, job.restarts) == (1, 1, 0)


def test_reservation_keeps_the_nodes_for_one_job(cluster: Cluster) -> None:
    """Nothing but the job in it starts on reserved nodes, though it came later; ending it lets the job run on."""
    client = cluster.client()
    name = "selastic-1"
    client.reserve(name, [f"n{i}" for i in range(1, 9)], "games", 3)
    try:
        site = client.site()
        kept = next(kept for kept in site.reservations if kept.name == name)
        assert len(kept.nodes) == 8 and kept.start <= site.at + 1 and kept.end - site.at > 0
        other = cluster.submit(Component(8, 4), user="nobody")
        mine = cluster.submit(Component(1, 4, ("n1",)), user="games")
        if isinstance(cluster, RealCluster):
            # As after a requeue: else Slurm may start the job between its reservation and its size.
            cluster.sandbox.run(["scontrol", "update", f"JobId={mine}", "StartTime=now+120"])
        seen(client, lambda s: s.jobs[other].pending and s.jobs[mine].pending)
        client.resize_waiting(mine, Size(2, 4), name)
        job = running(client, mine).jobs[mine]
        assert (job.num_nodes, job.reservation) == (2, name)
        client.unreserve(name, mine)
        client.unreserve(name)  # once more does no harm
        job = client.snapshot().jobs[mine]
        assert job.running and job.reservation == ""
        client.cancel(mine)
        running(client, other)
    finally:
        client.unreserve(name)
    with pytest.raises(SlurmRefused):
        cluster.client("games").reserve(name, ["n1"], "games", 1)


def test_how_jobs_have_ended_is_known_while_slurm_remembers_them(empty_sandbox: Sandbox) -> None:
    """Of one that goes on, and one that never was, nothing is."""
    client = RealCluster(empty_sandbox).client()

    def sbatch(script: str) -> int:
        answer = empty_sandbox.run(["sbatch", "--parsable", "--output=/dev/null", "--wrap", script], user="games")
        assert answer.returncode == 0, answer.stderr
        return int(answer.stdout)

    done, failed, stopped, going = (sbatch(script) for script in ("true", "false", "sleep 600", "sleep 600"))
    running(client, stopped, going)
    client.cancel(stopped)
    ends = {done: "COMPLETED", failed: "FAILED", stopped: "CANCELLED"}
    wait_until(lambda: client.end_states([done, failed, stopped, going]) == ends, 60)
    assert client.end_states([99_999]) == {}


@pytest.fixture
def shared(cluster: Cluster, request: pytest.FixtureRequest) -> Cluster:
    """Account optics below physics, with shares; chem with those of its parent. The user runs no other test's jobs."""
    if not cluster.real:
        cluster.slurm.share_tree = ShareTree(  # type: ignore[attr-defined]
            {"root": ("", None), "physics": ("root", 30.0), "optics": ("physics", 2.0), "chem": ("root", None)},
            {("optics", "man"): 5.0, ("optics", "daemon"): None, ("chem", "man"): 1.0},
        )
        return cluster
    sandbox = request.getfixturevalue("empty_sandbox")
    words = (
        ["account", "physics", "fairshare=30"], ["account", "optics", "parent=physics", "fairshare=2"],
        ["account", "chem", "fairshare=parent"], ["user", "man", "account=optics", "fairshare=5"],
        ["user", "daemon", "account=optics", "fairshare=parent"], ["user", "man", "account=chem"],
    )  # fmt: skip
    for each in words:
        answer = sandbox.run(["sacctmgr", "-i", "add", *each])
        assert answer.returncode == 0 or "Nothing new" in answer.stdout, answer.stdout + answer.stderr
    return cluster


def test_shares_are_those_that_an_admin_gave(shared: Cluster) -> None:
    """Each user's way down the tree of accounts, as slurmdbd has it."""
    tree = wait_until(lambda: (t := shared.client().shares()).users.get(("chem", "man")) and t, 60, "the new users")
    assert tree.path("optics", "man") == (("account physics", 30.0), ("account optics", 2.0), ("user man", 5.0))
    assert tree.path("optics", "daemon")[-1] == ("its users together", 1.0)
    assert tree.path("chem", "man") == (("user man", 1.0),)


def test_limits_of_the_accounting_are_read(empty_sandbox: Sandbox) -> None:
    """What an admin sets with sacctmgr is read from slurmctld; where limits are not enforced, none counts."""
    change = ["sacctmgr", "-i", "modify", "user", "games", "set"]
    qos = ["sacctmgr", "-i", "modify", "qos", "normal", "set"]

    def told() -> list[tuple[str, str, dict[str, float]]]:
        shown = empty_sandbox.run(["scontrol", "show", "assoc_mgr", "flags=assoc,qos"]).stdout
        found = (limit for limit in limits(shown).limits if limit.uid == 5 or limit.qos == "normal")
        return [(limit.qos, limit.scope, dict(limit.tres)) for limit in found]

    assert empty_sandbox.run([*change, "GrpTRES=gres/gpu=8,node=3", "MaxTRESPerJob=gres/gpu=4"]).returncode == 0
    assert empty_sandbox.run([*qos, "MaxTRESPerJob=gres/gpu=6,cpu=64"]).returncode == 0
    expected = [
        ("", "together", {"gres/gpu": 8.0, "node": 3.0}),
        ("", "job", {"gres/gpu": 4.0}),
        ("normal", "job", {"cpu": 64.0, "gres/gpu": 6.0}),
    ]
    try:
        wait_until(lambda: told() == expected, 60, told)
        assert RealCluster(empty_sandbox).client().site().limits == ()
    finally:
        empty_sandbox.run([*change, "GrpTRES=gres/gpu=-1,node=-1", "MaxTRESPerJob=gres/gpu=-1"])
        empty_sandbox.run([*qos, "MaxTRESPerJob=gres/gpu=-1,cpu=-1"])


def test_heterogeneous_job_gives_up_one_component(cluster: Cluster) -> None:
    """Components are job records of their own; cancelling one leaves the others running; the first id ends all."""
    client = cluster.client()
    first = cluster.submit(Component(1, 4), Component(2, 2), Component(1, 1))
    snapshot = running(client, first, first + 1, first + 2)
    parts = snapshot.components(first)
    assert [(p.job_id, p.het_job_id, p.het_offset, p.gpus) for p in parts] == [
        (first, first, 0, 4),
        (first + 1, first, 1, 4),
        (first + 2, first, 2, 1),
    ]
    client.cancel(first + 1)
    snapshot = seen(client, lambda s: gone(s, first + 1))
    assert snapshot.jobs[first].running and snapshot.jobs[first + 2].running
    client.cancel(first)
    seen(client, lambda s: gone(s, first) and gone(s, first + 2))


def test_component_shrinks_by_its_own_id(cluster: Cluster) -> None:
    """A later component of several nodes gives up one of them, never its first."""
    client = cluster.client()
    first = cluster.submit(Component(1, 1), Component(2, 2))
    part = running(client, first, first + 1).jobs[first + 1]
    with pytest.raises(SlurmRefused):
        client.shrink(first + 1, [part.nodes[1]])
    assert part.batch_host == part.nodes[0]
    client.shrink(first + 1, [part.nodes[0]])
    after = client.snapshot().jobs[first + 1]
    assert (after.nodes, after.gpus) == (part.nodes[:1], 2)


def test_waiting_component_cannot_be_cancelled_alone(cluster: Cluster) -> None:
    """Slurm refuses to cancel one component of a heterogeneous job that has not started."""
    client = cluster.client()
    running(client, cluster.submit(Component(8, 4)))
    first = cluster.submit(Component(1, 1), Component(1, 1))
    seen(client, lambda s: s.jobs[first + 1].pending)
    with pytest.raises(SlurmRefused, match="individual component"):
        client.cancel(first + 1)
    assert client.snapshot().jobs[first + 1].pending


def test_cancel_may_be_repeated(cluster: Cluster) -> None:
    """Cancelling a job that has ended, or one that never was, is not an error."""
    client = cluster.client()
    job_id = cluster.submit(Component(1, 1))
    running(client, job_id)
    for _ in range(2):
        client.cancel(job_id)
    seen(client, lambda s: job_id not in s.jobs)
    client.cancel(job_id)
    client.cancel(99_999)
