"""A plan that gains too little against staying moves nobody."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_cases import SETTINGS, World, row, seen

from slurm_elastic.daemon.planner import JobState
from slurm_elastic.protocol.codes import Reason


def test_a_small_gain_moves_nobody() -> None:
    """Below the least gain everybody stays, and the row says what it would have been."""
    world = World(2)
    world.job(1, "n1", "elastic:gpus=4-8,batch=256")
    world.states[1] = JobState(observations=(seen(4, 1.0), seen(8, 0.9)), reference=(4, 256))
    world.settings = replace(SETTINGS, min_gain=0.5)
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_BEST.value
    assert "below the least worth moving for" in row(plan, 1).evidence["next"]


def test_a_batch_is_no_move() -> None:
    """Below the least gain sizes stay, and a batch that is worth its change is taken all the same."""
    world = World(2)
    world.job(1, "n1", "elastic:gpus=4-8,batch=256-512")
    world.states[1] = JobState(observations=(seen(4, 1.0), seen(4, 1.7, 512)), reference=(4, 256))
    world.settings = replace(SETTINGS, min_gain=5.0)
    made = row(world.plan(), 1)
    assert (made.gpus_to, made.batch_to, made.reason) == (4, 512, Reason.BATCH.value)


@pytest.mark.parametrize("policy", ["auto", "throughput", "goodput", "harmonic"])
@pytest.mark.parametrize(("gain", "grows"), [(0.05, True), (0.6, False)])
def test_the_least_gain_is_one_jobs_relative_gain_under_every_policy(policy: str, gain: float, grows: bool) -> None:
    """A job that would train 50 % faster moves at a least gain of 5 % and stays at 60 %, on however many GPUs it is."""
    world = World(4)
    world.job(1, "n1 n2", "elastic:gpus=8-16,batch=256")
    world.states[1] = JobState(observations=(seen(8, 1.0), seen(16, 1 / 1.5)), reference=(8, 256))
    world.settings = replace(SETTINGS, min_gain=gain, policy=policy)
    assert bool(world.plan().resizes) == grows


def test_a_pause_that_would_not_pay_moves_nobody() -> None:
    """Close to its time limit a job has no time to earn back its pause."""
    world = World(2)
    world.job(1, "n1")
    world.cluster.change(1, time_left_s=20)
    world.state(1, pause_s=15.0)
    assert world.plan().resizes == ()
