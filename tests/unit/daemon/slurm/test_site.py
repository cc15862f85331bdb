"""Slurm's own limits and reservations: read from what scontrol prints, and what they leave for elastic jobs."""

from __future__ import annotations

import grp
from dataclasses import replace
from pathlib import Path

import pytest
from cluster_snapshots import Cluster
from daemon_harness import World
from fake_slurm import FakeSlurm
from plan_cases import SETTINGS
from record_slurm import RECORDED

from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.capacity.slurm_limits import GpuLimit, gpu_limits
from slurm_elastic.daemon.planner.running.eligibility import running_job
from slurm_elastic.daemon.planner.running.state import JobState
from slurm_elastic.daemon.planner.user_limits import holds, limit_usage
from slurm_elastic.daemon.slurm.accounting import SlurmLimit
from slurm_elastic.daemon.slurm.commands import members_of
from slurm_elastic.daemon.slurm.model import Node, Snapshot
from slurm_elastic.daemon.slurm.site import (
    PartitionRules,
    Reservation,
    Site,
    bf_interval_s,
    can_suspend,
    partitions,
    reservations,
    saves_power,
    switches,
    users_apart,
)
from slurm_elastic.daemon.slurm.snapshot_cache import SnapshotCache
from slurm_elastic.protocol.errors import SlurmUnparsable
from slurm_elastic.protocol.messages import REFUSED, Tried

REQUEST = "elastic:gpus=1-32,batch=16-4096"


def test_reservations_are_read() -> None:
    """Nodes and times; that there are none is said in words."""
    line = "ReservationName=maint StartTime=1795207802 EndTime=1795211402 Duration=01:00:00 Nodes=n[7-8] NodeCnt=2"
    assert reservations(line) == (Reservation("maint", ("n7", "n8"), 1795207802.0, 1795211402.0),)
    assert reservations("No reservations in the system\n") == ()


@pytest.mark.parametrize("printed", sorted(RECORDED.glob("topology-*.txt")), ids=lambda path: path.stem)
def test_leaf_switches_are_read(printed: Path) -> None:
    """Of record_slurm.TREE as each supported Slurm printed it, from topology.conf and topology.yaml: the lowest switch
    over each node. Switches of switches say nothing more, and a node under none is left out."""
    assert switches(printed.read_text()) == {"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"}


def test_there_are_topologies_of_every_supported_release() -> None:
    """Those that `make test` and `make test-matrix` run on."""
    wanted = {"topology-22.05", "topology-24.11", "topology-26.05", "topology-yaml-26.05"}
    assert wanted <= {path.stem for path in RECORDED.glob("topology-*.txt")}


def test_other_topologies_than_trees_tell_nothing() -> None:
    """Blocks are no switches; and where there is no topology nothing is printed."""
    assert switches("BlockName=b1 BlockIndex=0 Nodes=n[1-2] BlockSize=2\n") == switches("") == {}


def test_nodes_under_no_switch_are_marked_where_slurm_starts_nothing_on_them() -> None:
    """A tree over n1 alone: n2 is not schedulable where Slurm needs a switch, and n1 stays the same object."""
    snapshot = Snapshot(0.0, nodes={name: Node(name, frozenset({"IDLE"}), gpus=4) for name in ("n1", "n2")})
    found = snapshot.marked(Site(switches={"n1": "leaf1"}, needs_switch=True))
    assert [node.schedulable for node in found.nodes.values()] == [True, False]
    assert found.nodes["n1"] is snapshot.nodes["n1"]
    assert snapshot.marked(Site(switches={"n1": "leaf1"})) is snapshot.marked(Site()) is snapshot


def limits_of(site: Site, snapshot: Snapshot) -> list[GpuLimit]:
    """What the limits leave the elastic jobs of a snapshot."""
    running = [running_job(job, JobState(), SETTINGS, 0.0) for job in sort_jobs(snapshot).elastic.values()]
    usage = limit_usage(site, snapshot, running)
    return gpu_limits(usage, [(one.job.base, holds(one, usage)) for one in running])


