"""The Slurm in memory: no GPU is held twice, shapes are kept, and its queue goes in order. See the contract tests."""

from __future__ import annotations

import random

import pytest

from slurm_elastic.daemon.simulator.slurm.controller import Slurm
from slurm_elastic.daemon.slurm.model import Job, Node

SIZES = {"n0": 8, "n1": 8, "n2": 8, "n3": 6}


def job(job_id: int, nodes: int, gpus: int, **more: object) -> Job:
    asked = {"num_nodes": nodes, "gpus": nodes * gpus, "gpus_per_node": gpus, "cpus": nodes}
    return Job(job_id, "PENDING", "ann", 1, **{**asked, **more})  # type: ignore[arg-type]


def cluster() -> Slurm:
    return Slurm(Node(name, frozenset({"IDLE"}), ("main",), size, cpus=size) for name, size in SIZES.items())


def test_gpus_are_never_held_twice() -> None:
    """Over three thousand random starts, growths, shrinks and ends, the books balance on every node."""
    rng, slurm, refused = random.Random(7), cluster(), 0
    for turn in range(1, 3001):
        kind, want, running = rng.random(), rng.randint(1, 12), sorted(slurm.running)
        if kind < 0.5:
            whole, rest = divmod(want, 8)
            shapes = [(1, 8)] * (whole > 0) + [(1, rest)] * (rest > 0)
            whole_id = 10 * turn if len(shapes) > 1 else 0
            parts = [job(10 * turn + k, *shape, het_job_id=whole_id) for k, shape in enumerate(shapes)]
            before = dict(slurm.running)
            slurm.submit(*parts)
            if slurm.start(parts[0].job_id, turn):
                held = [slurm.running[one.job_id] for one in parts]
                assert [(len(one.nodes), one.gpus_per_node) for one in held] == shapes
            else:
                assert slurm.running == before
                slurm.end(parts[0].job_id)
                refused += 1
        elif kind < 0.6:
            slurm.submit(job(10 * turn, 2, rng.randint(1, 4), required_nodes=("n1",)), script=False)
            if slurm.start(10 * turn, turn):
                assert "n1" in slurm.running[10 * turn].nodes and not slurm.running[10 * turn].batch_host
            else:
                slurm.end(10 * turn)
        elif kind < 0.8 and running:
            one = slurm.running[rng.choice(running)]
            slurm.shrink(one.job_id, one.nodes[:1])
        elif running:
            slurm.end(rng.choice(running))
        assert not slurm.waiting and not slurm.queue
        nodes = slurm.snapshot(turn).nodes
        for name, size in SIZES.items():
            used = sum(one.gpus_per_node for one in slurm.running.values() if name in one.nodes)
            assert nodes[name].gpus_used == used <= size
            assert ("MIXED" in nodes[name].flags) == any(name in one.nodes for one in slurm.running.values())
    assert refused
    with pytest.raises(ValueError, match="free GPUs"):
        slurm.gpus.take([0], 9)


def test_jobs_start_in_the_order_of_submission_and_nobody_passes_unless_told() -> None:
    """One that is held, or whose time has not come, is passed by all; one without room only where that is said."""
    slurm = cluster()
    slurm.submit(job(5, 1, 2, submit_time=3.0))
    slurm.submit(job(4, 4, 8, submit_time=2.0))  # one node has six
    slurm.submit(job(3, 1, 2, reason="JobHeldUser"))
    slurm.submit(job(2, 1, 2, eligible_time=60.0))
    slurm.submit(job(1, 1, 2, submit_time=1.0))
    assert slurm.schedule(10.0) == [1] and slurm.queue == [2, 3, 4, 5]
    assert slurm.schedule(60.0) == [2] and slurm.schedule(60.0) == []
    assert slurm.schedule(60.0, passing=True) == [5] and slurm.queue == [3, 4]
    assert {one.nodes for one in slurm.running.values()} == {("n3",)}  # on the fullest node that has room


def test_a_drained_or_reserved_node_takes_no_job_of_others() -> None:
    """Until it is drained or reserved no more."""
    slurm = cluster()
    slurm.set_state("n0", frozenset({"IDLE", "DRAIN"}))
    slurm.reservations["kept"] = ("n1", "n2")
    slurm.submit(job(1, 1, 8))
    slurm.submit(job(2, 1, 8, reservation="kept"))
    assert slurm.schedule(0.0, passing=True) == [2]
    slurm.set_state("n0", frozenset({"IDLE"}))
    assert slurm.schedule(0.0) == [1] and slurm.running[1].nodes == ("n0",)
