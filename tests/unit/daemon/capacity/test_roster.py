"""What is elastic, and what waiting jobs need."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_snapshots import TYPE, Cluster
from shrink_jobs import REQUEST, room

from slurm_elastic.daemon.capacity.pending_jobs import limited, needs
from slurm_elastic.daemon.capacity.roster import Roster, Scope, companion_tag, sort_jobs
from slurm_elastic.daemon.slurm.model import Partition
from slurm_elastic.protocol.codes import Reason

# --- which jobs are elastic ---------------------------------------------------------------------------------------


def test_elastic_job_has_its_pieces_in_order() -> None:
    """Base, components by offset, companions by job id: what everything else builds on."""
    cluster = Cluster(6)
    cluster.run(10, "n1", comment=REQUEST)
    cluster.companion(15, 10, "n4", resize=3)
    cluster.companion(12, 10, "n3", resize=2)
    cluster.run(11, "n2", het_job_id=10, het_offset=1)
    cluster.change(10, het_job_id=10)
    job = sort_jobs(cluster.snapshot()).elastic[10]
    assert [(p.slurm_job_id, p.kind) for p in job.pieces] == [
        (10, "base"),
        (11, "component"),
        (12, "companion"),
        (15, "companion"),
    ]
    assert [held.resize for held in job.held] == [0, 0, 2, 3]
    assert job.gpus == 16


def test_ordinary_jobs_are_in_no_roster() -> None:
    """A job that did not ask is never touched, whatever else its comment says."""
    cluster = Cluster()
    cluster.run(1, "n1", comment="inelastic:gpus=1-4,batch=16")
    cluster.run(2, "n2")
    roster = sort_jobs(cluster.snapshot())
    assert (roster.elastic, roster.unmanaged, roster.orphans) == ({}, {}, ())


def test_malformed_request_is_left_alone_with_its_sentence() -> None:
    """A request that cannot be read makes an ordinary job, and the sentence names the key."""
    cluster = Cluster()
    cluster.run(1, "n1", comment="elastic:gpu=1-4,batch=16-64")
    verdict = sort_jobs(cluster.snapshot()).unmanaged[1]
    assert verdict.reason is Reason.MALFORMED
    assert "unknown key 'gpu'" in verdict.detail and "gpus" in verdict.detail


def test_an_exclusive_jobs_starting_size_is_known_when_it_runs() -> None:
    """What it asks for is not what it will hold: while it waits, and while its start is not seen yet, it is no reason
    to refuse it."""
    cluster = Cluster()
    cluster.wait(1, 2, 1, "elastic:gpus=8-16,batch=16-64", exclusive=True)
    assert sort_jobs(cluster.snapshot()).unmanaged == {}
    cluster.run(1, "n1", 1, "elastic:gpus=8-16,batch=16-64", exclusive=True)
    assert "starts with 1 GPU" in sort_jobs(cluster.snapshot()).unmanaged[1].detail


def test_starting_size_outside_the_range_is_refused_once_only() -> None:
    """A start the range excludes is malformed; a job that was managed before may hold such a size by our doing."""
    cluster = Cluster()
    cluster.run(1, "n1", comment="elastic:gpus=8-16,batch=16-64")
    snapshot = cluster.snapshot()
    assert "starts with 4 GPUs" in sort_jobs(snapshot).unmanaged[1].detail
    assert 1 in sort_jobs(snapshot, accepted={1}).elastic


def test_minimum_above_the_partition_is_impossible() -> None:
    """A request this cluster can never meet is told with the number that it has."""
    cluster = Cluster(2)
    cluster.wait(1, 3, comment="elastic:gpus=12-16,batch=16-64")
    verdict = sort_jobs(cluster.snapshot()).unmanaged[1]
    assert verdict.reason is Reason.IMPOSSIBLE and "has 8 GPUs" in verdict.detail


def test_unknown_gpu_type_is_impossible() -> None:
    """So is a GPU type the partition does not have."""
    cluster = Cluster(2)
    cluster.wait(1, 1, comment=REQUEST, gpu_type="h100")
    assert "h100" in sort_jobs(cluster.snapshot()).unmanaged[1].detail


def test_gpus_spread_unevenly_over_nodes_are_left_alone() -> None:
    """A GPU is given up with its node's share; where shares differ and are not known, nothing is."""
    cluster = Cluster()
    cluster.run(1, "n1 n2", 4, comment=REQUEST, gpus=6)
    assert "not known to be as many on each" in sort_jobs(cluster.snapshot()).unmanaged[1].detail


