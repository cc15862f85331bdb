"""At which size a waiting elastic job starts: never a larger one than its script's, nor one at which it would wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_cases import NOW, SETTINGS, Curve, World, order, row, seen

from slurm_elastic.daemon.models.cache import observations
from slurm_elastic.daemon.planner.waiting.first_sizes import AGAIN_S, BACK_S, NO_FIRST_SIZES, Changed
from slurm_elastic.daemon.slurm.accounting import SlurmLimit
from slurm_elastic.daemon.slurm.model import Size
from slurm_elastic.daemon.slurm.site import Site

WHOLE_NODES = "elastic:gpus=4-16,step=4,batch=240-3840"
SCRIPT = Size(4, 4)


def world(first_size: str, nodes: int = 4) -> World:
    """Two of four nodes are taken, and job 1 waits for four."""
    made = World(nodes)
    made.settings = replace(SETTINGS, first_size=first_size)
    made.cluster.run(2, "n1 n2")
    made.cluster.wait(1, 4, 4, WHOLE_NODES, asked_per_node=4)
    return made


def model() -> Curve:
    """Of a program that gains from every GPU."""
    return Curve(observations((seen(4),)))


def test_a_job_that_there_is_no_room_for_starts_at_its_smallest_size() -> None:
    """Where the site wants that: four nodes are asked for and two are free, of which it takes what it accepts least."""
    assert world("script").plan().first == NO_FIRST_SIZES
    made = world("smallest")
    plan = made.plan()
    assert plan.first.starts == {1: Size(1, 4)} and plan.first.scripts == {1: SCRIPT}
    assert row(plan, 1).gpus_to == 4 and "starts with 4 GPUs (the smallest" in row(plan, 1).evidence["next"]
    made.cluster.run(3, "n3 n4")
    assert made.plan().first.starts == {}


def test_a_job_starts_at_what_the_plan_would_give_it() -> None:
    """Nobody else wants the two nodes that are free: it gets both. Without a word of its speed, the smallest size."""
    made = world("plan")
    plan = made.plan(models={1: model()})
    assert plan.first.starts == {1: Size(2, 4)}
    assert row(plan, 1).gpus_to == 8 and "what the plan gives it" in row(plan, 1).evidence["next"]
    assert made.plan().first.starts == {1: Size(1, 4)}


def test_elastic_jobs_make_room_for_the_first_size() -> None:
    """Job 2 has four nodes and job 1 asks for three of them. An even share is two: two are given up, not three, and
    job 1 is given its size when they are free, not before. With the smallest size as the first, one is."""
    made = World(4)
    made.settings = replace(SETTINGS, first_size="script")
    made.job(2, "n1 n2 n3 n4", WHOLE_NODES)
    made.state(2, observations=tuple(seen(k, 16 / k**0.9) for k in (4, 8, 16)))
    made.cluster.wait(1, 3, 4, WHOLE_NODES, asked_per_node=4)
    assert order(made.plan(models={1: model()}), 2).gpus == 4
    made.settings = replace(SETTINGS, first_size="plan")
    plan = made.plan(models={1: model()})
    assert order(plan, 2).gpus == 8 and plan.first.starts == {} and plan.first.aims == {1: Size(2, 4)}
    assert "elastic jobs give up 8 GPUs for it" in row(plan, 1).evidence["next"]
    made.settings = replace(SETTINGS, first_size="smallest")
    least = made.plan()
    assert order(least, 2).gpus == 12 and least.first.starts == {} and least.first.aims == {1: Size(1, 4)}
    made.settings = replace(SETTINGS, first_size="plan")
    made.cluster.run(2, "n1 n2", 4, WHOLE_NODES)
    assert made.plan(models={1: model()}).first.starts == {1: Size(2, 4)}


def test_a_job_that_has_room_is_left_alone() -> None:
    """Slurm is about to start it: another size, larger or smaller, could only come between."""
    for kind in ("smallest", "plan"):
        made = World(8)
        made.settings = replace(SETTINGS, first_size=kind)
        made.cluster.wait(1, 4, 4, "elastic:gpus=4-32,step=4,batch=240-3840", asked_per_node=4)
        assert made.plan(models={1: model()}).first == NO_FIRST_SIZES


@pytest.mark.parametrize("first_size", ["smallest", "plan"])
def test_gpus_that_one_before_it_waits_for_are_not_taken(first_size: str) -> None:
    """A job of higher priority waits for three nodes: Slurm would not start one behind it that takes any of them, so
    that one keeps its script's size."""
    made = world(first_size)
    made.cluster.wait(5, 3, 4, priority=900)
    assert made.plan(models={1: model()}).first == NO_FIRST_SIZES
    made.cluster.change(5, priority=1)
    assert made.plan(models={1: model()}).first.starts


