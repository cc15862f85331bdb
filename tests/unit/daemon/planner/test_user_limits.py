"""A plan within limits, partitions and GPU types, and what is kept between rounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from plan_cases import SETTINGS, World, order, row, seen

from slurm_elastic.daemon.models.cache import observation
from slurm_elastic.daemon.planner.decide import Plan
from slurm_elastic.daemon.planner.tables import Tables
from slurm_elastic.protocol.codes import Reason


def owned(world: World, job_id: int, node: str, user: str, account: str = "lab", **more: object) -> None:
    """A measured elastic job of somebody."""
    world.job(job_id, node)
    world.cluster.change(job_id, user=user, uid=2000 + len(user), account=account, **more)


def test_a_users_limit_binds_and_says_so() -> None:
    """Two jobs of alice share her limit; what she may not have goes to bob; explain names limit and loss."""
    world = World(6)
    for job, user in ((1, "alice"), (2, "alice"), (3, "bob")):
        owned(world, job, f"n{job}", user)
    world.settings = replace(SETTINGS, gpu_limits=("user:alice=8",))
    plan = world.plan()
    assert [row(plan, job).gpus_to for job in (1, 2, 3)] == [4, 4, 16]
    assert row(plan, 1).reason == Reason.KEEP_LIMIT.value
    assert row(plan, 1).evidence["limit"] == "user alice may hold 8 GPUs in all: without that it would have 8"
    assert row(plan, 1).evidence["next"] == row(plan, 1).evidence["limit"] and "limit" not in row(plan, 3).evidence


def test_limits_for_everybody_and_for_accounts() -> None:
    """`*` is each user who is not named; a user's and an account's limit hold together, nested or crossing."""
    world = World(8)
    owned(world, 1, "n1", "alice", "lab")
    owned(world, 2, "n2", "alice", "physics")
    owned(world, 3, "n3", "bob", "lab")
    world.settings = replace(SETTINGS, gpu_limits=("user:*=12", "user:bob=16", "account:lab=12"))
    sizes = [row(world.plan(), job).gpus_to for job in (1, 2, 3)]
    assert sizes[0] + sizes[1] == 12 and sizes[0] + sizes[2] == 12
    world.settings = replace(SETTINGS, gpu_limits=("user:*=4",))
    assert [row(world.plan(), job).gpus_to for job in (1, 3)] == [4, 4]


def test_a_limit_below_what_is_held_takes_it_back_but_nothing_below_the_least() -> None:
    """A limit that an admin lowers shrinks who is above it, as far as the job's own request and pieces allow."""
    world = World(4)
    world.job(1, "n1 n2 n3")
    world.states[1] = replace(world.states[1], observations=(seen(4, 2.9), seen(12, 1.0)))
    world.settings = replace(SETTINGS, gpu_limits=("user:alice=8",))
    decision = row(world.plan(), 1)
    assert (decision.gpus_to, decision.reason) == (8, Reason.SHRINK_LIMIT.value)
    world.settings = replace(SETTINGS, gpu_limits=("user:alice=1",))
    assert row(world.plan(), 1).gpus_to == 4  # the batch host's node never goes


def test_a_limit_counts_what_is_not_the_optimizers_to_share_out() -> None:
    """Jobs that are not measured, pinned or being resized use up their owner's limit; a pin does not get around it."""
    world = World(6)
    world.job(1, "n1", measured=False)
    world.job(2, "n2")
    world.settings = replace(SETTINGS, gpu_limits=("user:alice=12",))
    assert row(world.plan(), 2).gpus_to == 8
    world.state(2, pinned=16)
    decision = row(world.plan(), 2)
    assert (decision.gpus_to, decision.reason) == (4, Reason.KEEP_LIMIT.value)
    assert decision.evidence["limit"] == "it is pinned to 16 GPUs, and user alice may hold 12 GPUs in all"
    world.state(2, pinned=8)
    assert row(world.plan(), 2).gpus_to == 8


