"""What the daemon may rely on from Slurm, tested on the real one and on the in-memory fake alike.

The real one is spoken to through its commands and, where it is installed, through pyslurm.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Protocol

import pytest
from waiting import wait_until

from slurm_elastic.daemon.sandbox import Sandbox, SandboxSpec
from slurm_elastic.daemon.slurm import CommandClient, Job, Size, SlurmClient, Snapshot
from slurm_elastic.daemon.slurm.fake import FakeSlurm, Want
from slurm_elastic.daemon.slurm.pyslurm_client import PySlurmClient, Unfit
from slurm_elastic.daemon.slurm.site import limits
from slurm_elastic.trainer_shim.errors import SlurmRefused, SlurmUnreachable


class Cluster(Protocol):
    """Eight nodes n1..n8 with 4 a100 each, no jobs."""

    real: bool

    def client(self, user: str = "root") -> SlurmClient: ...
    def submit(
        self, *wants: Want, user: str = "root", name: str = "job", comment: str = "", batch: bool = True
    ) -> int: ...
    def stop(self) -> None: ...
    def start(self) -> None: ...
    def drain(self, node: str, drained: bool) -> None: ...


class Commands:
    """Slurm's commands, as each user."""

    def client(self, slurm_conf: str, user: str = "root") -> SlurmClient:
        prefix = () if user == "root" else ("setpriv", f"--reuid={user}", "--clear-groups", "--")
        return CommandClient(slurm_conf, prefix=prefix)


# Everything is imported before root is given up: the other user need not be able to read this Python.
AS_USER = """
import os, pwd, sys
import pyslurm
from slurm_elastic.daemon.slurm import pyslurm_worker
uid = pwd.getpwnam(sys.argv[1]).pw_uid
if uid:
    os.setgroups([])
    os.setuid(uid)
pyslurm_worker.main(int(sys.argv[2]))
"""


class PySlurm(Commands):
    """pyslurm, in a process of each user's own."""

    def __init__(self) -> None:
        self.clients: dict[tuple[str, str], PySlurmClient] = {}

    def client(self, slurm_conf: str, user: str = "root") -> SlurmClient:
        if (slurm_conf, user) not in self.clients:
            commands = super().client(slurm_conf, user)
            assert isinstance(commands, CommandClient)
            worker = (sys.executable, "-c", AS_USER, user)
            self.clients[slurm_conf, user] = PySlurmClient(commands, slurm_conf, worker=worker)
        return self.clients[slurm_conf, user]

    def close(self) -> None:
        for client in self.clients.values():
            client.close()


@pytest.fixture(scope="session")
def pyslurm(sandbox: Sandbox) -> Iterator[PySlurm]:
    """pyslurm, where a build for the installed Slurm is importable; else the test is skipped, and says why."""
    conf = sandbox.env["SLURM_CONF"]
    try:
        PySlurmClient(CommandClient(conf), conf).close()
    except Unfit as why:
        pytest.skip(str(why))
    with contextlib.closing(PySlurm()) as found:
        yield found


@pytest.fixture(params=["commands", "pyslurm"])
def way(request: pytest.FixtureRequest) -> Commands:
    """Both ways to the real Slurm, one after the other."""
    return Commands() if request.param == "commands" else request.getfixturevalue("pyslurm")  # type: ignore[no-any-return]


