"""Sizes never measured are tried on idle GPUs, and on no others, where knowing them is worth what it costs."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from plan_cases import NOW, World, closed, row, seen

from slurm_elastic.daemon.planner.pools.size_exploration import won_s
from slurm_elastic.daemon.planner.running.state import Remaining
from slurm_elastic.protocol.codes import Reason


@pytest.mark.parametrize(("gain", "doubt"), [(1.4, 0.6), (0.8, 0.5), (1.1, 0.05), (2.0, 0.0), (0.7, 0.0)])
def test_what_a_try_wins_is_its_mean_over_what_may_come_of_it(gain: float, doubt: float) -> None:
    """Drawn many times: worse is left when it is known, at the price of a second pause."""
    left, held, pause, rng = 3000.0, 120.0, 30.0, random.Random(1)
    drawn = []
    for _ in range(20_000 if doubt else 1):
        log = rng.gauss(math.log(gain), doubt)
        drawn.append(held * log + (left - held) * max(0.0, log) - pause * (1 + (log < 0)))
    mean = math.fsum(drawn) / len(drawn)
    assert won_s(gain, doubt, left, held, pause) == pytest.approx(mean, abs=1.0 + 0.03 * left * doubt)


def test_a_try_is_worth_more_the_less_is_known_and_the_more_is_left() -> None:
    """A size that is probably worse is worth a try where it may be much better for long, and only there."""
    assert won_s(0.9, 0.6, 36_000, 120, 30) > 1000 > 0 > won_s(0.9, 0.6, 300, 120, 30)
    assert won_s(0.9, 0.02, 36_000, 120, 30) < 0
    assert won_s(1.2, 0.6, 3000, 120, 30) > won_s(1.2, 0.3, 3000, 120, 30) > won_s(1.2, 0.1, 3000, 120, 30)
    assert won_s(2.0, 0.6, 3000, 120, 30) > won_s(2.0, 0.6, 3000, 120, 600)
    assert won_s(5.0, 0.6, 0, 120, 30) < 0


def hardly_known(nodes: int = 8) -> World:
    """One job on 16 GPUs, measured at 4, 8 and 16: with three sizes known, Curve says it knows nothing of any other."""
    world = World(nodes)
    world.job(1, "n1 n2 n3 n4", "elastic:gpus=4-32,step=4,batch=240-256")
    world.state(1, observations=(seen(4, 1.0), seen(8, 0.55), seen(16, 0.45)))
    return world


def test_a_size_never_measured_is_tried_on_idle_gpus() -> None:
    """The optimizer does not bet on what it hardly knows. Idle GPUs are no stake; a measured size is no guess."""
    world = hardly_known()
    decision = row(world.plan(), 1)
    assert decision.gpus_to == 32 and decision.reason == Reason.GROW_IDLE.value
    assert decision.evidence["tried"] is True and decision.gain is None
    measured = world.states[1].observations
    world.state(1, observations=(*measured, *(seen(k, 0.45) for k in (20, 24, 28, 32))))
    assert row(world.plan(), 1).gpus_to == 16


def test_a_size_that_pays_in_seven_cases_of_ten_is_planned() -> None:
    """It is no try, and needs no rest before it: the expectation pays, with something to spare."""
    world = hardly_known()
    world.state(1, last=closed("done", NOW - 65), observations=(seen(4, 1.0), seen(8, 0.55), seen(16, 0.3)))
    decision = row(world.plan(), 1)
    assert decision.gpus_to == 32 and "tried" not in decision.evidence and decision.gain is not None


def test_a_size_is_not_tried_when_it_takes_gpus_from_anyone() -> None:
    """Trying is for idle GPUs alone."""
    world = hardly_known(4)
    assert world.plan().resizes == ()


def test_a_try_counts_what_a_large_batch_wastes() -> None:
    """A job that trains until a quality is not tried at the most samples/s, where each is worth little."""
    world = World(8)
    world.job(1, "n1", "elastic:gpus=4-8,step=4,batch=256-4096,until=quality")
    noisy = [replace(each, noise_scale=300.0) for each in (seen(1, 4.0), seen(2, 2.0), seen(4, 1.0))]
    world.state(1, observations=tuple(noisy))
    decision = row(world.plan(), 1)
    assert (decision.reason, decision.gpus_to, decision.batch_to) == (Reason.GROW_IDLE.value, 8, 256)


def test_a_size_is_not_tried_where_little_is_left() -> None:
    """What is learned in the last minutes of a training pays for no pause."""
    world = hardly_known()
    world.state(1, remaining=Remaining(10 * 568.0, 568.0, NOW))
    assert world.plan().resizes == ()
    world.state(1, remaining=Remaining(36_000 * 568.0, 568.0, NOW))
    assert row(world.plan(), 1).gpus_to == 32


def test_a_job_that_was_moved_lately_is_left_to_the_plan() -> None:
    """A try would hold it back, by its cooldown, from what the plan is about to give it. Within the horizon it leaves
    half of what is idle to who comes next."""
    world = hardly_known()
    world.settings = replace(world.settings, cooldown_grow_s=600.0, horizon_s=1800.0)
    for rested, comes_to in ((599, 16), (600, 24), (1799, 24), (1800, 32)):
        world.state(1, last=closed("done", NOW - rested))
        assert row(world.plan(), 1).gpus_to == comes_to
