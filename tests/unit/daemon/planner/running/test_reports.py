"""What the reports of a running job say of it, and what a plan makes of that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_cases import NOW, SETTINGS, World, row

from slurm_elastic.daemon.planner.decide import decide
from slurm_elastic.daemon.planner.running.state import Remaining, remaining, slow_nodes
from slurm_elastic.db.rows import InUse
from slurm_elastic.protocol.messages import Piece, Report


def test_a_training_with_less_left_gets_more_and_nothing_where_that_is_off() -> None:
    """Two equal jobs of which one says that it has a quarter of the other's samples left. Under a sum of speeds nobody
    is preferred, nor where both are done soon."""
    world = World(6)
    for job_id, left in ((1, 10_000_000), (2, 40_000_000)):
        world.job(job_id, f"n{job_id}", "elastic:gpus=4-24,batch=2000-2048")
        world.state(job_id, remaining=Remaining(left, 100.0, NOW - 60))
    assert decide(world.inputs()).context.weights.factors == pytest.approx({1: 1.5, 2: 0.5}, rel=0.05)
    sizes = [row(world.plan(), job_id).gpus_to for job_id in (1, 2)]
    assert sizes[0] > sizes[1]
    for changed in ({"shorter_first": 0.0}, {"policy": "throughput"}, {"policy": "harmonic"}):
        world.settings = replace(SETTINGS, **changed)  # type: ignore[arg-type]
        assert decide(world.inputs()).context.weights.factors == {}
    world.settings = SETTINGS
    for job_id, left in ((1, 10_000), (2, 40_000)):
        world.state(job_id, remaining=Remaining(left, 100.0, NOW - 60))
    assert decide(world.inputs()).context.weights.factors == {}


def test_what_is_left_follows_from_the_last_report() -> None:
    """At the speed reported, never below nothing; a report that does not say it leaves it unknown."""
    told = Report(1, NOW - 10, 4, 1, 64, 16, 1, 9, 0.1, 0.1, 640.0, 9, 576, samples_left=10_000)
    found = remaining(told)
    assert found is not None and found.after(NOW) == 3600 and found.after(NOW + 1e6) == 0
    assert remaining(replace(told, samples_left=0)) is remaining(None) is None


def test_only_the_present_world_names_a_slow_node() -> None:
    """The node of the slow rank, with what it costs every step; none when the ranks have moved since, or when what
    holds the steps back is not a rank."""
    report = Report(3, NOW, 8, 2, 256, 32, 1, 10, 1.0, 1.1, 256.0, 10, 2560, 0,
                    bottleneck="slow_rank", bottleneck_share=0.25, bottleneck_rank=5, bottleneck_node="n2")  # fmt: skip
    now = InUse(1, 3, (Piece(1, "base", ("n1", "n2"), 4, "a100"),), 256, 0.0, 0.0)
    assert slow_nodes(report, now) == {"n2": 0.25}
    assert slow_nodes(report, replace(now, generation=4)) == {}
    assert slow_nodes(replace(report, bottleneck="communication"), now) == {}
    assert slow_nodes(replace(report, bottleneck_node=""), now) == slow_nodes(None, now) == {}
