"""One round's plan: who grows, who gives, and what becomes of slow nodes."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
from plan_cases import NOW, REQUEST, SETTINGS, World, closed, order, row, seen
from store_records import resize_row

from slurm_elastic.daemon.actions.refusals import Refusal
from slurm_elastic.daemon.optimizer.plan import PoolPlan, plan_pools
from slurm_elastic.daemon.planner import JobState, allocation
from slurm_elastic.db.rows import HostPair, InUse
from slurm_elastic.protocol.codes import EventKind, Reason
from slurm_elastic.protocol.messages import Piece, Resize, Shape

# --- what the reports say of a node --------------------------------------------------------------------------------


def test_a_plan_gives_up_the_slow_node() -> None:
    """A job that makes room for another that waits keeps the nodes that hold nobody back."""
    world = World(3)
    world.job(1, "n1 n2 n3")
    world.cluster.wait(2)
    assert [piece.nodes for piece in order(world.plan(), 1).keep] == [("n1", "n3")]
    world.state(1, slow={"n3": 0.25})
    assert [piece.nodes for piece in order(world.plan(), 1).keep] == [("n1", "n2")]


# --- what Slurm does not take -----------------------------------------------------------------------------------------


def test_what_slurm_does_not_take_is_planned_to_be_trained_on_again() -> None:
    """All of it that makes an accepted size; not right after that has failed; and nobody is promised its nodes."""
    world = World(2)
    world.job(1, "n1 n2")
    left = InUse(1, 1, (Piece(1, "base", ("n1",), 4, "a100"),), 256, 0.0, 0.0)
    refused = {EventKind.SHRINK: Refusal("sizes are fixed", NOW + 60)}
    world.state(1, in_use=left, refused=refused)
    world.cluster.wait(2)
    plan = world.plan()
    resize = order(plan, 1)
    assert (resize.keep, resize.add, resize.gpus) == ((Piece(1, "base", ("n1", "n2"), 4, "a100"),), (), 8)
    assert row(plan, 1).reason == Reason.TAKE_BACK.value and not plan.served
    world.state(1, last=closed("failed", NOW - 5))
    assert row(world.plan(), 1).reason != Reason.TAKE_BACK.value
    world.state(1, refused={})
    assert len(world.plan().served) == 1


# --- growing ------------------------------------------------------------------------------------------------------


def test_a_job_grows_onto_idle_gpus() -> None:
    """One job, measured at one size only, and three idle nodes: it is given them as companions, with the reason."""
    world = World(4)
    world.job(1, "n1")
    plan = world.plan()
    resize = order(plan, 1)
    assert resize.gpus == 16 and resize.id == 0
    assert resize.keep == (Piece(1, "base", ("n1",), 4, "a100"),)
    assert [(s.nodes, s.gpus_per_node, s.node_list) for s in resize.add] == [(3, 4, ("n2", "n3", "n4"))]
    decision = row(plan, 1)
    assert (decision.gpus_from, decision.gpus_to, decision.reason) == (4, 16, Reason.GROW_IDLE.value)
    assert decision.mechanism == "companion" and decision.gain is not None and decision.gain > 0


def test_no_world_has_both_of_two_hosts_that_do_not_reach_each_other() -> None:
    """What a job grows onto reaches all that it has and gets; another user's failures do not count."""
    world = World(4)
    world.job(1, "n1")
    user = world.cluster.snapshot().jobs[1].user

    def grown(*pairs: HostPair) -> list[str]:
        return [name for shape in order(world.plan(host_pairs=pairs), 1).add for name in shape.node_list]

    apart = HostPair(user, "n1", "n3", "n3 at 10.0.0.3", 3, NOW - 10)
    assert grown(apart) == ["n2", "n4"]
    assert len({*grown(replace(apart, host="n2")), "n2", "n3"}) == 3, "one of the two"
    assert grown(replace(apart, user="somebody else")) == grown(replace(apart, failures=2)) == ["n2", "n3", "n4"]