class RealCluster:
    """The private Slurm of the session."""

    real = True

    def __init__(self, sandbox: Sandbox, way: Commands) -> None:
        self.sandbox, self.way = sandbox, way

    def client(self, user: str = "root") -> SlurmClient:
        return self.way.client(self.sandbox.env["SLURM_CONF"], user)

    def submit(self, *wants: Want, user: str = "root", name: str = "job", comment: str = "", batch: bool = True) -> int:
        parts = []
        for want in wants:
            part = ["-N", str(want.nodes), "--ntasks-per-node=1", f"--job-name={name}", f"--comment={comment}"]
            part += [f"--gres=gpu:{want.gpus_per_node}"] if want.gpus_per_node else []
            part += [f"--nodelist={','.join(want.node_list)}"] if want.node_list else []
            parts += [":", *part] if parts else part
        if batch:
            command = ["sbatch", "--parsable", "--output=/dev/null", "--wrap=sleep 900", *parts]
        else:
            command = ["salloc", "--no-shell", *parts]
        answer = self.sandbox.run(command, user=None if user == "root" else user)
        assert answer.returncode == 0, answer.stderr
        return int(
            answer.stdout.split(";")[0] if batch else answer.stderr.split("Granted job allocation ")[1].split()[0]
        )

    def stop(self) -> None:
        self.sandbox.stop_daemon("slurmctld")

    def start(self) -> None:
        self.sandbox.start_daemon("slurmctld")

    def drain(self, node: str, drained: bool) -> None:
        what = ["state=drain", "reason=test"] if drained else ["state=resume"]
        assert self.sandbox.run(["scontrol", "update", f"nodename={node}", *what]).returncode == 0


class FakeCluster:
    """The fake, as it is shipped."""

    real = False

    def __init__(self) -> None:
        self.slurm = FakeSlurm(nodes=8, gpus_per_node=4, now=time.time())

    def client(self, user: str = "root") -> SlurmClient:
        return self.slurm.client(user)

    def submit(self, *wants: Want, **fields: Any) -> int:
        return self.slurm.submit(*wants, **fields)

    def stop(self) -> None:
        self.slurm.reachable = False

    def start(self) -> None:
        self.slurm.reachable = True

    def drain(self, node: str, drained: bool) -> None:
        self.slurm.set_node_state(node, *(["IDLE", "DRAIN"] if drained else []))


@pytest.fixture(params=["real", "pyslurm", "fake"])
def cluster(request: pytest.FixtureRequest) -> Cluster:
    """All implementations, one after the other."""
    if request.param == "fake":
        return FakeCluster()
    way = request.getfixturevalue("pyslurm") if request.param == "pyslurm" else Commands()
    return RealCluster(request.getfixturevalue("empty_sandbox"), way)


def seen(client: SlurmClient, condition: Callable[[Snapshot], Any], what: str = "") -> Snapshot:
    """The first snapshot for which the condition holds."""

    def look() -> Snapshot | None:
        snapshot = client.snapshot()
        return snapshot if condition(snapshot) else None

    found = wait_until(look, 40, lambda: f"{what} {client.snapshot()}")
    assert found is not None
    return found


def running(client: SlurmClient, *job_ids: int) -> Snapshot:
    """The first snapshot in which all these jobs run."""
    return seen(client, lambda s: all(j in s.jobs and s.jobs[j].running for j in job_ids), f"{job_ids} run")


def gone(snapshot: Snapshot, job_id: int) -> bool:
    """Not listed, or only its processes are still being ended."""
    return job_id not in snapshot.jobs or snapshot.jobs[job_id].state == "COMPLETING"


def test_running_job_is_seen_with_all_it_holds(cluster: Cluster) -> None:
    """A running job's nodes, GPUs, type, owner and batch host are those that Slurm gave it."""
    client = cluster.client()
    job_id = cluster.submit(Want(3, 2), name="train", comment="elastic:gpus=2-8,batch=64-512", user="games")
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
    first = cluster.submit(Want(8, 4))
    running(client, first)
    waiting = cluster.submit(Want(2, 4), user="nobody")
    job = seen(client, lambda s: s.jobs[waiting].reason in ("Resources", "Priority")).jobs[waiting]
    assert (job.state, job.nodes, job.batch_host, job.start_time) == ("PENDING", (), "", None)
    assert (job.num_nodes, job.gpus, job.gpus_per_node) == (2, 8, 4)
    assert not job.active