def left(*rules: SlurmLimit, parents: dict[str, str] | None = None) -> dict[str, int]:
    """What limits leave job 1 (8 GPUs, 16 CPUs on two nodes), beside an ordinary job of 4 GPUs of the same user."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2", 4, REQUEST)
    cluster.run(2, "n3", 4)
    snapshot = cluster.snapshot()
    found = limits_of(Site(1.0, rules, parents or {}), snapshot)
    assert all(limit.jobs == {1} for limit in found)
    return {limit.label: limit.more for limit in found}


def test_limits_become_gpus() -> None:
    """What is left of GPUs, nodes or CPUs, over what one more GPU takes; ordinary jobs count as used."""
    assert list(left(SlurmLimit("lab", tres={"gres/gpu": 14})).values()) == [2]
    assert list(left(SlurmLimit(uid=1001, tres={"node": 4})).values()) == [4]
    assert list(left(SlurmLimit(qos="normal", tres={"cpu": 30, "gres/gpu:a100": 99})).values()) == [3]
    assert list(left(SlurmLimit("lab", tres={"gres/gpu": 5})).values()) == [0]  # nobody is asked to give back
    assert list(left(SlurmLimit("lab", tres={"jobs": 2})).values()) == [0]
    assert left(SlurmLimit("lab", tres={"jobs": 3})) == left(SlurmLimit("other", tres={"gres/gpu": 1})) == {}
    assert list(left(SlurmLimit("all", tres={"gres/gpu": 13}), parents={"lab": "all"}).values()) == [1]


def test_what_one_job_may_have_holds_for_all_pieces_of_an_elastic_one() -> None:
    """MaxTRESPerJob: base and companions count together, other jobs of the same user do not."""
    cluster = Cluster(4)
    cluster.run(1, "n1", 4, REQUEST)
    cluster.companion(5, 1, "n2", 2)
    cluster.run(2, "n3", 4, REQUEST)
    snapshot = cluster.snapshot()
    rule = SlurmLimit(qos="normal", tres={"gres/gpu": 7, "node": 9}, scope="job")
    found = limits_of(Site(1.0, (rule,), {}), snapshot)
    assert {limit.jobs: limit.more for limit in found} == {frozenset({1}): 1, frozenset({2}): 3}
    assert {limit.label for limit in found} == {"Slurm's limit gres/gpu=7 of each job (QOS normal) leaves it"}


def test_a_plan_keeps_what_slurm_lets_one_job_have(tmp_path: Path) -> None:
    """A job with companions stays within MaxTRESPerJob, and `explain` names it."""
    world = World(tmp_path)
    world.slurm.limits = (SlurmLimit(qos="normal", tres={"gres/gpu": 8.0}, scope="job"),)
    job = world.elastic()
    world.settle()
    assert job.gpus == 8
    decision = world.store.decisions.last(job.job_id)
    assert decision is not None and "gres/gpu=8 of each job (QOS normal)" in decision.evidence["limit"]


def test_a_plan_counts_companions_in_their_own_qos(tmp_path: Path) -> None:
    """The base's QOS is full, that of companions leaves one node: the job grows by it, and no further."""
    world = World(tmp_path, companion_qos="spare")
    limits = [SlurmLimit(qos=qos, tres={"gres/gpu": 4.0}, scope="user") for qos in ("normal", "spare")]
    world.slurm.limits = tuple(limits)
    job = world.elastic()
    world.settle()
    assert job.gpus == 8
    decision = world.store.decisions.last(job.job_id)
    assert decision is not None and "(QOS spare, each user)" in decision.evidence["limit"]


