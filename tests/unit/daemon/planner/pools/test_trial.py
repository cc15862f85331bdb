"""Sizes never measured are tried on idle GPUs, and on no others."""

from __future__ import annotations

from dataclasses import replace

from plan_cases import World, row, seen

from slurm_elastic.daemon.text.reasons import Reason


def test_a_size_never_measured_is_tried_on_idle_gpus() -> None:
    """The optimizer does not bet on what it hardly knows. Idle GPUs are no stake; a measured size is no guess."""
    world = World(8)
    world.job(1, "n1 n2 n3 n4", "elastic:gpus=4-32,step=4,batch=240-256")
    # With three sizes known, Curve says that it knows nothing of any other.
    measured = (seen(4, 1.0), seen(8, 0.55), seen(16, 0.3))
    world.state(1, observations=measured)
    decision = row(world.plan(), 1)
    assert decision.gpus_to == 32 and decision.reason == Reason.GROW_IDLE.value
    assert decision.evidence["tried"] is True and decision.gain is None
    world.state(1, observations=(*measured, *(seen(k, 0.3) for k in (20, 24, 28, 32))))
    assert row(world.plan(), 1).gpus_to == 16


def test_a_size_is_not_tried_when_it_takes_gpus_from_anyone() -> None:
    """Trying is for idle GPUs alone."""
    world = World(4)
    world.job(1, "n1 n2 n3 n4", "elastic:gpus=4-32,step=4,batch=240-256")
    world.state(1, observations=(seen(4, 1.0), seen(8, 0.55), seen(16, 0.3)))
    assert world.plan().resizes == ()


def test_a_try_counts_what_a_large_batch_wastes() -> None:
    """A job that trains until a quality is not tried at the most samples/s, where each is worth little."""
    world = World(8)
    world.job(1, "n1", "elastic:gpus=4-8,step=4,batch=256-4096,until=quality")
    noisy = [replace(each, noise_scale=300.0) for each in (seen(1, 4.0), seen(2, 2.0), seen(4, 1.0))]
    world.state(1, observations=tuple(noisy))
    decision = row(world.plan(), 1)
    assert (decision.reason, decision.gpus_to, decision.batch_to) == (Reason.GROW_IDLE.value, 8, 256)
