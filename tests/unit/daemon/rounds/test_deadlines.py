"""Deadlines and budgets in a whole daemon: what a supervisor is answered, who gets what is idle, what is said."""

from __future__ import annotations

import pytest
from daemon_harness import REQUEST, USER, World
from fake_slurm import Component

from slurm_elastic.daemon.prediction.deadlines import told
from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.messages import Registration

SPEED = 980
"""Samples per second of a job of the harness on 4 GPUs."""


def said(world: World, job_id: int) -> list[str]:
    controller = world.controller
    return list(told(world.store, controller.basis, controller.ground(), job_id, world.slurm.now))


@pytest.mark.parametrize("keys", ["", ",deadline=now+5400", ",deadline=now+5400,budget=5"])
def test_what_is_idle_goes_to_whoever_falls_behind(keys: str) -> None:
    """Of three jobs the youngest needs eight GPUs to be done in time; what its budget does not pay for it does not
    get. Before it was measured it is told that nothing is known; then what it needs."""
    world = World.in_memory(nodes=4, shorter_first=0.0)
    _, _, job = (world.elastic(comment=REQUEST + more) for more in ("", "", keys))
    job.samples_left, job.measured = SPEED * 7200, False
    world.round()
    unknown = "not known, as job 2 has not said how long its training is"
    assert [text.partition(": ")[2] for text in said(world, job.job_id)] == [unknown] * bool(keys)
    again = Registration(VERSION, 0, job.pieces, 240, "train.py")
    assert world.register(job.job_id, again).reason.endswith(unknown) == bool(keys)
    job.measured = True
    world.settle()
    if keys.endswith("5400"):
        assert job.gpus == 8
        (needs,) = said(world, job.job_id)
        assert "it needs 8 GPUs from now on, and has 8" in needs
    elif keys:
        _, budget, *_ = said(world, job.job_id)
        assert budget == "its budget DOES NOT PAY for its end at any size" and job.gpus == 4
    world.close()


def test_a_job_is_known_as_soon_as_somebody_asks() -> None:
    """selastic sbatch asks before the next round; a job that is not elastic is still unknown."""
    world = World.in_memory()
    world.round()
    jobs = [world.slurm.submit(Component(1, 4), user=USER, name="a", comment=text) for text in (REQUEST, "")]
    for job_id in jobs:
        world.controller.look_for(job_id, 0)
    assert [world.store.jobs.get(job_id) is not None for job_id in jobs] == [True, False]
    world.close()
