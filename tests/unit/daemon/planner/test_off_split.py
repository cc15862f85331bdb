"""Leaf switches in a whole plan: where growths go, who moves off a second one, and that nobody else is touched."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from plan_cases import World, order, row, seen

from slurm_elastic.daemon.slurm.site import Site

LEAVES = Site(switches={"n1": "leaf1", "n2": "leaf1", "n3": "leaf2", "n4": "leaf2"})
REQUEST = "elastic:gpus=4-8,batch=240-256"


@pytest.fixture
def split() -> World:
    """A job of eight GPUs, all that it wants, with a companion under another switch; n2 and n4 are idle."""
    world = World(4)
    world.job(1, "n1", REQUEST)
    world.cluster.companion(5, 1, "n3")
    world.state(1, observations=(seen(4), seen(8, 0.6)))
    world.settings = replace(world.settings, policy="evolve")
    return world


def test_a_job_moves_under_its_own_switch(split: World) -> None:
    """The same size on as many nodes: the companion is left for one under the batch host's switch, and the decision
    says what that brings and from how many switches to how many."""
    plan = split.plan(site=LEAVES)
    resize = order(plan, 1)
    assert ([piece.slurm_job_id for piece in resize.keep], resize.gpus, resize.reason) == ([1], 8, "move_switch")
    assert [shape.node_list for shape in resize.add] == [("n2",)]
    decision = row(plan, 1)
    assert (decision.evidence["switches_from"], decision.evidence["switches_to"]) == (2, 1)
    assert decision.evidence["switch_cost"] == 0.1
    assert decision.gain == pytest.approx((1 - 5 / 1800) / 0.9 - 1)


def full(world: World) -> Site:
    """An ordinary job has the GPUs under the own switch."""
    world.cluster.run(9, "n2")
    return LEAVES


def expensive(world: World) -> Site:
    """A pause of two minutes in a horizon of half an hour leaves less than the least gain."""
    world.state(1, pause_s=120.0)
    return LEAVES


def by_default(world: World) -> Site:
    """The exact plan knows no switches."""
    world.settings = replace(world.settings, policy="auto")
    return LEAVES


def uncounted(world: World) -> Site:
    """The site says that switches cost nothing."""
    world.settings = replace(world.settings, switch_cost=0.0)
    return LEAVES


def reserved(world: World) -> Site:
    """All that is idle is kept for ordinary jobs."""
    world.settings = replace(world.settings, rigid_reserve_gpus=8)
    return LEAVES


def no_tree(world: World) -> Site:
    """Slurm describes no switches."""
    return Site()


@pytest.mark.parametrize("case", [full, expensive, by_default, uncounted, reserved, no_tree])
def test_a_job_stays_where_moving_is_not_worth_it_or_not_wanted(split: World, case: Callable[[World], Site]) -> None:
    """One thing in the way at a time."""
    assert split.plan(site=case(split)).resizes == ()


def test_a_split_that_stays_is_told(split: World) -> None:
    """Also where nothing becomes of it."""
    evidence = row(split.plan(site=full(split)), 1).evidence
    assert (evidence["switches_from"], evidence["switches_to"]) == (2, 2)


@pytest.mark.parametrize(("policy", "nodes"), [("evolve", ["n2", "n3"]), ("auto", ["n4"])])
def test_a_growth_keeps_to_the_own_switch(policy: str, nodes: list[str]) -> None:
    """Two halves of nodes under the own switch, or one whole node under another: a further switch counts like a
    further node under `evolve`, and by the exact plan the whole node goes first."""
    world = World(4)
    world.job(1, "n1", REQUEST)
    world.cluster.run(2, "n2", 2)
    world.cluster.run(3, "n3", 2)
    world.settings = replace(world.settings, policy=policy)
    site = Site(switches={"n1": "leaf1", "n2": "leaf1", "n3": "leaf1", "n4": "leaf2"})
    resize = order(world.plan(site=site), 1)
    assert sorted(node for shape in resize.add for node in shape.node_list) == nodes