def test_nodes_tell_used_gpus(cluster: Cluster) -> None:
    """Node by node, the GPUs in use are those of the jobs that run there."""
    client = cluster.client()
    job_id = cluster.submit(Want(1, 3, ("n5",)))
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
    job_id = cluster.submit(Want(1, 1), comment=text, name=text.strip())
    job = running(client, job_id).jobs[job_id]
    assert (job.comment, job.name, job.gpus) == (text, text.strip(), 1)


@pytest.mark.parametrize("text", ODD)
def test_set_comment_replaces_the_text(cluster: Cluster, text: str) -> None:
    """set_comment writes any printable text, and "" takes it away."""
    client = cluster.client()
    job_id = cluster.submit(Want(1, 1), comment="before")
    client.set_comment(job_id, text)
    assert client.snapshot().jobs[job_id].comment == text
    client.set_comment(job_id, "")
    assert client.snapshot().jobs[job_id].comment == ""


def test_control_characters_are_refused_in_a_comment(cluster: Cluster) -> None:
    """set_comment does not write what would break other tools' listings."""
    job_id = cluster.submit(Want(1, 1), comment="before")
    with pytest.raises(SlurmRefused, match="printable"):
        cluster.client().set_comment(job_id, "two\nlines")
    assert cluster.client().snapshot().jobs[job_id].comment == "before"


def test_shrink_in_place_keeps_the_chosen_nodes(cluster: Cluster) -> None:
    """A job gives up the nodes we choose, again and again, and runs on; the nodes are idle at once."""
    client = cluster.client()
    job_id = cluster.submit(Want(4, 4))
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
    job_id = cluster.submit(Want(3, 1))
    before = running(client, job_id).jobs[job_id]
    with pytest.raises(SlurmRefused):
        client.shrink(job_id, kept)
    after = client.snapshot().jobs[job_id]
    assert (after.nodes, after.gpus, after.state) == (before.nodes, before.gpus, "RUNNING")


def test_allocation_without_a_script_can_give_up_any_node(cluster: Cluster) -> None:
    """A companion (salloc --no-shell) has no batch host: any of its nodes may go; it can be cancelled."""
    client = cluster.client()
    job_id = cluster.submit(Want(2, 4), batch=False, name="selastic-7", comment="selastic:companion-of=7;directive=3")
    job = running(client, job_id).jobs[job_id]
    assert (job.nodes, job.batch_host, job.gpus) == (("n1", "n2"), "", 8)
    client.shrink(job_id, ["n2"])
    assert client.snapshot().jobs[job_id].nodes == ("n2",)
    client.cancel(job_id)
    seen(client, lambda s: gone(s, job_id) and s.nodes["n2"].gpus_used == 0)


def test_companions_share_the_node_of_their_base(cluster: Cluster) -> None:
    """GPU by GPU: two companions of one GPU beside a base of two fill one node, and are seen one by one."""
    client = cluster.client()
    base = cluster.submit(Want(1, 2, ("n1",)))
    running(client, base)
    companions = [cluster.submit(Want(1, 1, ("n1",)), batch=False) for _ in range(2)]
    snapshot = running(client, base, *companions)
    assert [snapshot.jobs[job_id].gpus for job_id in (base, *companions)] == [2, 1, 1]
    assert snapshot.nodes["n1"].gpus_used == 4
    client.cancel(companions[0])
    snapshot = seen(client, lambda s: gone(s, companions[0]) and s.nodes["n1"].gpus_used == 3)
    assert snapshot.jobs[base].running and snapshot.jobs[companions[1]].running


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
    job_id = cluster.submit(Want(1, 4), user="games", comment="elastic:x")
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


def test_what_cannot_be_requeued_is_refused(cluster: Cluster) -> None:
    """A job without a script, one that waits, one that has ended; a running job takes no size; others may not."""
    client = cluster.client()
    base, companion = cluster.submit(Want(1, 1), user="games"), cluster.submit(Want(7, 4), batch=False)
    waiting = cluster.submit(Want(8, 4))
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
        other = cluster.submit(Want(8, 4), user="nobody")
        mine = cluster.submit(Want(1, 4, ("n1",)), user="games")
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


