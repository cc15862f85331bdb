"""What the daemon may rely on from Slurm, tested on the real one and on the in-memory fake alike."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from fake_slurm import Component
from slurm_backends import Cluster, gone, running, seen

from slurm_elastic.protocol.errors import SlurmRefused, SlurmUnreachable


def test_running_job_is_seen_with_all_it_holds(cluster: Cluster) -> None:
    """A running job's nodes, GPUs, type, owner and batch host are those that Slurm gave it."""
    client = cluster.client()
    job_id = cluster.submit(Component(3, 2), name="train", comment="elastic:gpus=2-8,batch=64-512", user="games")
    snapshot = running(client, job_id)
    job = snapshot.jobs[job_id]
    assert (job.nodes, job.batch_host, job.num_nodes) == (("n1", "n2", "n3"), "n1", 3)
    assert (job.gpus, job.gpus_per_node, job.gpu_type) == (6, 2, "a100")
    assert (job.user, job.uid, job.name, job.comment) == ("games", 5, "train", "elastic:gpus=2-8,batch=64-512")
    assert (job.partition, job.reason, job.het_job_id, job.array_job_id) == ("main", "", 0, 0)
    assert job.start_time is not None and job.submit_time <= job.start_time <= snapshot.at + 1
    assert job.active and not job.pending


def test_waiting_job_is_seen_with_all_it_asks_for(cluster: Cluster) -> None:
    """A pending job holds nothing; its GPUs are the total it asks for, its start is not known."""
    client = cluster.client()
    first = cluster.submit(Component(8, 4))
    running(client, first)
    waiting = cluster.submit(Component(2, 4), user="nobody")
    job = seen(client, lambda s: s.jobs[waiting].reason in ("Resources", "Priority")).jobs[waiting]
    assert (job.state, job.nodes, job.batch_host, job.start_time) == ("PENDING", (), "", None)
    assert (job.num_nodes, job.gpus, job.gpus_per_node) == (2, 8, 4)
    assert not job.active


def test_slurm_says_its_time(cluster: Cluster) -> None:
    """slurmctld is on this host, so its time lies between two looks at the clock here."""
    before = int(time.time())
    assert before <= cluster.client().slurms_time() <= time.time()


def test_nodes_tell_used_gpus(cluster: Cluster) -> None:
    """Node by node, the GPUs in use are those of the jobs that run there."""
    client = cluster.client()
    job_id = cluster.submit(Component(1, 3, ("n5",)))
    nodes = running(client, job_id).nodes
    assert list(nodes) == [f"n{i}" for i in range(1, 9)]
    assert {name: node.gpus_used for name, node in nodes.items()} == {f"n{i}": 3 if i == 5 else 0 for i in range(1, 9)}
    assert {(node.gpus, node.gpu_type) for node in nodes.values()} == {(4, "a100")}
    assert nodes["n5"].cpus == 16 and nodes["n5"].cpus_used >= 1 and nodes["n5"].partitions == ("main",)


def test_drained_node_offers_nothing(cluster: Cluster) -> None:
    """A node that an admin drained takes no new job, though its GPUs are unused, and does again when it is back."""
    client = cluster.client()
    cluster.drain("n8", True)
    try:
        node = seen(client, lambda s: not s.nodes["n8"].schedulable).nodes["n8"]
        assert node.gpus_used == 0 and "DRAIN" in node.flags
    finally:
        cluster.drain("n8", False)
    seen(client, lambda s: s.nodes["n8"].schedulable)


ODD = [
    "a|b c  d",
    " leading and trailing ",
    "quotes ' \" ` $HOME $(id) \\ %i",
    "commas,semicolons;=:~~",
    "ünïcödé ✓ 漢字",
    "--option",
    "n/a",
]


@pytest.mark.parametrize("text", ODD)
def test_comments_come_back_as_they_were(cluster: Cluster, text: str) -> None:
    """Whatever a user writes as a comment or a name neither breaks the listing nor comes back changed."""
    client = cluster.client()
    job_id = cluster.submit(Component(1, 1), comment=text, name=text.strip())
    job = running(client, job_id).jobs[job_id]
    assert (job.comment, job.name, job.gpus) == (text, text.strip(), 1)


def test_shrink_in_place_keeps_the_chosen_nodes(cluster: Cluster) -> None:
    """A job gives up the nodes we choose, again and again, and runs on; the nodes are idle at once."""
    client = cluster.client()
    job_id = cluster.submit(Component(4, 4))
    running(client, job_id)
    client.shrink(job_id, ["n1", "n3", "n4"])
    job = client.snapshot().jobs[job_id]
    assert (job.nodes, job.num_nodes, job.gpus, job.gpus_per_node) == (("n1", "n3", "n4"), 3, 12, 4)
    client.shrink(job_id, ["n1", "n3", "n4"])
    client.shrink(job_id, ["n4", "n1"])
    snapshot = seen(client, lambda s: s.nodes["n2"].gpus_used == s.nodes["n3"].gpus_used == 0)
    job = snapshot.jobs[job_id]
    assert (job.state, job.nodes, job.gpus, job.batch_host) == ("RUNNING", ("n1", "n4"), 8, "n1")