def test_a_job_comes_back_on_hosts_that_reach_each_other() -> None:
    """What was put back gets a size that has room without both of a pair that its user's jobs found out."""
    world = World(3)
    more = {"asked_per_node": 4, "restarts": 1, "eligible_time": world.cluster.at + 100}
    world.cluster.wait(1, 3, 4, "elastic:gpus=4-12,step=4,batch=240-3840", **more)
    pair = HostPair(world.cluster.snapshot().jobs[1].user, "n1", "n3", "n3 at 10.0.0.3", 3, NOW - 10)
    assert world.plan().resumes[1].nodes == 3
    shape = world.plan(host_pairs=[pair]).resumes[1]
    assert shape.nodes == 2 and not {"n1", "n3"} <= set(shape.node_list)


def test_idle_gpus_are_spread_evenly_before_sizes_are_known() -> None:
    """Two equal jobs, each measured once: the exact optimizer does not give everything to one of them."""
    world = World(4)
    world.job(1, "n1")
    world.job(2, "n2")
    plan = world.plan()
    assert (row(plan, 1).gpus_to, row(plan, 2).gpus_to) == (8, 8)


def test_growth_stays_within_the_request() -> None:
    """The most a job accepts is the most it gets."""
    world = World(4)
    world.job(1, "n1", "elastic:gpus=2-8,batch=240-256,step=2")
    assert row(world.plan(), 1).gpus_to == 8


def test_sizes_without_an_even_batch_are_not_planned() -> None:
    """A batch range that only powers of two share out evenly keeps the job on such sizes."""
    world = World(2)
    world.job(1, "n1", "elastic:gpus=4-7,batch=256")
    assert row(world.plan(), 1).gpus_to == 4


def test_a_job_without_reports_keeps_its_size() -> None:
    """Nothing is known of it: not even that it trains."""
    world = World(4)
    world.job(1, "n1", measured=False)
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_UNMEASURED.value


def test_a_job_without_a_supervisor_is_not_touched() -> None:
    """An elastic comment alone does not make a script able to be resized."""
    world = World(4)
    world.cluster.run(1, "n1", 4, REQUEST)
    world.cluster.wait(2, 4)
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_UNREGISTERED.value


def test_drained_nodes_are_not_grown_onto() -> None:
    """Slurm would not start a companion there."""
    world = World(4)
    world.job(1, "n1")
    world.cluster.drain("n2")
    world.cluster.drain("n4")
    assert order(world.plan(), 1).add[0].node_list == ("n3",)


def test_a_job_that_could_only_grow_onto_sleeping_nodes_says_so() -> None:
    """Not that no other size is worth it; and only while no GPU is idle, and it accepts more."""
    world = World(3)
    world.job(1, "n1", "elastic:gpus=2-8,batch=240-256")
    world.cluster.run(2, "n2")
    world.cluster.nodes["n3"] = replace(world.cluster.nodes["n3"], flags=frozenset({"IDLE", "POWERED_DOWN"}))
    decision = row(world.plan(), 1)
    assert (decision.reason, decision.gpus_to) == (Reason.KEEP_ASLEEP.value, 4)
    assert decision.evidence["asleep_gpus"] == 4
    world.job(1, "n1", "elastic:gpus=2-4,batch=240-256")
    assert row(world.plan(), 1).reason == Reason.KEEP_BEST.value


def test_the_reserve_for_small_jobs_is_left_alone() -> None:
    """rigid_reserve_gpus stay idle in each partition."""
    world = World(3)
    world.job(1, "n1")
    world.settings = replace(SETTINGS, rigid_reserve_gpus=4)
    assert row(world.plan(), 1).gpus_to == 8


def test_gpus_whose_cores_are_taken_are_not_grown_onto() -> None:
    """Idle GPUs beside busy cores are no room; the job takes what is left elsewhere."""
    world = World(3)
    world.job(1, "n1")
    world.cluster.run(7, "n2", 0, cpus=16, uid=1002)
    plan = world.plan()
    assert row(plan, 1).gpus_to == 8 and order(plan, 1).add[0].node_list == ("n3",)


def test_via_without_companions_does_not_grow() -> None:
    """A job that accepts shrinking alone is never told to submit anything."""
    world = World(4)
    world.job(1, "n1", REQUEST + ",via=shrink")
    assert world.plan().resizes == ()