def test_limits_of_the_accounting_are_read(empty_sandbox: Sandbox) -> None:
    """What an admin sets with sacctmgr is read from slurmctld; where limits are not enforced, none counts."""
    change = ["sacctmgr", "-i", "modify", "user", "games", "set"]
    qos = ["sacctmgr", "-i", "modify", "qos", "normal", "set"]

    def told() -> list[tuple[str, bool, dict[str, float]]]:
        shown = empty_sandbox.run(["scontrol", "show", "assoc_mgr", "flags=assoc,qos"]).stdout
        found = (limit for limit in limits(shown)[0] if limit.uid == 5 or limit.qos == "normal")
        return [(limit.qos, limit.each, dict(limit.tres)) for limit in found]

    assert empty_sandbox.run([*change, "GrpTRES=gres/gpu=8,node=3", "MaxTRESPerJob=gres/gpu=4"]).returncode == 0
    assert empty_sandbox.run([*qos, "MaxTRESPerJob=gres/gpu=6,cpu=64"]).returncode == 0
    expected = [
        ("", False, {"gres/gpu": 8.0, "node": 3.0}),
        ("", True, {"gres/gpu": 4.0}),
        ("normal", True, {"cpu": 64.0, "gres/gpu": 6.0}),
    ]
    try:
        wait_until(lambda: told() == expected, 60, told)
        assert RealCluster(empty_sandbox, Commands()).client().site().limits == ()
    finally:
        empty_sandbox.run([*change, "GrpTRES=gres/gpu=-1,node=-1", "MaxTRESPerJob=gres/gpu=-1"])
        empty_sandbox.run([*qos, "MaxTRESPerJob=gres/gpu=-1,cpu=-1"])


def test_heterogeneous_job_gives_up_one_component(cluster: Cluster) -> None:
    """Components are job records of their own; cancelling one leaves the others running; the first id ends all."""
    client = cluster.client()
    first = cluster.submit(Want(1, 4), Want(2, 2), Want(1, 1))
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
    first = cluster.submit(Want(1, 1), Want(2, 2))
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
    running(client, cluster.submit(Want(8, 4)))
    first = cluster.submit(Want(1, 1), Want(1, 1))
    seen(client, lambda s: s.jobs[first + 1].pending)
    with pytest.raises(SlurmRefused, match="individual component"):
        client.cancel(first + 1)
    assert client.snapshot().jobs[first + 1].pending


def test_cancel_may_be_repeated(cluster: Cluster) -> None:
    """Cancelling a job that has ended, or one that never was, is not an error."""
    client = cluster.client()
    job_id = cluster.submit(Want(1, 1))
    running(client, job_id)
    for _ in range(2):
        client.cancel(job_id)
    seen(client, lambda s: job_id not in s.jobs)
    client.cancel(job_id)
    client.cancel(99_999)


def test_ended_job_can_be_neither_shrunk_nor_changed(cluster: Cluster) -> None:
    """A job that has ended, or never was, refuses shrink and comment: the caller has to look again."""
    client = cluster.client()
    job_id = cluster.submit(Want(2, 1))
    running(client, job_id)
    client.cancel(job_id)
    seen(client, lambda s: job_id not in s.jobs)
    for gone_id in (job_id, 99_999):
        with pytest.raises(SlurmRefused):
            client.shrink(gone_id, ["n1"])
        with pytest.raises(SlurmRefused):
            client.set_comment(gone_id, "x")


def test_shrink_of_a_waiting_job_becomes_a_requirement(cluster: Cluster) -> None:
    """Slurm takes the nodes of a pending job's shrink as required ones: visible in the snapshot, not silent."""
    client = cluster.client()
    running(client, cluster.submit(Want(8, 4)))
    waiting = cluster.submit(Want(1, 4))
    client.shrink(waiting, ["n6"])
    job = client.snapshot().jobs[waiting]
    assert (job.state, job.required_nodes) == ("PENDING", ("n6",))