def test_a_plan_keeps_slurms_limits(tmp_path: Path) -> None:
    """Idle GPUs that the account may not hold are left alone, and the decision says which limit it was."""
    world = World(tmp_path)
    world.slurm.limits = (SlurmLimit(uid=5, tres={"gres/gpu": 12.0}),)
    job = world.elastic()
    world.settle()
    assert job.gpus == 12
    decision = world.store.decisions.last(job.job_id)
    assert decision is not None and "Slurm's limit gres/gpu=12 (user 5)" in decision.evidence["limit"]


def test_no_growth_onto_nodes_that_are_reserved_before_the_job_ends(tmp_path: Path) -> None:
    """A companion would wait there until it is withdrawn: the job grows onto the other nodes only."""
    world = World(tmp_path, nodes=4)
    world.slurm.model.reservations["maintenance"] = ("n3", "n4")
    job = world.elastic()
    world.settle()
    assert job.gpus == 8


def test_whether_slurm_puts_idle_nodes_to_sleep() -> None:
    """A time and a program for it, as scontrol show config has them."""
    shown = "SuspendExcNodes         = (null)\nSuspendProgram          = {}\nSuspendTime             = {}\n"
    assert saves_power(shown.format("/sbin/off", "300 sec"))
    assert not saves_power(shown.format("/sbin/off", "INFINITE")) and not saves_power(shown.format("(null)", "300 sec"))
    assert not saves_power("")
    assert can_suspend(shown.format("/sbin/off", "INFINITE")) and not can_suspend(shown.format("(null)", "300 sec"))


@pytest.mark.parametrize(("program", "time", "saves"), [(True, True, True), (True, False, False), (False, True, False)])
def test_a_partitions_own_suspend_time_saves_power(program: bool, time: bool, saves: bool) -> None:
    """Where slurm.conf itself has INFINITE, as long as there is a program for it."""
    slurm = FakeSlurm(nodes=1)
    slurm.partition_rules = {"main": PartitionRules(suspends=time)}
    client = slurm.client()
    found = replace(client.site(), can_suspend=program)
    client.site = lambda: found  # type: ignore[method-assign]
    assert SnapshotCache(client).site().power_saving is saves


PARTITIONS = (
    "PartitionName=main AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL QoS=N/A ExclusiveUser=NO MaxNodes=UNLIMITED"
    " MinNodes=0 MaxCPUsPerNode=UNLIMITED State=UP TotalCPUs=32\n"
    "PartitionName=a AllowGroups=games AllowAccounts=x,y DenyQos=Z QoS=part ExclusiveUser=YES MaxNodes=3 MinNodes=2"
    " MaxCPUsPerNode=4 State=DRAIN SuspendTimeout=GLOBAL SuspendTime=30\n"
)


def test_what_partitions_ask_of_their_jobs_is_read() -> None:
    """As 22.05 prints it; a record of another form is an error."""
    rules, qos = partitions(PARTITIONS, members_of)
    one = PartitionRules(
        "DRAIN",
        2,
        3,
        4,
        True,
        accounts=frozenset({"x", "y"}),
        no_qos=frozenset({"z"}),
        users=members_of(frozenset({"games"})),
        suspends=True,
    )
    assert (rules, qos) == ({"main": PartitionRules(), "a": one}, {"a": "part"})
    with pytest.raises(SlurmUnparsable, match="a partition of no known form"):
        partitions("PartitionName=a MinNodes=many", members_of)


def test_what_gpus_cost_in_a_partition_is_read() -> None:
    """Weights of CPUs and memory, and what a partition holds, are not taken for it; no weights, no limit is as ever."""
    priced = (
        "TRES=cpu=16,gres/gpu=8 MaxTime=2-00:30:00 TRESBillingWeights=CPU=1.0,Mem=0.25G,GRES/gpu=2.5,GRES/gpu:A100=3"
    )
    rules, _ = partitions(
        f"PartitionName=gpu {priced}\nPartitionName=all MaxTime=UNLIMITED TRES=gres/gpu=8", members_of
    )
    assert rules["gpu"].billing == {"gres/gpu": 2.5, "gres/gpu:a100": 3.0} and rules["gpu"].max_time_s == 174_600
    assert rules["all"] == PartitionRules()


