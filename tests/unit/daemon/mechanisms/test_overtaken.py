"""Resizes whose nodes somebody else was quicker to get: withdrawn as soon as it is seen, and planned again at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cluster_snapshots import TYPE, Cluster
from daemon_harness import World
from store_records import resize_row

from slurm_elastic.daemon.actions.action import Close, Free
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.mechanisms.reconcile import next_actions, overtaken
from slurm_elastic.daemon.mechanisms.settings import Bounds
from slurm_elastic.daemon.slurm.model import Snapshot
from slurm_elastic.protocol.messages import Piece, Resize, Shape

REQUEST = "elastic:gpus=4-12,step=4,batch=240-3840"
BASE = Piece(1, "base", ("n1",), 4, TYPE)
SHAPE = Shape(1, 4, 8, 4000, TYPE, node_list=("n2",))
LOST = {7: "node n2 is no longer free"}


def cluster() -> Cluster:
    """Job 1 on n1, its companion 2 waiting for n2 by order of resize 7; n3 is idle."""
    made = Cluster(3)
    made.run(1, "n1", 4, REQUEST)
    comment = "selastic:companion-of=1;resize=7"
    made.wait(2, 1, 4, comment, name="selastic-1", required_nodes=("n2",))
    return made


def found(snapshot: Snapshot, state: str = "submitted", *, keep: tuple[Piece, ...] = (BASE,)) -> dict[int, str]:
    resize = resize_row(Resize(7, 1, keep, (SHAPE,), 8, 240, "grow_idle", 60.0), state, 900.0, 950.0)
    return overtaken(snapshot, sort_jobs(snapshot, accepted={1}), [resize])


def test_a_companion_whose_node_was_taken_is_given_up() -> None:
    """Not while its node is free, and not because of another node."""
    at = cluster()
    assert found(at.snapshot()) == {}
    at.run(3, "n3")
    assert found(at.snapshot()) == {}
    at.run(4, "n2", 1)
    assert found(at.snapshot()) == LOST


@pytest.mark.parametrize("state", ["issued", "accepted", "granted", "ready", "running"])
def test_only_what_waits_in_the_queue_can_be_overtaken(state: str) -> None:
    """Before it is asked for there is nothing to lose; once granted, what is on the node is the companion itself."""
    at = cluster()
    at.run(4, "n2")
    assert found(at.snapshot(), state) == {}


@pytest.mark.parametrize(("state", "lost"), [("granted", True), ("ready", True), ("running", False), ("done", False)])
def test_a_companion_that_is_suspended_while_it_warms_up_is_given_up(state: str, lost: bool) -> None:
    """Its workers would never be ready. One that trains already its job leaves by itself."""
    at = Cluster(3)
    at.run(1, "n1", 4, REQUEST)
    at.companion(2, 1, "n2", resize=7)
    assert found(at.snapshot(), state) == {}
    at.change(2, state="SUSPENDED")
    assert found(at.snapshot(), state) == ({7: "its companion 2 was suspended"} if lost else {})


def test_a_grant_between_two_looks_is_no_loss() -> None:
    """Jobs are read before nodes: a companion granted in between waits in the one and holds its GPUs in the other."""
    snapshot = cluster().snapshot()
    taken = replace(snapshot.nodes["n2"], gpus_used=4, cpus_used=8, mem_alloc_mb=4000)
    assert found(replace(snapshot, nodes={**snapshot.nodes, "n2": taken})) == {}


def test_a_node_that_takes_no_work_is_lost() -> None:
    """Drained or gone, with nothing on it: Slurm will not start the companion there."""
    at = cluster()
    at.drain("n2")
    assert found(at.snapshot()) == LOST
    del at.nodes["n2"]
    assert found(at.snapshot()) == LOST


def test_a_requeue_stops_before_the_job_is_put_back() -> None:
    """Its new node is taken while the job still runs: it is left running. What it holds itself counts as its own."""
    at = cluster()
    assert found(at.snapshot(), "accepted", keep=()) == {}
    at.run(4, "n2", 1)
    assert found(at.snapshot(), "saved", keep=()) == LOST
    at = cluster()
    at.change(1, nodes=("n2",))
    assert found(at.snapshot(), "saved", keep=()) == {}
    at.change(1, state="PENDING")
    at.run(4, "n2")
    assert found(at.snapshot(), "saved", keep=()) == {}


def test_the_nodes_of_a_requeue_are_kept_no_longer() -> None:
    """They may be reserved already, when Slurm did not answer whether the job was put back."""
    at = cluster()
    at.run(4, "n2", 1)
    snapshot = at.snapshot()
    resize = resize_row(Resize(7, 1, (), (SHAPE,), 4, 240, "grow_idle", 60.0), "saved", 900.0, 950.0)
    roster = sort_jobs(snapshot, accepted={1})
    actions = next_actions(roster, {}, [resize], {}, 960.0, Bounds(), overtaken(snapshot, roster, [resize]))
    assert actions[-2:] == [Free(1, 1, LOST[7]), Close(1, 7, "overtaken", LOST[7])]


def test_the_daemon_plans_anew_at_once(tmp_path: Path) -> None:
    """Another job starts on the node that a companion was ordered for: within two rounds of that, long before the
    companion's time is over, the resize is withdrawn and another one, for a node that is free, is under way."""
    world = World(tmp_path, nodes=3, companion_wait_s=600.0, failed_backoff_s=600.0)
    world.rigid()
    job = world.elastic(comment=REQUEST)
    first = world.snapshot().jobs[1]
    assert first.nodes == ("n1",)
    while not (resizes := [resize for resize in world.store.resizes.under_way() if resize.add]):
        world.round()
    world.rigid()
    assert world.snapshot().nodes["n3"].gpus_used == 4
    world.slurm.finish(1)
    for _ in range(3):
        world.round()
    lost = world.store.resizes.get(resizes[0].id)
    assert (lost.state, lost.detail) == ("overtaken", "node n3 is no longer free")
    world.settle()
    assert job.gpus == 8 and len(world.companions()) == 1
    assert {piece.nodes for piece in job.pieces} == {("n2",), ("n1",)}