@pytest.mark.parametrize(
    "kept",
    [["n2", "n3"], ["n1", "n7"], ["n1", "n99"], [], ["n1,n2"], ["n[1-2]"], ["--help"], ["n1 State=x"], [""]],
    ids=str,
)
def test_impossible_shrinks_are_refused_and_change_nothing(cluster: Cluster, kept: list[str]) -> None:
    """Giving up the batch host, naming a node that isn't held or isn't one: refused, and the job is as it was."""
    client = cluster.client()
    job_id = cluster.submit(Component(3, 1))
    before = running(client, job_id).jobs[job_id]
    with pytest.raises(SlurmRefused):
        client.shrink(job_id, kept)
    after = client.snapshot().jobs[job_id]
    assert (after.nodes, after.gpus, after.state) == (before.nodes, before.gpus, "RUNNING")


def test_allocation_without_a_script_can_give_up_any_node(cluster: Cluster) -> None:
    """A companion (salloc --no-shell) has no batch host: any of its nodes may go; it can be cancelled."""
    client = cluster.client()
    job_id = cluster.submit(Component(2, 4), batch=False, name="selastic-7", comment="selastic:companion-of=7;resize=3")
    job = running(client, job_id).jobs[job_id]
    assert (job.nodes, job.batch_host, job.gpus) == (("n1", "n2"), "", 8)
    client.shrink(job_id, ["n2"])
    assert client.snapshot().jobs[job_id].nodes == ("n2",)
    client.cancel(job_id)
    seen(client, lambda s: gone(s, job_id) and s.nodes["n2"].gpus_used == 0)


def test_companions_share_the_node_of_their_base(cluster: Cluster) -> None:
    """GPU by GPU: two companions of one GPU beside a base of two fill one node, and are seen one by one."""
    client = cluster.client()
    base = cluster.submit(Component(1, 2, ("n1",)))
    running(client, base)
    companions = [cluster.submit(Component(1, 1, ("n1",)), batch=False) for _ in range(2)]
    snapshot = running(client, base, *companions)
    assert [snapshot.jobs[job_id].gpus for job_id in (base, *companions)] == [2, 1, 1]
    assert snapshot.nodes["n1"].gpus_used == 4
    client.cancel(companions[0])
    snapshot = seen(client, lambda s: gone(s, companions[0]) and s.nodes["n1"].gpus_used == 3)
    assert snapshot.jobs[base].running and snapshot.jobs[companions[1]].running


def test_ended_job_can_be_neither_shrunk_nor_changed(cluster: Cluster) -> None:
    """A job that has ended, or never was, refuses a shrink: the caller has to look again."""
    client = cluster.client()
    job_id = cluster.submit(Component(2, 1))
    running(client, job_id)
    client.cancel(job_id)
    seen(client, lambda s: job_id not in s.jobs)
    for gone_id in (job_id, 99_999):
        with pytest.raises(SlurmRefused):
            client.shrink(gone_id, ["n1"])


def test_shrink_of_a_waiting_job_becomes_a_requirement(cluster: Cluster) -> None:
    """Slurm takes the nodes of a pending job's shrink as required ones: visible in the snapshot, not silent."""
    client = cluster.client()
    running(client, cluster.submit(Component(8, 4)))
    waiting = cluster.submit(Component(1, 4))
    client.shrink(waiting, ["n6"])
    job = client.snapshot().jobs[waiting]
    assert (job.state, job.required_nodes) == ("PENDING", ("n6",))


def test_strangers_are_refused_and_owners_are_not(cluster: Cluster) -> None:
    """An ordinary user may shrink and cancel their own jobs, and nobody else's."""
    stranger, owner, root = cluster.client("nobody"), cluster.client("games"), cluster.client()
    job_id = cluster.submit(Component(2, 1), user="games", comment="mine")
    running(root, job_id)
    for attempt in (
        lambda: stranger.shrink(job_id, ["n1"]),
        lambda: stranger.cancel(job_id),
    ):
        with pytest.raises(SlurmRefused):
            attempt()
    job = stranger.snapshot().jobs[job_id]
    assert (job.nodes, job.comment, job.user) == (("n1", "n2"), "mine", "games")
    owner.shrink(job_id, ["n1"])
    job = root.snapshot().jobs[job_id]
    assert (job.nodes, job.comment) == (("n1",), "mine")
    owner.cancel(job_id)
    seen(root, lambda s: gone(s, job_id))


def test_no_slurmctld_is_unreachable_not_refused(cluster: Cluster) -> None:
    """While slurmctld is down nothing is concluded: every call says unreachable; afterwards the job is as it was."""
    client = cluster.client()
    job_id = cluster.submit(Component(2, 1), comment="still here")
    before = running(client, job_id).jobs[job_id]

    def outcome(call: Callable[[], object]) -> type[BaseException] | None:
        try:
            call()
        except Exception as error:
            return type(error)
        return None

    calls: list[Callable[[], object]] = [
        client.snapshot,
        lambda: client.shrink(job_id, ["n1"]),
        lambda: client.cancel(job_id),
    ]
    cluster.stop()
    try:
        with ThreadPoolExecutor(len(calls)) as pool:  # each waits for Slurm's own timeout
            assert list(pool.map(outcome, calls)) == [SlurmUnreachable] * len(calls)
    finally:
        cluster.start()
    after = running(client, job_id).jobs[job_id]
    assert (after.nodes, after.comment, after.batch_host) == (before.nodes, "still here", before.batch_host)
