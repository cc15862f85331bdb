"""What a planner is told of nodes, and what becomes of its answer in a whole plan."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_cases import Curve, World, order, row, seen

from slurm_elastic.daemon.optimizer.policies import POLICIES
from slurm_elastic.daemon.optimizer.problem import Problem


@pytest.fixture
def fragments(monkeypatch: pytest.MonkeyPatch) -> World:
    """A job with a whole node, which would gain by two more GPUs on one further node; there is one GPU free on each of
    two, and each further node costs a fifth of its progress."""
    alone = Curve.throughput
    monkeypatch.setattr(Curve, "throughput", lambda self, k, n, b: alone(self, k, n, b) * 0.8 ** (n - 1))
    world = World(3)
    world.job(1, "n1", "elastic:gpus=4-6,batch=240-256")
    world.state(1, observations=(seen(4), seen(6, 0.7)))
    world.cluster.run(2, "n2", 3)
    world.cluster.run(3, "n3", 3)
    return world


def test_a_planner_decides_and_the_decision_says_what_the_exact_plan_is(
    fragments: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The exact plan counts on one further node and takes two; a planner that stays has its way."""
    assert [len(shape.node_list) for shape in order(fragments.plan(), 1).add] == [2]
    stays = replace(POLICIES["auto"], planner=lambda problem: [0] * len(problem.choices))
    monkeypatch.setitem(POLICIES, "theirs", stays)
    fragments.settings = replace(fragments.settings, policy="theirs")
    decision = row(fragments.plan(), 1)
    assert (decision.gpus_to, decision.evidence["exact_gpus"]) == (4, 6)


def test_a_planner_is_told_where_jobs_are_and_where_there_is_room(
    fragments: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Free GPUs by node, what each job holds at each size that it can come down to, and what its value counts on."""
    told = list[Problem]()

    def planner(problem: Problem) -> list[int]:
        told.append(problem)
        return list(problem.exact)

    monkeypatch.setitem(POLICIES, "theirs", replace(POLICIES["auto"], planner=planner))
    fragments.settings = replace(fragments.settings, policy="theirs")
    fragments.plan()
    (problem,) = told
    assert problem.layout.free == [{"n1": 0, "n2": 1, "n3": 1}]
    assert problem.layout.node_gpus == [4]
    assert problem.layout.held == [{4: {"n1": 4}}]
    assert [choice.gpus for choice in problem.choices[0]] == [4, 6]
    assert problem.nodes == [[1, 2]]
    assert problem.spread == [pytest.approx(0.2)]
    assert (problem.layout.most_moves, problem.layout.min_gain) == (16, 0.05)