# --- giving -------------------------------------------------------------------------------------------------------


def test_a_rigid_job_that_needs_two_nodes_gets_exactly_two() -> None:
    """The elastic jobs give two nodes, no more, and the row says for whom."""
    world = World(4)
    world.job(1, "n1 n2")
    world.job(2, "n3 n4")
    world.cluster.wait(9, 2, uid=1002)
    plan = world.plan()
    assert sum(row(plan, job).gpus_to for job in (1, 2)) == 8
    assert {row(plan, job).reason for job in (1, 2)} == {Reason.SHRINK_FOR_JOB.value}
    assert row(plan, 1).evidence["for_job"] == 9 and row(plan, 1).evidence["for_gpus"] == 8
    (kept_more,) = row(plan, 1).alternatives
    assert kept_more["gpus"] == 8 and kept_more["why"] == "too few would be left for 9 to start"
    assert all(resize.add == () for resize in plan.resizes)
    assert plan.served[0].need.job_id == 9 and plan.served[0].waits


def test_room_already_on_its_way_is_not_made_twice() -> None:
    """While a shrink is under way for a waiting job, nobody else has to give for it."""
    world = World(4)
    world.job(1, "n1 n2")
    world.job(2, "n3 n4")
    world.cluster.wait(9, 1)
    keep = (Piece(1, "base", ("n1",), 4, "a100"),)
    resize = resize_row(Resize(5, 1, keep, (), 4, 256, "shrink_for_job", 60.0), "accepted", NOW, NOW)
    world.state(1, resize=resize)
    plan = world.plan()
    assert plan.resizes == () and plan.served[0].waits
    assert row(plan, 1).reason == Reason.KEEP_RESIZING.value and row(plan, 1).gpus_to == 4


def test_what_makes_room_does_not_wait_for_gpus_of_its_own() -> None:
    """A job that gives up a companion for a waiting one would like the rest of its GPUs back: it gives way first."""
    world = World(2)
    world.job(1, "n1", "elastic:gpus=1-8,batch=240-256", gpus=1)
    world.cluster.companion(101, 1, "n2")
    world.cluster.companion(102, 1, "n1", gpus_per_node=3)
    world.state(1, observations=(seen(8, 1.0), seen(4, 1.9), seen(2, 3.7), seen(1, 7.0)))
    world.cluster.wait(2)
    world.cluster.wait(3, gpus_per_node=2)
    resize = order(world.plan(), 1)
    assert (resize.gpus, resize.add, [piece.kind for piece in resize.keep]) == (1, (), ["base"])


def test_companions_under_way_are_not_promised_again() -> None:
    """The GPUs of a growth that has not been granted yet are nobody else's."""
    world = World(3)
    world.job(1, "n1")
    world.job(2, "n2")
    shape = Shape(1, 4, node_list=("n3",))
    resize = resize_row(Resize(5, 1, (), (shape,), 8, 256, "grow_idle", 60.0), "accepted", NOW, NOW)
    world.state(1, resize=resize)
    assert world.plan().resizes == ()


def test_nothing_moves_when_the_queue_cannot_use_it() -> None:
    """A waiting job larger than all that could be freed does not shrink anyone."""
    world = World(3)
    world.job(1, "n1 n2", "elastic:gpus=8-8,batch=256")
    world.cluster.run(8, "n3", uid=1002)
    world.cluster.wait(9, 3)
    plan = world.plan()
    assert plan.resizes == () and [need.job_id for need in plan.context.room.unserved] == [9]


def test_an_unmeasured_job_gives_way_all_the_same() -> None:
    """Rigid jobs do not wait for measurements."""
    world = World(2)
    world.job(1, "n1 n2", measured=False)
    world.cluster.wait(9)
    plan = world.plan()
    assert order(plan, 1).keep == (Piece(1, "base", ("n1",), 4, "a100"),)
    assert row(plan, 1).reason == Reason.SHRINK_FOR_JOB.value


