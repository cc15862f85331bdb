"""By which mechanism a resize is done, and why by none of the others."""

from __future__ import annotations

from cluster_snapshots import TYPE, Cluster

from slurm_elastic.daemon.capacity.ledger import Ledger
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.planner.moves import Move, TargetSize, moves
from slurm_elastic.daemon.planner.running.eligibility import running_job
from slurm_elastic.daemon.planner.running.state import JobState
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.rows import InUse
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.request import MECHANISMS

ALL = "via=shrink+companion+component+requeue"


def move(gpus: int, via: str = ALL, asked: int = 4, busy: bool = False) -> Move:
    """Job 1 on two nodes of 4 GPUs, two more of them free or not, is to have `gpus`."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2", 4, f"elastic:gpus=1-16,batch=240-3840,{via}", asked_per_node=asked)
    if busy:
        cluster.run(2, "n3 n4", 4)
    snapshot = cluster.snapshot()
    base = (Piece(1, "base", ("n1", "n2"), 4, TYPE),)
    state = JobState(in_use=InUse(1, 1, base, 240, 0.0, 0.0), pause_s=0.5, requeue_s=20.0)
    running = running_job(sort_jobs(snapshot).elastic[1], state, Settings(), 1000.0)
    target_size = TargetSize(running, gpus, 240, Reason.KEEP_PINNED, 0.0)
    return moves([target_size], Ledger.of(snapshot), {1: frozenset(snapshot.nodes)})[1]


def why(made: Move) -> dict[str, str]:
    return made.passed_over(Settings())


def test_the_cheapest_that_reaches_the_size_is_taken() -> None:
    """Growth by a companion, whole nodes by shrink, and only what these do not reach by requeue."""
    assert [move(gpus).mechanism for gpus in (12, 4, 2, 6)] == ["companion", "shrink", "requeue", "requeue"]
    assert move(2).add[0].node_list == ("n1",) and move(2).keep == ()
    assert move(2, via="via=shrink+companion").mechanism == ""  # it stays


def test_every_other_one_has_its_reason() -> None:
    """Each mechanism is either part of the move or told with the reason why not."""
    for made in (move(12), move(4), move(2)):
        assert set(why(made)) | {made.mechanism} == set(MECHANISMS)
    assert why(move(12))["requeue"] == "it would cost 20 s where this costs 0.5 s"
    assert why(move(12))["shrink"] == "it only gives up nodes"
    assert why(move(4, via="via=shrink"))["companion"].startswith("its request does not name it")
    assert why(move(2))["shrink"] == "whole nodes given up do not come to 2 GPUs"
    assert why(move(4, asked=0))["requeue"].startswith("only an ordinary batch job")
    assert "holds GPUs" in why(move(4))["expand"]


def test_a_requeue_needs_its_nodes_now() -> None:
    """It is not begun for nodes that others hold: the job would only wait."""
    assert move(12, via="via=shrink+requeue").mechanism == "requeue"
    assert move(12, via="via=shrink+requeue", busy=True).mechanism == ""
    assert move(6, via="via=shrink+requeue", busy=True).add[0].node_list == ("n1", "n2")