@pytest.mark.parametrize(
    ("said", "exclusive"),
    [("ExclusiveUser=YES", True), ("ExclusiveUser=NO", False), ("Exclusive=USER", True), ("Exclusive=NODE", False)],
)
def test_a_partition_whose_nodes_users_do_not_share_is_known_by_each_release(said: str, exclusive: bool) -> None:
    """26.05 writes it otherwise than those before it."""
    rules, _ = partitions(f"PartitionName=main {said} State=UP", members_of)
    assert rules["main"].exclusive_user is exclusive


def test_the_members_of_groups_are_those_that_this_host_knows() -> None:
    """By their own group, or listed in it; of a group that only Slurm's host knows Slurm will say."""
    listed = next((group for group in grp.getgrall() if group.gr_mem), None)
    assert "daemon" in (members_of(frozenset({"games", "daemon"})) or ())
    assert "daemon" not in (members_of(frozenset({"games"})) or ())
    assert listed is None or set(listed.gr_mem) <= (members_of(frozenset({listed.gr_name})) or set())
    assert members_of(frozenset({"games", "nobody-knows-it"})) is None and members_of(None) is None


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        (PartitionRules(), ""),
        (PartitionRules("DRAIN"), "is DRAIN"),
        (PartitionRules(accounts=frozenset({"lab"}), qos=frozenset({"normal"})), ""),
        (PartitionRules(accounts=frozenset({"other"})), "does not take account lab"),
        (PartitionRules(no_accounts=frozenset({"lab"})), "does not take account lab"),
        (PartitionRules(qos=frozenset({"long"})), "does not take QOS normal"),
        (PartitionRules(no_qos=frozenset({"normal"})), "does not take QOS normal"),
        (PartitionRules(users=frozenset({"anna"})), ""),
        (PartitionRules(users=frozenset({"ben"})), "does not take user anna, who is in none of its AllowGroups"),
    ],
)
def test_a_partition_that_takes_no_further_job_is_known(rules: PartitionRules, why: str) -> None:
    """By its state, users, accounts and QOS."""
    assert rules.closed("anna", ["lab"], "normal") == why


@pytest.mark.parametrize(
    ("rules", "before", "since"),
    [
        (PartitionRules(accounts=frozenset({"faculty"})), "does not take account lab", ""),
        (PartitionRules(no_accounts=frozenset({"faculty"})), "", "does not take account lab"),
        (PartitionRules(accounts=frozenset({"lab2"})), "does not take account lab", "does not take account lab"),
    ],
)
def test_a_partition_takes_accounts_below_those_it_lists(rules: PartitionRules, before: str, since: str) -> None:
    """Since 23.02. Where it is not known which are below which, Slurm will say."""
    parents = {"lab": "department", "department": "faculty", "faculty": "root"}
    assert rules.closed("anna", Site(parents=parents).listed_as("lab"), "normal") == before
    assert rules.closed("anna", Site(parents=parents, holds_those_below=True).listed_as("lab"), "normal") == since
    assert rules.closed("anna", Site(holds_those_below=True).listed_as("lab"), "normal") == ""


@pytest.mark.parametrize(
    ("rules", "gpus"),
    [
        (PartitionRules("INACTIVE"), 4),
        (PartitionRules(min_nodes=2), 12),
        (PartitionRules(max_nodes=1), 12),
        (PartitionRules(min_nodes=9), 4),
        (PartitionRules(no_accounts=frozenset({"research"})), 4),
        (PartitionRules(), 12),
    ],
)
def test_growths_keep_to_what_their_partition_asks_for(tmp_path: Path, rules: PartitionRules, gpus: int) -> None:
    """A companion is a job of its own there."""
    world = World(tmp_path, nodes=3)
    job = world.elastic(account="research")
    world.slurm.partition_rules = {"main": rules}
    world.settle()
    assert job.gpus == gpus