def test_an_elastic_job_that_waits_is_let_in() -> None:
    """A running elastic job gives the starting size of the next one."""
    world = World(2)
    world.job(1, "n1 n2")
    world.cluster.wait(2, 1, 4, REQUEST)
    plan = world.plan()
    assert row(plan, 1).reason == Reason.SHRINK_FOR_ELASTIC.value and row(plan, 1).gpus_to == 4
    assert row(plan, 2).reason == Reason.WAITING.value and row(plan, 2).gpus_to == 4


def test_idle_gpus_kept_for_a_waiting_job_are_not_grown_onto() -> None:
    """A job that Slurm is about to start finds its room still there."""
    world = World(3)
    world.job(1, "n1")
    world.cluster.wait(9, 2)
    assert world.plan().resizes == ()


def test_room_that_was_not_taken_is_used_again() -> None:
    """A waiting job that does not start though there is room waits for something else."""
    world = World(3)
    world.job(1, "n1")
    world.cluster.wait(9, 2)
    (served,) = world.plan().served
    assert row(world.plan(passed=[served.need.kind]), 1).gpus_to == 12


def test_a_job_that_is_just_starting_takes_nothing_from_anyone() -> None:
    """Jobs are read before nodes: one that starts in between seems to lack what it already has."""
    world = World(2)
    world.job(1, "n1 n2")
    world.cluster.run(9, "n2", 0)
    world.cluster.nodes["n2"] = replace(world.cluster.nodes["n2"], gpus=8, gpus_used=4)
    world.cluster.wait(10, 1, 4)
    assert world.plan().resizes == ()


def test_gpus_that_nobody_accounts_for_stop_giving_way_for_one_round_and_one_job_only() -> None:
    """What may be a waiting job that has just started is not that any more when it is still so a round later; and a
    larger job, which it cannot be, does not wait for that. The decision says what was left out."""
    world = World(4)
    world.job(1, "n1 n2")
    world.cluster.run(3, "n3", 4)
    world.cluster.change(3, gpus_per_node=2)
    world.cluster.nodes["n3"] = replace(world.cluster.nodes["n3"], gpus_used=2)
    world.cluster.run(4, "n4", 4)
    world.cluster.wait(2, gpus_per_node=2)
    first = world.plan()
    assert first.resizes == () and first.context.unlisted == {"n3": 2}
    second = world.plan(unlisted_before=first.context.unlisted)
    assert order(second, 1).gpus == 4 and row(second, 1).evidence["unlisted"] == "2 on n3"
    world.cluster.wait(2, gpus_per_node=4)
    assert order(world.plan(), 1).gpus == 4


def test_a_job_that_started_between_two_listings_is_in_use_by_no_job_for_that_round_only() -> None:
    """When it was the last one to wait, nothing says later that its GPUs are nobody's; hidden jobs' still are."""
    world = World(4)
    world.job(1, "n1 n2")
    world.cluster.wait(2, gpus_per_node=4)
    world.cluster.nodes["n3"] = replace(world.cluster.nodes["n3"], gpus_used=4)
    first = world.plan()
    assert first.context.unlisted == {"n3": 4}
    del world.cluster.jobs[2]
    hidden = world.plan(unlisted_before=first.context.unlisted)
    assert row(hidden, 1).evidence["unlisted"] == "4 on n3"
    world.cluster.nodes["n3"] = replace(world.cluster.nodes["n3"], gpus_used=0)
    world.cluster.run(2, "n3", 4)
    listed = world.plan(unlisted_before=first.context.unlisted)
    assert listed.context.unlisted == {} and "unlisted" not in row(listed, 1).evidence


def test_two_more_elastic_jobs_arrive_and_everyone_gets_a_share() -> None:
    """The first gives up what the two that wait start with; then all three share evenly."""
    world = World(4)
    world.job(1, "n1")
    world.cluster.companion(101, 1, "n2 n3 n4")
    world.states[1] = JobState(observations=(seen(4), seen(16, 0.3)), reference=(4, 256))
    world.cluster.wait(2, 1, 4, REQUEST)
    world.cluster.wait(3, 1, 4, REQUEST)
    resize = order(world.plan(), 1)
    assert resize.gpus == 8
    assert [(p.kind, len(p.nodes)) for p in resize.keep] == [("base", 1), ("companion", 1)]


