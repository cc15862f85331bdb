"""Between whom a plan is fair, whose share a job's is, and what a gain of a job with another weight counts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_cases import SETTINGS, World, row, seen

from slurm_elastic.daemon.planner import JobState, plan_round
from slurm_elastic.daemon.planner.decide import decide
from slurm_elastic.daemon.slurm.fair_share import ShareTree
from slurm_elastic.daemon.slurm.site import Site


def _people(single: str, many: int, comment: str) -> World:
    """One job of one group, and `many` jobs alike of another, each with a node; as many nodes again are idle."""
    world = World(2 * many)
    for job_id in range(1, many + 2):
        world.job(job_id, f"n{job_id}", comment)
        alone = job_id == 1
        world.cluster.change(job_id, user="alice" if alone else "bob", uid=2001 if alone else 2002, account="lab")
        if single == "account":
            world.cluster.change(job_id, user="alice", uid=2001, account="lab" if alone else "physics")
    return world


@pytest.mark.parametrize("fairness", ["user", "account"])
def test_a_group_with_one_job_gets_as_much_as_one_with_fifty(fairness: str) -> None:
    """Their jobs share one weight; when every job counts alike the fifty get nearly all."""
    world = _people(fairness, 50, "elastic:gpus=1-256,batch=2000-2048")
    world.settings = replace(SETTINGS, fairness=fairness)
    sizes = {row.job_id: row.gpus_to for row in world.plan().rows}
    alone, others = sizes.pop(1), sum(sizes.values())
    assert abs(alone - others) <= 4, (alone, others)
    world.settings = replace(SETTINGS, fairness="job")
    assert row(world.plan(), 1).gpus_to <= 20


@pytest.mark.parametrize("fairness", ["user", "job"])
def test_the_least_gain_is_of_a_jobs_own_progress_whatever_its_weight(fairness: str) -> None:
    """One job of a user against fifty of another: 2 % for that one move nobody though it weighs as much as the fifty;
    50 % for one of the fifty do though it weighs a fiftieth."""
    for job_id, faster, grows in ((1, 1.02, False), (2, 1.5, True)):
        world = World(52)
        for i in range(1, 52):
            world.job(i, f"n{i}", "elastic:gpus=4-8,batch=256" if i == job_id else "elastic:gpus=4,batch=256")
            world.cluster.change(i, user="alice" if i == 1 else "bob", uid=2001 if i == 1 else 2002)
            world.states[i] = JobState(
                observations=(seen(4, 1.0), seen(8, 1 / faster)), reference=(4, 256), pause_s=0.1
            )
        world.settings = replace(SETTINGS, fairness=fairness)
        assert bool(world.plan().resizes) == grows, job_id


def test_fairness_goes_by_the_shares_that_slurm_lists() -> None:
    """An account with three times the shares gets three times the GPUs, and its users theirs of that; the row says
    whose share it was. Where sshare says nothing, accounts count alike."""
    world = World(40)
    for job_id in range(1, 7):
        world.job(job_id, f"n{job_id}", "elastic:gpus=1-256,batch=2000-2048")
        account, user = ("physics", "ann") if job_id == 1 else ("physics", "bob") if job_id < 4 else ("chem", "cyd")
        world.cluster.change(job_id, user=user, account=account)
    accounts = {"root": ("", None), "physics": ("root", 3.0), "chem": ("root", 1.0)}
    users = {("physics", "ann"): 1.0, ("physics", "bob"): 1.0, ("chem", "cyd"): 1.0}
    told = {}
    for fairness, tree in (
        ("fairshare", ShareTree(accounts, users)),
        ("auto", ShareTree(accounts, users)),
        ("auto", None),
    ):
        world.settings = replace(SETTINGS, fairness=fairness)
        plan = plan_round(replace(world.inputs(), site=Site(shares=tree)))
        sizes = [row(plan, job_id).gpus_to for job_id in range(1, 7)]
        told[fairness, tree is None] = row(plan, 2).evidence
        wanted = [60, 30, 30, 14, 13, 13] if tree is not None else [27, 27, 26, 27, 27, 26]
        assert sizes == pytest.approx(wanted, abs=4), (fairness, tree)
    assert told["auto", False] == told["fairshare", False]
    shares = {key: (e["share_of"], e["share_jobs"], e["share_part"]) for key, e in told.items()}
    assert shares["auto", False] == ("account physics, user bob", 2, 0.375)
    assert shares["auto", True] == ("account physics", 3, 0.5)


def test_a_pinned_job_counts_in_its_group() -> None:
    """A user's three jobs share one weight, whatever a cooldown or a pin keeps where it is."""
    world = _people("user", 3, "elastic:gpus=4-16,batch=256-4096")
    world.settings = replace(SETTINGS, fairness="user")
    world.state(3, pinned=4)
    assert decide(world.inputs()).context.weights.factors == pytest.approx({1: 1.0, 2: 1 / 3, 3: 1 / 3, 4: 1 / 3})


def test_inside_a_group_a_requests_weight_counts() -> None:
    """Of two jobs of one user the one with half the weight gets less; the other user is no worse off for it."""
    world = World(12)
    for job_id, uid, weight in ((1, 2001, 1.0), (2, 2002, 1.0), (3, 2002, 0.5)):
        world.job(job_id, f"n{job_id}", f"elastic:gpus=4-256,batch=2000-2048,weight={weight}")
        world.cluster.change(job_id, user=f"user{uid}", uid=uid)
    world.settings = replace(SETTINGS, fairness="user")
    sizes = [row(world.plan(), job_id).gpus_to for job_id in (1, 2, 3)]
    assert sizes[0] >= sizes[1] + sizes[2] and sizes[1] > sizes[2]


def test_the_group_that_has_most_by_its_weight_makes_room_first() -> None:
    """A waiting job's node comes from the user whose jobs have more between them, though each has fewer GPUs."""
    world = World(7)
    for job_id, uid, nodes in ((1, 2001, "n1 n2 n3"), (2, 2002, "n4 n5"), (3, 2002, "n6 n7")):
        world.job(job_id, nodes)
        world.cluster.change(job_id, user=f"user{uid}", uid=uid)
    world.cluster.wait(9, 1)
    world.settings = replace(SETTINGS, fairness="user")
    assert set(world.plan().served[0].givers) <= {2, 3}
    world.settings = replace(SETTINGS, fairness="job")
    assert set(world.plan().served[0].givers) == {1}
