"""Whole rounds with jobs of `selastic hold`: what is known of their speed decides what they get."""

from __future__ import annotations

from daemon_harness import Supervisor, World

from slurm_elastic.daemon.api.metrics import Metrics
from slurm_elastic.daemon.reports import Viewer, status
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.messages import Happening, Piece


def hold(world: World, request: str) -> Supervisor:
    """A job without a batch on one node, of which nothing is measured."""
    job = world.elastic(comment=f"elastic:{request}")
    job.measured, job.unit = False, "tasks"
    return job


def test_a_declared_curve_is_planned_with(world: World) -> None:
    """Alone it gets all that it accepts; of two, who scales better gets more."""
    first = hold(world, "gpus=4-32,step=4,speedup=0.6")
    world.settle()
    assert first.gpus == 32
    assert world.store.decisions.last(first.job_id).evidence["reports_from"] == 0
    second = hold(world, "gpus=4-32,step=4,speedup=0.95")
    world.settle(80)
    assert second.gpus > first.gpus >= 4


def test_without_a_speed_it_gets_what_would_be_idle(world: World) -> None:
    """All of it while nobody else wants it, and nothing that a training could use."""
    idle = hold(world, "gpus=4-32,step=4")
    world.settle()
    assert idle.gpus == 32
    training = world.elastic(comment="elastic:gpus=4-28,step=4,batch=240-3840")
    world.settle(80)
    assert (training.gpus, idle.gpus) == (28, 4)


def test_its_rigid_neighbours_start(world: World) -> None:
    job = hold(world, "gpus=4-32,step=4")
    world.settle()
    rigid = world.rigid(7)
    world.settle(80)
    assert world.snapshot().jobs[rigid].running and job.gpus == 4


def test_nothing_to_do_is_no_training_that_stands_still(world: World) -> None:
    """It is given nothing, and no admin is woken for it."""
    job = hold(world, "gpus=4-32,step=4,speedup=linear")
    world.settle()
    pieces = (Piece(job.job_id, "base", ("n1",), 4, "a100"),)
    said = Happening(0, "stalled", 1, pieces, 4, world.slurm.now, detail="nothing waits for it (--backlog)")
    world.controller.happened(job.job_id, said)
    assert "slurm_elastic_jobs_stalled 0.0" in Metrics(world.store, world.rounds).exposition(of_jobs=True).decode()
    (row,) = status(world.store, Viewer(0, admin=True), world.slurm.now)
    assert row.reason == "keep_stalled" and "nothing waits for it" in Reason(row.reason).meaning
