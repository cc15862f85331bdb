"""What a round decides, and in which order it begins."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_cases import SETTINGS, World, row, seen

from slurm_elastic.protocol.codes import Reason


def test_only_so_many_resizes_begin_in_one_round() -> None:
    """The others are planned, and said to come later."""
    world = World(8)
    for job in (1, 2, 3):
        world.job(job, f"n{job}", "elastic:gpus=2-8,batch=240-256")
    world.settings = replace(SETTINGS, max_resizes_per_round=2)
    plan = world.plan()
    assert len(plan.resizes) == 2
    late = [row for row in plan.rows if row.evidence.get("starts") == "later"]
    assert len(late) == 1 and "this round" in late[0].evidence["next"]


def test_other_users_rigid_jobs_never_appear() -> None:
    """The plan has rows of elastic jobs alone."""
    world = World(4)
    world.job(1, "n1")
    world.cluster.run(8, "n2", uid=1002)
    world.cluster.wait(9, 1, uid=1002)
    assert [row.job_id for row in world.plan().rows] == [1]


def test_the_same_inputs_give_the_same_plan() -> None:
    """Nothing in a plan depends on the order of dictionaries or on chance."""
    world = World(6)
    for job in (1, 2, 3):
        world.job(job, f"n{job}")
    first = world.plan()
    world.cluster.jobs = dict(reversed(list(world.cluster.jobs.items())))
    second = world.plan()
    assert (second.rows, second.resizes) == (first.rows, first.resizes)


@pytest.mark.parametrize("policy", ["throughput", "log-goodput"])
def test_every_policy_of_the_settings_is_known_to_the_optimizer(policy: str) -> None:
    """A settings file that loads gives a plan."""
    world = World(2)
    world.job(1, "n1")
    world.settings = replace(SETTINGS, policy=policy)
    assert not world.plan().allocation.trouble


def test_a_job_that_is_no_faster_for_its_gpus_gives_them_up_and_says_so() -> None:
    """Nobody takes them: the reason is the job's own curve."""
    world = World(4)
    world.job(1, "n1 n2")
    world.state(1, observations=(seen(4, 0.9), seen(8, 1.0)))
    decision = row(world.plan(), 1)
    assert decision.gpus_to < 8 and decision.reason == Reason.SHRINK_NO_GAIN.value


def test_who_makes_up_for_another_that_gave_way_says_for_whom() -> None:
    """Room made by one job is shared out again: the loss of the others has the same cause."""
    world = World(4)
    world.settings = replace(SETTINGS, policy="log-goodput")
    request = "elastic:gpus=2-16,step=2,batch=240-256"
    for job, node in ((1, "n1"), (2, "n2")):
        world.job(job, node, request)
        world.cluster.companion(100 + job, job, "n3" if job == 1 else "n4")
        world.state(job, observations=(seen(4, 1.0), seen(8, 0.55)))
    world.cluster.wait(9)
    plan = world.plan()
    moved = [row for row in plan.rows if row.gpus_to < row.gpus_from]
    assert moved and {row.reason for row in moved} == {Reason.SHRINK_FOR_JOB.value}