def test_a_limit_holds_across_partitions() -> None:
    """A user with a job in each of two partitions gets what the limit leaves where it brings most."""
    world = World(8)
    for name in ("n5", "n6", "n7", "n8"):
        world.cluster.nodes[name] = replace(world.cluster.nodes[name], partitions=("other",))
    in_fours = "elastic:gpus=4-16,step=4,batch=240-256"
    owned(world, 1, "n1", "alice", comment=in_fours)
    owned(world, 2, "n5", "alice", partition="other", comment=in_fours)
    world.settings = replace(SETTINGS, gpu_limits=("user:alice=12",))
    world.state(2, observations=(seen(4, 1.0), seen(8, 0.6)))  # less for more than the other
    plan = world.plan()
    assert [row(plan, job).gpus_to for job in (1, 2)] == [8, 4]
    assert row(plan, 2).reason == Reason.KEEP_LIMIT.value


def test_jobs_of_a_small_partition_are_planned_on_the_nodes_that_it_reaches() -> None:
    """Partitions that share nodes are one pool; who reaches two of its nodes only is promised no more than they hold,
    and the rest goes to who can use it."""
    world = World(6)
    for name in ("n1", "n2"):
        world.cluster.nodes[name] = replace(world.cluster.nodes[name], partitions=("main", "small"))
    owned(world, 1, "n1", "alice", partition="small")
    owned(world, 2, "n3", "bob")
    plan = world.plan()
    assert (row(plan, 1).gpus_to, row(plan, 2).gpus_to) == (8, 16)
    assert order(plan, 1).add[0].node_list == ("n2",)


def test_each_gpu_type_of_a_partition_is_a_pool() -> None:
    """Jobs that name no type are planned on the type that they hold, whichever comes first; one grows onto its own."""
    world = World(6)
    for name in ("n4", "n5", "n6"):
        world.cluster.nodes[name] = replace(world.cluster.nodes[name], gpu_type="h100")
    owned(world, 1, "n1", "alice", gpu_type="")
    owned(world, 2, "n4", "bob", gpu_type="")
    plan = world.plan()
    assert [(row(plan, job).gpus_to) for job in (1, 2)] == [12, 12]
    assert order(plan, 2).add[0].node_list == ("n5", "n6")
    assert plan.idle == {"main/a100": 8, "main/h100": 8}


def test_a_report_that_says_nothing_new_leaves_the_curve_as_it_is() -> None:
    """Step times within the noise, and one more report of many, are the same observation: nothing is fitted again."""
    first, again = seen(4, 1.0, count=40), seen(4, 1.001, count=41)
    assert observation(first) == observation(again)
    assert math.isclose(observation(first).step_time_s, 1.0, rel_tol=0.002)
    assert observation(seen(4, 1.02, count=40)) != observation(first)


def said(plan: Plan) -> tuple[Any, ...]:
    """What a plan says, its rows first."""
    made, room = plan.allocation, plan.context.room
    return (
        *(plan.rows, plan.resizes, plan.served, room.unserved, plan.capacity, plan.idle, plan.withdrawn, plan.resumes),
        *(plan.first, made.value, made.bound, made.trouble, plan.fell_back, plan.context.unlisted),
    )


def test_what_is_kept_between_rounds_changes_no_plan() -> None:
    """A round with what the last one left behind decides as one without."""
    world, tables = World(4), Tables()
    world.job(1, "n1")
    world.job(2, "n2")
    for step in (1.0, 1.0, 0.7):
        world.state(1, observations=(seen(4, 1.0), seen(8, step)))
        assert said(world.plan(tables=tables)) == said(world.plan())


def test_a_decision_that_stands_has_no_row() -> None:
    """The plan is the same; what is not stored again is not written, the rest in full."""
    world = World(5)
    world.job(1, "n1")
    world.job(2, "n2", measured=False)
    world.job(3, "n3")
    world.state(3, pinned=4)
    plain = world.plan()
    marks = {row.job_id: row.mark for row in plain.rows}
    known = world.plan(marks=marks)
    assert known.rows == () and said(known)[1:] == said(plain)[1:]
    assert world.plan(marks={**marks, 2: marks[1], 3: marks[1]}).rows == plain.rows[1:]
    assert all(row.evidence for row in plain.rows) and len(plain.rows) == 3
