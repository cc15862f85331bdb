"""A waiting job that waits for a limit: who gives way for it, how much, and when nobody does."""

from __future__ import annotations

import pytest
from cluster_snapshots import Cluster
from shrink_jobs import REQUEST, room

from slurm_elastic.daemon.slurm.accounting import SlurmLimit


def grown(*companions: str) -> Cluster:
    """Eight nodes; an elastic job with four GPUs on n1 and companions on these nodes, one job each."""
    cluster = Cluster(8)
    cluster.run(1, "n1", 4, REQUEST)
    for number, nodes in enumerate(companions, 11):
        cluster.companion(number, 1, nodes)
    return cluster


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        (SlurmLimit("lab", tres={"gres/gpu": 16.0}), "AssocGrpGRES"),
        (SlurmLimit(qos="normal", tres={"gres/gpu:a100": 16.0}, scope="user"), "QOSMaxGRESPerUser"),
        (SlurmLimit(qos="normal", tres={"cpu": 32.0}, scope="account"), "MaxCpuPerAccount"),
    ],
)
def test_a_filled_limit_is_given_back_in_part(limit: SlurmLimit, reason: str) -> None:
    """With nodes idle: as much of the limit as the job lacks, and it starts on an idle node."""
    cluster = grown("n2 n3 n4")
    cluster.wait(9, 1, 4, reason=reason)
    made = room(cluster.snapshot(), limits=[limit])
    assert [served.need.job_id for served in made.served] == [9]
    assert made.served[0].givers == {1: 4}


def test_the_limit_is_anothers() -> None:
    """Of an account or user that the waiting job does not have: it waits for nodes alone, and there are some."""
    cluster = grown("n2 n3 n4")
    cluster.wait(9, 1, 4, account="other")
    made = room(cluster.snapshot(), limits=[SlurmLimit("lab", tres={"gres/gpu": 16.0})])
    assert made.served[0].givers == {} and not made.forced


def test_companions_are_jobs() -> None:
    """The user's own next job waits for MaxJobs: the smallest companion goes whole, and no node of another does."""
    cluster = grown("n2 n3", "n4")
    cluster.wait(9, 1, 1, reason="QOSMaxJobsPerUserLimit")
    made = room(cluster.snapshot(), limits=[SlurmLimit(qos="normal", tres={"jobs": 3.0}, scope="user")])
    assert made.forced == {1: {(12, "n4")}}


def test_nobody_gives_way_in_vain() -> None:
    """For what no giving up cures: more than the limit ever allows, ordinary jobs that fill it, a base at its least."""
    limit = SlurmLimit(uid=1001, tres={"gres/gpu": 16.0})
    cluster = grown("n2 n3 n4", "n5 n6 n7 n8")
    cluster.wait(9, 5, 4)
    assert not room(cluster.snapshot(), limits=[limit]).forced
    cluster = grown()
    cluster.run(2, "n2 n3 n4", 4)
    cluster.wait(9, 1, 4, reason="AssocGrpGRES")
    made = room(cluster.snapshot(), limits=[limit])
    assert not made.forced and [need.job_id for need in made.unserved] == [9]
    cluster = grown("n2")
    cluster.wait(9, 1, 2)
    least = SlurmLimit(qos="normal", tres={"gres/gpu": 3.0}, scope="least")
    assert not room(cluster.snapshot(), limits=[least]).served


def test_one_over_its_limit_holds_back_nobody() -> None:
    """Slurm passes it over, and so does the room that is made."""
    cluster = Cluster(2)
    cluster.run(1, "n1 n2", 4, REQUEST)
    cluster.wait(8, 1, 4, priority=200, reason="AssocGrpGRES", account="full")
    cluster.wait(9, 1, 4, priority=100, account="other")
    made = room(cluster.snapshot(), limits=[SlurmLimit("full", tres={"gres/gpu": 2.0})])
    assert [served.need.job_id for served in made.served] == [9] and [need.job_id for need in made.unserved] == [8]


def test_room_promised_to_one_is_not_promised_again() -> None:
    """Two jobs that lack the same limit: it is given back for both."""
    cluster = grown("n2 n3 n4")
    cluster.wait(8, 1, 4, reason="AssocGrpGRES")
    cluster.wait(9, 1, 4, reason="AssocGrpGRES")
    made = room(cluster.snapshot(), limits=[SlurmLimit("lab", tres={"gres/gpu": 16.0})])
    assert len(made.served) == 2 and len(made.forced[1]) == 2


def test_a_limit_that_is_not_seen_makes_nobody_give() -> None:
    """Slurm says that a limit holds it, and none that is known does: idle nodes are kept, and no more."""
    cluster = grown("n2 n3 n4 n5 n6 n7 n8")
    cluster.wait(9, 1, 4, reason="AssocGrpGRES")
    assert not room(cluster.snapshot()).forced


def test_a_new_jobs_reason_is_awaited() -> None:
    """Slurm names a limit within seconds; a job that stays without a reason waits beyond Slurm's depth, and counts."""
    cluster = grown("n2 n3 n4 n5 n6 n7 n8")
    cluster.wait(9, 1, 4, reason="None", submit_time=cluster.at - 1.0)
    assert not room(cluster.snapshot()).forced
    cluster.at += 100.0
    assert room(cluster.snapshot()).forced


def test_excluded_nodes_are_not_given_up() -> None:
    """A job with -x starts on none of them."""
    cluster = grown("n2 n3 n4 n5 n6 n7 n8")
    cluster.wait(9, 1, 4, excluded_nodes=tuple(f"n{i}" for i in range(2, 8)))
    assert room(cluster.snapshot()).forced == {1: {(11, "n8")}}
    cluster.change(9, excluded_nodes=tuple(f"n{i}" for i in range(2, 9)))
    assert not room(cluster.snapshot()).forced
