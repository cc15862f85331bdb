"""A growth that training has not switched to is withdrawn when a waiting job needs its nodes, or its job's."""

from __future__ import annotations

from pathlib import Path

import pytest
from daemon_harness import World as Daemon
from plan_cases import NOW, REQUEST, World, order
from store_records import resize_row

from slurm_elastic.db.rows import InUse
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.messages import Piece, Resize, Shape

BASE = Piece(1, "base", ("n1",), 4, "a100")
SHAPES = (Shape(1, 4, 8, 4000, "a100", node_list=("n2",)), Shape(1, 2, 4, 2000, "a100", node_list=("n3",)))


def world(state: str = "accepted", keep: Piece = BASE, comment: str = REQUEST) -> World:
    """Job 1 on n1 grows by all of n2 and half of n3, of which job 3 has the other half; a job of four GPUs waits."""
    made = World(3)
    made.job(1, keep.nodes[0], comment)
    made.cluster.run(3, "n3", 2)
    resize = resize_row(Resize(5, 1, (keep,), SHAPES, 10, 256, "grow_idle", 60.0), state, NOW, NOW)
    made.state(1, resize=resize, in_use=InUse(1, 0, (keep,), 256, 0.0, 0.0))
    made.cluster.wait(9)
    return made


@pytest.mark.parametrize("state", ["issued", "accepted", "submitted", "granted", "ready"])
def test_it_is_withdrawn_whole_before_the_switch(state: str) -> None:
    """Whether its companions are still to be asked for, wait, or hold their nodes already."""
    made = world(state)
    if state in ("granted", "ready"):
        made.cluster.companion(101, 1, "n2", 4, resize=5)
        made.cluster.companion(102, 1, "n3", 2, resize=5)
    plan = made.plan()
    assert plan.withdrawn == {1: 9} and plan.resizes == ()
    assert plan.served[0].nodes == ("n2",) and plan.served[0].givers == {1: 6} and plan.served[0].waits


def test_it_stays_when_nobody_needs_it() -> None:
    """Nothing waits, or only what it could not be met with; training has switched; its owner asked for it."""
    made = world()
    made.cluster.wait(9, 3)
    assert made.plan().withdrawn == {}
    del made.cluster.jobs[9]
    assert made.plan().withdrawn == {}
    assert world("running").plan().withdrawn == {}
    made = world()
    made.state(1, pinned=10)
    assert made.plan().withdrawn == {}


def test_it_is_withdrawn_for_what_its_job_trains_on_too() -> None:
    """A waiting job that needs more than the growth: first the growth goes, then the job gives like any other."""
    made = World(4)
    made.job(1, "n1 n2")
    keep = (Piece(1, "base", ("n1", "n2"), 4, "a100"),)
    shape = Shape(1, 4, 8, 4000, "a100", node_list=("n3",))
    made.state(1, resize=resize_row(Resize(5, 1, keep, (shape,), 12, 256, "grow_idle", 60.0), "accepted", NOW, NOW))
    made.cluster.wait(9, 3)
    assert made.plan().withdrawn == {1: 9}
    made.state(1, resize=None)
    assert order(made.plan(), 1).gpus == 4


def test_what_nobody_trains_on_goes_first() -> None:
    """Another job could give as many GPUs at the price of a pause."""
    made = world()
    made.cluster.nodes["n4"] = made.cluster.nodes["n5"] = made.cluster.nodes["n1"]
    made.job(2, "n4 n5")
    plan = made.plan()
    assert plan.withdrawn == {1: 9} and plan.resizes == ()


def test_after_a_growth_that_failed_the_job_gives_way() -> None:
    """It only does not grow for a while."""
    made = World(4)
    made.job(1, "n1 n2")
    failed = Resize(1, 1, (Piece(1, "base", ("n1", "n2"), 4, "a100"),), SHAPES[:1], 12, 256, "grow_idle", 60.0)
    made.state(1, last=resize_row(failed, "failed", NOW - 10, NOW - 10))
    plan = made.plan()
    assert plan.resizes == () and plan.rows[0].reason == Reason.KEEP_FAILED.value
    made.cluster.wait(9, 3)
    assert order(made.plan(), 1).gpus == 4


def test_the_supervisor_gives_it_back_within_a_few_rounds(tmp_path: Path) -> None:
    """From the grant to the waiting job's start, though the companion's workers never come to be ready."""
    daemon = Daemon(tmp_path, nodes=3, companion_wait_s=3600.0)
    job = daemon.elastic()
    for _ in range(100):
        daemon.round(1.0)
        if job.stage == "granted":
            break
    job.silent = True
    rigid = daemon.rigid()
    daemon.round(1.0)
    (last,) = [daemon.store.resizes.last_closed(job.job_id)]
    assert last is not None and (last.state, last.detail) == ("overtaken", f"job {rigid} waits for its nodes")
    job.silent = False
    for _ in range(3):
        daemon.round(1.0)
    assert daemon.snapshot().jobs[rigid].running
    daemon.settle()
    assert job.gpus == 8
