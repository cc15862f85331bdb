"""What a plan would give waiting jobs beside the running ones: admitted while everyone can have its smallest size."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_snapshots import Cluster
from plan_cases import SETTINGS, Curve, seen

from slurm_elastic.daemon.capacity.pending_jobs import needs
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.models.cache import observations
from slurm_elastic.daemon.optimizer.models.prior import DEFAULT
from slurm_elastic.daemon.optimizer.models.throughput import unmeasured
from slurm_elastic.daemon.optimizer.plan import ChoiceTables
from slurm_elastic.daemon.planner.decide import shares
from slurm_elastic.daemon.planner.tables import Tables
from slurm_elastic.daemon.planner.waiting.first_sizes import StartingJob, Waiting

MODEL = Curve(observations((seen(4),)))


def candidates(
    count: int, request: str = "elastic:gpus=4-32,step=4,batch=240-3840", nodes: int = 8
) -> list[StartingJob]:
    """Jobs in the order of their numbers, that ask for so many nodes."""
    cluster = Cluster(8)
    for number in range(1, count + 1):
        cluster.wait(number, nodes, 4, request, asked_per_node=4)
    snapshot = cluster.snapshot()
    roster = sort_jobs(snapshot)
    waiting = Waiting(needs(snapshot, roster), roster.elastic, {}, (), 0.0, Tables().accepted)
    return [one for need in waiting.needs if (one := waiting.candidate(need)) is not None]


def given(capacity: int, waiting: list[StartingJob], **settings: object) -> list[int]:
    models = {one.need.job_id: MODEL for one in waiting}
    found = shares([], capacity, (), waiting, models, replace(SETTINGS, **settings), ChoiceTables())  # type: ignore[arg-type]
    return [found[one.need.job_id] for one in waiting]


def test_equal_jobs_get_equal_shares() -> None:
    """Sixteen GPUs for two, though each asks for thirty-two."""
    assert given(16, candidates(2)) == [8, 8]


def test_those_that_come_first_are_admitted() -> None:
    """Three smallest sizes fit; the plan counts those three, and the others wait for room for their smallest."""
    assert given(12, candidates(5)) == [4, 4, 4, 4, 4]
    assert given(20, candidates(2), policy="log-throughput") in ([12, 8], [8, 12])


def test_nobody_is_planned_above_its_scripts_size() -> None:
    """However much is free."""
    assert given(32, candidates(1, nodes=2)) == [8]


def test_a_heavier_job_gets_more() -> None:
    """As its request says, and as far as the site lets weights count."""
    request = "elastic:gpus=4-32,step=4,batch=240-3840,weight="
    both = [*candidates(1, request + "1"), candidates(2, request + "3")[1]]
    light, heavy = given(32, both, max_weight=3.0)
    assert heavy > light
    light, heavy = given(32, both)
    assert heavy == light == 16


@pytest.mark.parametrize("policy", ["throughput", "goodput", "auto", "static"])
def test_every_policy_plans_them(policy: str) -> None:
    """The policy without elasticity gives what scripts ask for."""
    (gpus,) = given(32, candidates(1), policy=policy)
    assert gpus == 32


def test_what_was_never_measured_scales_as_the_middle_of_the_prior() -> None:
    """More GPUs bring more, each less than the one before: so jobs of which nothing is known share evenly."""
    model = unmeasured(DEFAULT)
    speeds = [model.throughput(k, -(-k // 4), 64 * k) for k in (1, 4, 8, 16)]
    assert speeds == sorted(speeds) and speeds[3] / speeds[0] < 16
    both = candidates(2)
    found = shares([], 16, (), both, dict.fromkeys((1, 2), model), SETTINGS, ChoiceTables())
    assert list(found.values()) == [8, 8]