def test_scope_limits_partitions_and_users() -> None:
    """A partition that is not open says so; in user mode another user's job is an ordinary one."""
    cluster = Cluster()
    cluster.run(1, "n1", comment=REQUEST)
    cluster.run(2, "n2", comment=REQUEST, uid=1002)
    snapshot = cluster.snapshot()
    assert sort_jobs(snapshot, Scope(partitions=("long",))).unmanaged[1].reason is Reason.NOT_ALLOWED
    assert sort_jobs(snapshot, Scope(accounts=("physics",))).unmanaged[1].reason is Reason.NOT_ALLOWED
    assert set(sort_jobs(snapshot, Scope(uid=1001)).elastic) == {1}


def test_request_of_the_supervisor_overrides_the_comment() -> None:
    """`selastic run --elastic=...` speaks for a job whose comment says nothing."""
    cluster = Cluster()
    cluster.run(1, "n1")
    assert sort_jobs(cluster.snapshot(), asked={1: "gpus=2-8,batch=16-64"}).elastic[1].request.max_gpus == 8


def test_companion_of_an_ended_base_is_an_orphan() -> None:
    """Nothing in Slurm ends a companion with its base, so the roster names it."""
    cluster = Cluster()
    cluster.companion(5, 4, "n2")
    assert [job.job_id for job in sort_jobs(cluster.snapshot()).orphans] == [5]


def test_companion_of_a_requeued_base_is_an_orphan_and_of_a_suspended_one_is_not() -> None:
    """A base back in the queue starts again at its own size; a suspended one will go on where it was."""
    cluster = Cluster()
    cluster.run(4, "n1", comment=REQUEST)
    cluster.companion(5, 4, "n2")
    cluster.change(4, state="PENDING", nodes=())
    assert [job.job_id for job in sort_jobs(cluster.snapshot()).orphans] == [5]
    cluster.change(4, state="SUSPENDED", nodes=("n1",))
    assert sort_jobs(cluster.snapshot()).orphans == ()


def test_another_users_tag_gains_nothing() -> None:
    """Tagging one's own job for another's base neither joins it nor has it cancelled."""
    cluster = Cluster()
    cluster.run(4, "n1", comment=REQUEST)
    cluster.companion(5, 4, "n2")
    cluster.change(5, uid=1002)
    roster = sort_jobs(cluster.snapshot())
    assert roster.orphans == () and len(roster.elastic[4].held) == 1


def test_a_comment_alone_is_no_companion() -> None:
    """Comment and name must both say it: a user's own job with a copied comment is not cancelled."""
    cluster = Cluster()
    job = cluster.run(5, "n2", comment="selastic:companion-of=4;resize=1", name="mine")
    assert companion_tag(job) is None
    assert sort_jobs(cluster.snapshot()).orphans == ()


# --- what waiting jobs need ---------------------------------------------------------------------------------------


def test_only_jobs_that_wait_for_resources_count() -> None:
    """Held, dependent and begin-time jobs, and those over a limit of each job, could not use what elastic jobs give."""
    cluster = Cluster()
    for number, reason in enumerate(("Dependency", "JobHeldUser", "BeginTime", "QOSMaxGRESPerJob", "Priority"), 1):
        cluster.wait(number, reason=reason, eligible_time=cluster.at + (600 if reason == "BeginTime" else 0))
    snapshot = cluster.snapshot()
    assert [need.job_id for need in needs(snapshot, sort_jobs(snapshot))] == [5]