@pytest.mark.parametrize(
    "change",
    [
        {"asked_per_node": 0}, {"exclusive": True}, {"required_nodes": ("n1",)}, {"restarts": 1}, {"array_job_id": 9},
        {"het_job_id": 1}, {"reservation": "mine"}, {"reason": "Dependency"}, {"reason": "QOSMaxGRESPerUser"},
        {"reason": "JobHeldUser"}, {"reason": "None"}, {"reason": "BeginTime", "eligible_time": 1030.0},
        {"comment": ""}, {"comment": "elastic:gpus=16,batch=240-3840"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("first_size", ["smallest", "plan"])
def test_nobody_starts_smaller_whose_size_is_not_ours_to_change(first_size: str, change: dict[str, object]) -> None:
    """Who has run before, waits for something else than nodes, asked for what another size would break, accepts no
    other size, did not opt in, or has just come."""
    made = world(first_size)
    made.cluster.change(1, submit_time=made.cluster.at, **change)
    assert made.plan(models={1: model()}).first == NO_FIRST_SIZES


def test_no_size_below_what_a_limit_demands() -> None:
    """Slurm would hold a job below MinTRESPerJob of its QOS for ever."""
    made = world("smallest")
    limits = (SlurmLimit(qos="normal", scope="least", tres={"gres/gpu": 8.0}),)
    assert made.plan(site=Site(limits=limits)).first == NO_FIRST_SIZES
    lower = (replace(limits[0], tres={"gres/gpu": 4.0}),)
    assert made.plan(site=Site(limits=lower)).first.starts == {1: Size(1, 4)}


def test_a_size_at_which_its_like_did_not_start_is_not_set_again() -> None:
    """Room was kept for such a job and Slurm did not start it."""
    made = world("smallest")
    kind = made.plan().served[0].need.kind
    assert made.plan(passed=[kind]).first == NO_FIRST_SIZES


def test_a_job_whose_gpus_somebody_took_asks_for_its_scripts_size_again() -> None:
    """Without the daemon it would wait for that: so it does, once Slurm had time to start it. At a size that its owner
    has asked for since nothing is done."""
    made = world("smallest")
    made.cluster.change(1, num_nodes=1, gpus=4, cpus=8)
    changed = Changed(SCRIPT, Size(1, 4), NOW - BACK_S)
    assert made.plan(changed={1: changed}).first == NO_FIRST_SIZES  # there is room for it
    made.cluster.run(3, "n3 n4")
    assert made.plan(changed={1: replace(changed, at=NOW - 1)}).first == NO_FIRST_SIZES
    for kind in ("script", "smallest", "plan"):
        made.settings = replace(SETTINGS, first_size=kind)
        assert made.plan(changed={1: changed}).first.back == {1: SCRIPT}, kind
    assert made.plan(changed={1: replace(changed, now=Size(2, 4))}).first == NO_FIRST_SIZES


def test_a_job_that_did_not_start_is_left_at_its_scripts_size_for_a_while() -> None:
    """What kept it from starting at the smaller size may keep it again."""
    made = world("smallest")
    back = Changed(SCRIPT, SCRIPT, NOW - 1)
    assert made.plan(changed={1: back}).first == NO_FIRST_SIZES
    assert made.plan(changed={1: replace(back, at=NOW - AGAIN_S)}).first.starts == {1: Size(1, 4)}


def test_a_job_that_slurm_does_not_start_though_there_is_room_gets_its_own_size_back() -> None:
    """Two minutes later room is no longer kept for its like, which is how this is noticed."""
    made = world("smallest")
    made.cluster.change(1, num_nodes=1, gpus=4, cpus=8)
    changed = {1: Changed(SCRIPT, Size(1, 4), NOW - 120)}
    (served,) = made.plan(changed=changed).served
    assert made.plan(changed=changed, passed=[served.need.kind]).first.back == {1: SCRIPT}


def test_a_job_that_slurm_holds_at_the_size_that_it_was_given_gets_its_own_back() -> None:
    """A limit of the site that nobody foresaw: the reason is no longer that it waits for nodes."""
    made = world("smallest")
    made.cluster.change(1, num_nodes=1, gpus=4, cpus=8, reason="QOSMinGRES")
    assert made.plan(changed={1: Changed(SCRIPT, Size(1, 4), NOW - BACK_S)}).first.back == {1: SCRIPT}


def test_two_jobs_do_not_start_on_the_same_gpus() -> None:
    """Nor is what one of them starts on given to a running job that would grow."""
    made = World(4)
    made.settings = replace(SETTINGS, first_size="smallest")
    made.cluster.run(9, "n1")
    made.job(3, "n2", WHOLE_NODES)
    for job_id in (1, 2, 4):
        made.cluster.wait(job_id, 4, 4, WHOLE_NODES, asked_per_node=4)
    plan = made.plan()
    assert plan.first.starts == {1: Size(1, 4), 2: Size(1, 4)}
    assert not any(resize.add for resize in plan.resizes)