def test_strangers_are_refused_and_owners_are_not(cluster: Cluster) -> None:
    """An ordinary user may shrink, tag and cancel their own jobs, and nobody else's."""
    stranger, owner, root = cluster.client("nobody"), cluster.client("games"), cluster.client()
    job_id = cluster.submit(Want(2, 1), user="games", comment="mine")
    running(root, job_id)
    for attempt in (
        lambda: stranger.shrink(job_id, ["n1"]),
        lambda: stranger.cancel(job_id),
        lambda: stranger.set_comment(job_id, "stolen"),
    ):
        with pytest.raises(SlurmRefused):
            attempt()
    job = stranger.snapshot().jobs[job_id]
    assert (job.nodes, job.comment, job.user) == (("n1", "n2"), "mine", "games")
    owner.shrink(job_id, ["n1"])
    owner.set_comment(job_id, "smaller")
    job = root.snapshot().jobs[job_id]
    assert (job.nodes, job.comment) == (("n1",), "smaller")
    owner.cancel(job_id)
    seen(root, lambda s: gone(s, job_id))


def test_no_slurmctld_is_unreachable_not_refused(cluster: Cluster) -> None:
    """While slurmctld is down nothing is concluded: every call says unreachable; afterwards the job is as it was."""
    client = cluster.client()
    job_id = cluster.submit(Want(2, 1), comment="still here")
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
        lambda: client.set_comment(job_id, "x"),
    ]
    cluster.stop()
    try:
        with ThreadPoolExecutor(len(calls)) as pool:  # each waits for Slurm's own timeout
            assert list(pool.map(outcome, calls)) == [SlurmUnreachable] * len(calls)
    finally:
        cluster.start()
    after = running(client, job_id).jobs[job_id]
    assert (after.nodes, after.comment, after.batch_host) == (before.nodes, "still here", before.batch_host)


# What only the real one has: forms of asking for GPUs, arrays, and comments that break lines.


def sbatch(sandbox: Sandbox, *options: str) -> int:
    answer = sandbox.run(["sbatch", "--parsable", "--output=/dev/null", *options, "--wrap", "sleep 900"])
    assert answer.returncode == 0, answer.stderr
    return int(answer.stdout.split(";")[0])


def gpu_requests(sandbox: Sandbox, way: Commands) -> dict[str, tuple[Job, Job]]:
    """Every form of asking for GPUs, seen waiting and running."""
    client = way.client(sandbox.env["SLURM_CONF"])
    forms = {
        "gres": ("-N2", "--gres=gpu:2"),
        "typed": ("-N1", "--gres=gpu:a100:3"),
        "per node": ("-N2", "--gpus-per-node=1"),
        "total": ("-N2", "-n2", "--gpus=6"),
        "per task": ("-N1", "-n2", "--gpus-per-task=2"),
        "none": ("-N1",),
    }
    ids = {form: sbatch(sandbox, "--hold", *options) for form, options in forms.items()}
    before = client.snapshot()
    sandbox.run(["scontrol", "release", *(str(job_id) for job_id in ids.values())])
    after = running(client, *ids.values())
    return {form: (before.jobs[job_id], after.jobs[job_id]) for form, job_id in ids.items()}


def test_pyslurm_tells_what_commands_tell(empty_sandbox: Sandbox, pyslurm: PySlurm) -> None:
    """Whatever the daemon reads of jobs, nodes and partitions is the same by both ways."""
    conf = empty_sandbox.env["SLURM_CONF"]
    ways = pyslurm.client(conf), CommandClient(conf)
    gpu_requests(empty_sandbox, pyslurm)
    sbatch(empty_sandbox, "--array=0-5%2", "--gres=gpu:1", "--exclusive", "--time=90", "--hold")
    sbatch(empty_sandbox, "--array=0-1", "-N1", "--mem=700", "--nodelist=n8", "--comment=a b", "--nice=7")
    RealCluster(empty_sandbox, pyslurm).submit(Want(1, 1), Want(2, 2), user="games")
    sbatch(empty_sandbox, "-N8", "--gres=gpu:a100:4", "--mem-per-cpu=100", "--no-requeue", "--begin=now+1hour")
    seen(ways[1], lambda s: sum(job.running for job in s.jobs.values()) == 10)

    def told(client: SlurmClient) -> dict[str, Any]:
        found = client.snapshot()
        jobs = {job_id: replace(job, time_left_s=None) for job_id, job in found.jobs.items()}
        return {"jobs": jobs, "nodes": dict(found.nodes), "partitions": dict(found.partitions)}

    one, other = told(ways[0]), told(ways[1])
    for kind in one:
        assert one[kind] == other[kind]