def test_a_node_of_another_user_is_no_room_where_nodes_are_not_shared() -> None:
    """Not for a growth, nor for a job that waits, unless a companion holds it; whoever's partition says so."""
    at = Cluster(4)
    at.run(1, "n1", 2, REQUEST, user="ann")
    at.run(2, "n2", 2, user="bob")
    at.run(3, "n3", 2, user="bob", name="selastic-9")
    at.wait(4, 1, 4, user="ann")
    at.run(5, "n4", 2, user="ann")
    snapshot = at.snapshot()
    shut = Site(partitions={"main": PartitionRules(exclusive_user=True)})
    excluded = {number: job.excluded_nodes for number, job in snapshot.marked(shut).jobs.items()}
    assert excluded == {1: ("n2", "n3"), 2: ("n1", "n4"), 3: ("n1", "n4"), 4: ("n2",), 5: ("n2", "n3")}
    assert snapshot.marked(Site(partitions={"main": PartitionRules()})) is snapshot


@pytest.mark.parametrize(
    ("plugin", "parameters", "apart"),
    [
        ("mcs/user", "enforced,select", True),
        ("mcs/user", "enforced,noselect", False),
        ("mcs/user", "ondemand,select", False),
        ("mcs/account", "enforced,select", False),
        ("(null)", "(null)", False),
    ],
)
def test_users_whose_labels_slurm_keeps_apart_share_no_node(plugin: str, parameters: str, apart: bool) -> None:
    """Where every job has one: with labels that are asked for, Slurm alone says who may."""
    found = users_apart(f"MCSPlugin               = {plugin}\nMCSParameters           = {parameters}\n")
    assert found is apart
    at = Cluster(2)
    at.run(1, "n1", 2, REQUEST, user="ann")
    at.run(2, "n2", 2, user="bob")
    site = Site(partitions={"main": PartitionRules()}, users_apart=found)
    assert at.snapshot().marked(site).jobs[1].excluded_nodes == (("n2",) if apart else ())


def test_a_job_that_shares_nodes_with_its_users_alone_closes_them_to_others() -> None:
    """--exclusive=user, of either: whatever the partition says."""
    at = Cluster(4)
    at.run(1, "n1", 2, REQUEST, user="ann", for_its_user=True)
    at.run(2, "n2", 2, REQUEST, user="bob")
    at.run(3, "n3", 2, user="ann")
    at.run(4, "n4", 2, user="bob", for_its_user=True)
    excluded = {number: job.excluded_nodes for number, job in at.snapshot().marked(Site()).jobs.items()}
    assert excluded == {1: ("n2", "n4"), 2: ("n1",), 3: ("n4",), 4: ("n1", "n3")}


def test_nodes_not_shared_stay_excluded_where_two_jobs_see_the_same_gpus() -> None:
    """Another user's job without a GPU is no room either."""
    at = Cluster(3)
    at.run(1, "n1", 2, user="ann")
    at.run(2, "n2", 0, user="bob")
    probed = {("", "main"): {"gpus": Tried("gpus", REFUSED, "both see 0")}}
    site = Site(partitions={"main": PartitionRules(exclusive_user=True)}, probed=probed)
    assert set(at.snapshot().marked(site).jobs[1].excluded_nodes) == {"n1", "n2"}


@pytest.mark.parametrize(
    ("config", "seconds"),
    [
        ("SchedulerParameters     = defer,bf_interval=60\nSchedulerType           = sched/backfill", 60.0),
        ("SchedulerParameters     = (null)\nSchedulerType           = sched/backfill", 30.0),
        ("SchedulerParameters     = bf_interval=60\nSchedulerType           = sched/builtin", 0.0),
    ],
)
def test_how_often_backfill_looks(config: str, seconds: float) -> None:
    """Slurm's default where nothing is set; nothing where backfill does not run."""
    assert bf_interval_s(config) == seconds