def test_room_is_made_shortly_before_a_begin_time() -> None:
    """A job that may start in less than a minute is made room for now: at its time Slurm would preempt what is in its
    way. Not one that was put back, whose
    begin time is Slurm's own, nor one that may start later, or in a reservation of its own."""
    cluster = Cluster()
    cluster.wait(1, reason="BeginTime", eligible_time=cluster.at + 50)
    cluster.wait(2, reason="BeginTime", eligible_time=cluster.at + 70)
    cluster.wait(3, reason="BeginTime", eligible_time=cluster.at + 50, restarts=1)
    cluster.wait(4, reason="BeginTime", eligible_time=cluster.at + 50, reservation="course")
    snapshot = cluster.snapshot()
    assert [need.job_id for need in needs(snapshot, sort_jobs(snapshot))] == [1]


def test_needs_come_in_slurms_order() -> None:
    """Priority first, then the time of submission."""
    cluster = Cluster()
    cluster.wait(1, priority=5)
    cluster.wait(2, priority=9)
    cluster.wait(3, priority=9, submit_time=1.0)
    snapshot = cluster.snapshot()
    assert [need.job_id for need in needs(snapshot, sort_jobs(snapshot))] == [3, 2, 1]


def test_a_higher_tier_comes_first_and_a_begin_time_to_come_does_not_count() -> None:
    """PriorityTier beats priority, as in Slurm; a job just put back has no reason yet, and cannot start for minutes."""
    cluster = Cluster()
    cluster.wait(1, priority=9)
    cluster.wait(2, priority=1, partition="urgent")
    cluster.wait(3, priority=99, reason="", eligible_time=cluster.at + 121)
    snapshot = replace(cluster.snapshot(), partitions={"urgent": Partition("urgent", 20), "main": Partition("main")})
    assert [need.job_id for need in needs(snapshot, Roster())] == [2, 1]


@pytest.mark.parametrize(
    ("reason", "counts"),
    [("AssocGrpGRES", True), ("QOSMaxJobsPerUserLimit", True), ("AssocMaxJobsLimit", True), ("MaxGRESPerAccount", True),
     ("QOSGrpCpuLimit", True), ("QOSMinGRES", False), ("AssocGrpGRESMinutes", True),
     ("AssocGrpGRESRunMinutes", True), ("QOSMaxGRESMinutesPerJob", False), ("QOSNotAllowed", False),
     ("AssocMaxWallDurationPerJobLimit", False), ("QOSMaxGRESPerNode", False), ("AssocGrpBilling", False),
     ("MaxMemPerLimit", False), ("Resources", False), ("AssocGrpSubmitJobsLimit", False)],
)  # fmt: skip
def test_only_limits_of_what_runs_at_the_same_time_can_be_given_back(reason: str, counts: bool) -> None:
    """As Slurm names what a job waits for."""
    assert limited(reason) is counts


def test_no_room_is_made_on_nodes_without_the_feature() -> None:
    """A job that wants a feature gains nothing from nodes that lack it."""
    cluster = Cluster(2)
    cluster.run(1, "n1 n2", comment=REQUEST)
    cluster.wait(2, features="nvlink")
    assert not room(cluster.snapshot()).forced
    cluster.nodes["n2"] = replace(cluster.nodes["n2"], features=frozenset({"nvlink"}))
    assert room(cluster.snapshot()).forced == {1: frozenset({(1, "n2")})}


def test_a_heterogeneous_job_needs_all_its_components_at_once() -> None:
    """Components are one need of several parts."""
    cluster = Cluster()
    cluster.wait(1, 2, 4, het_job_id=1)
    cluster.wait(2, 1, 1, het_job_id=1, het_offset=1)
    snapshot = cluster.snapshot()
    (need,) = needs(snapshot, sort_jobs(snapshot))
    assert [(part.nodes, part.amount.gpus) for part in need.parts] == [(2, 4), (1, 1)]


def test_gpus_without_a_node_count_are_spread_over_nodes() -> None:
    """--gpus=8 on nodes of 4 needs two nodes."""
    cluster = Cluster()
    cluster.wait(1, 1, 0, gpus=8, gpu_type=TYPE)
    snapshot = cluster.snapshot()
    (need,) = needs(snapshot, sort_jobs(snapshot))
    assert [(part.nodes, part.amount.gpus) for part in need.parts] == [(2, 4)]