EXPECTED = {
    "gres": ((4, 2), (4, 2, "a100")),
    "typed": ((3, 3), (3, 3, "a100")),
    "per node": ((2, 1), (2, 1, "a100")),
    "total": ((6, 0), (6, 3, "a100")),
    "per task": ((4, 0), (4, 4, "a100")),
    "none": ((0, 0), (0, 0, "")),
}


def _summary(found: dict[str, tuple[Job, Job]]) -> dict[str, Any]:
    return {
        form: ((waiting.gpus, waiting.gpus_per_node), (job.gpus, job.gpus_per_node, job.gpu_type))
        for form, (waiting, job) in found.items()
    }


def test_every_form_of_asking_for_gpus_is_counted(empty_sandbox: Sandbox, way: Commands) -> None:
    """--gres, --gpus, --gpus-per-node and --gpus-per-task give the right totals, waiting and running."""
    assert _summary(gpu_requests(empty_sandbox, way)) == EXPECTED


def test_gpus_are_counted_without_gpu_accounting(can_run_slurm: None, way: Commands) -> None:
    """A site whose AccountingStorageTRES does not name gres/gpu gets the same totals from what was asked for."""
    with Sandbox.up(SandboxSpec(nodes=8, with_accounting=False)) as plain:
        assert "AccountingStorageTRES" not in (plain.dir / "slurm.conf").read_text()
        # Of a total over several nodes only the sum is known then, and it goes stale when the job gives up a node.
        assert _summary(gpu_requests(plain, way)) == EXPECTED | {"total": ((6, 0), (6, 0, "a100"))}


def test_task_of_an_array_is_cancelled_by_its_own_id(empty_sandbox: Sandbox, way: Commands) -> None:
    """Slurm 22.05's scancel ignores the raw id of an array's task and reports success; the client does not."""
    client = way.client(empty_sandbox.env["SLURM_CONF"])
    array = sbatch(empty_sandbox, "--array=1-5%2", "--gres=gpu:1")
    snapshot = seen(client, lambda s: sum(j.running for j in s.jobs.values()) == 2)
    tasks = sorted((j for j in snapshot.jobs.values() if j.running), key=lambda j: j.array_task)
    assert [(j.array_job_id, j.array_task) for j in tasks] == [(array, "1"), (array, "2")]
    waiting = [j for j in snapshot.jobs.values() if j.pending]
    assert [(j.job_id, j.array_task) for j in waiting] == [(array, "3-5%2")]
    client.cancel(tasks[0].job_id)
    after = seen(client, lambda s: gone(s, tasks[0].job_id))
    assert after.jobs[tasks[1].job_id].running


def test_comment_of_several_lines_breaks_nothing(empty_sandbox: Sandbox, way: Commands) -> None:
    """Newlines, tabs and what looks like a record in a comment stay inside that comment."""
    client = way.client(empty_sandbox.env["SLURM_CONF"])
    text = "first\n7~7~N/A~RUNNING~~\n\tlast"
    job_id = sbatch(empty_sandbox, f"--comment={text}")
    other = sbatch(empty_sandbox, "--comment=plain")
    snapshot = running(client, job_id, other)
    assert (snapshot.jobs[job_id].comment, snapshot.jobs[other].comment) == (text, "plain")
    assert set(snapshot.jobs) == {job_id, other}