def test_gpus_move_to_where_they_bring_more() -> None:
    """A job that does not scale gives to one that does; the growth waits until the GPUs are free."""
    world = World(4)
    world.job(1, "n1 n2")
    world.job(2, "n3 n4", REQUEST)
    world.states[1] = JobState(observations=(seen(4, 1.00), seen(8, 0.99)), reference=(4, 256))
    world.states[2] = JobState(observations=(seen(4, 1.00), seen(8, 0.51)), reference=(4, 256))
    plan = world.plan()
    assert row(plan, 1).gpus_to < 8 < row(plan, 2).gpus_to
    assert row(plan, 1).reason == Reason.SHRINK_SHARE.value
    assert row(plan, 2).reason == Reason.GROW_SHARE.value
    assert [resize.job_id for resize in plan.resizes] == [1]
    assert "released" in row(plan, 2).evidence["next"]
    assert row(plan, 1).evidence["others"][0]["job_id"] == 2


def test_a_component_is_released_whole() -> None:
    """A heterogeneous job gives up a component, and the base keeps its node."""
    world = World(2)
    world.job(1, "n1")
    world.cluster.change(1, het_job_id=1)
    world.cluster.run(2, "n2", 4, het_job_id=1, het_offset=1)
    world.states[1] = JobState(observations=(seen(8),), reference=(8, 256))
    world.cluster.wait(9)
    plan = world.plan()
    assert order(plan, 1).keep == (Piece(1, "base", ("n1",), 4, "a100"),)
    assert row(plan, 1).mechanism == "component"


# --- what a round costs -------------------------------------------------------------------------------------------


def _calls(jobs: int) -> int:
    """Function calls in the first round of so many measured jobs with a node each, and as many idle nodes."""
    world = World(2 * jobs)
    for job_id in range(1, jobs + 1):
        world.job(job_id, f"n{job_id}")
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        plan = world.plan()
    finally:
        sys.setprofile(before)
    assert len(plan.rows) == jobs and plan.resizes
    return calls


def test_a_round_costs_in_proportion_to_its_jobs() -> None:
    """Four times the jobs: about four times the calls. It would be sixteen if every row were made from all the jobs."""
    assert _calls(160) < 6 * _calls(40)


@pytest.mark.parametrize(
    ("features", "gpus", "why"),
    [
        ({"n1": "ib x", "n2": "ib y", "n3": "ib"}, 12, ""),
        ({"n1": "x", "n2": "y", "n3": "x y"}, 8, "its nodes have no alternative of --constraint=[x|y|ib] in common"),
        ({}, 8, "its nodes have no alternative of --constraint=[x|y|ib] in common"),
    ],
)
def test_a_job_grows_by_nodes_like_its_own_or_is_told_why_not(features: dict[str, str], gpus: int, why: str) -> None:
    """An admin has changed what its nodes are called: nothing can be like them all any more, and `explain` says so."""
    world = World(3)
    world.job(1, "n1 n2")
    world.cluster.change(1, features="[x|y|ib]")
    for name, node in world.cluster.nodes.items():
        world.cluster.nodes[name] = replace(node, features=frozenset(features.get(name, "").split()))
    decision = row(world.plan(), 1)
    assert decision.gpus_to == gpus
    if why:
        assert decision.reason == Reason.KEEP_REQUEST.value and why in decision.evidence["limit"]


def test_a_plan_in_which_nobody_moves_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the best is to stay, what staying comes to is not planned again, and it gains nothing."""
    plans: list[PoolPlan] = []

    def counted(*asked: Any) -> list[PoolPlan]:
        found = plan_pools(*asked)
        plans.extend(found)
        return found

    monkeypatch.setattr(allocation, "plan_pools", counted)
    world = World(2)
    for job in (1, 2):
        world.job(job, f"n{job}", "elastic:gpus=4-32,step=4,batch=256")
    plan = world.plan()
    assert not plan.resizes and [len(one.targets) for one in plans] == [2]
    ((_, planned),) = plan.allocation.plans.values()
    assert (planned.gain, planned.held_back) == (0.0, False)
