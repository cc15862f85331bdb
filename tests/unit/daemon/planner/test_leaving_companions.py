"""Companions that are left though nobody waits for their nodes: before their end, and for their user's own jobs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from daemon_harness import UIDS, USER
from daemon_harness import World as Daemon
from fake_slurm import Component
from plan_cases import NOW, SETTINGS, World, closed, order, row

from slurm_elastic.daemon.planner.leaving_companions import LEAVE_S
from slurm_elastic.daemon.slurm.accounting import SlurmLimit
from slurm_elastic.daemon.slurm.parse import state_flags
from slurm_elastic.daemon.slurm.site import Reservation, Site
from slurm_elastic.protocol.codes import Reason

WAIT_S = SETTINGS.companion_wait_s


def grown(left_s: int | None, idle_nodes: int, base_left_s: int | None = 3000) -> World:
    """Job 1 on n1 with a companion on n2 that has so many seconds; other jobs hold all nodes but these."""
    world = World(4)
    world.job(1, "n1", measured=True, comment="elastic:gpus=4-8,batch=240-256")
    world.cluster.change(1, time_left_s=base_left_s)
    world.cluster.companion(9, 1, "n2")
    world.cluster.change(9, time_left_s=left_s)
    for node in range(3, 5 - idle_nodes):
        world.cluster.run(20 + node, f"n{node}", user="bob")
    return world


@pytest.mark.parametrize(
    ("left_s", "base_left_s", "leaves"),
    [
        (LEAVE_S - 1, 3000, True),
        (LEAVE_S - 1, None, True),
        (LEAVE_S + 1, 3000, False),  # what it can still train, it trains
        (LEAVE_S - 1, LEAVE_S + 60, False),  # it ends with its job
        (None, 3000, False),
    ],
)
def test_a_companion_is_left_before_its_end(left_s: int | None, base_left_s: int | None, leaves: bool) -> None:
    """Nothing is idle: the job goes on with what it keeps."""
    plan = grown(left_s, 0, base_left_s).plan()
    assert [resize.keep for resize in plan.resizes] == ([plan.resizes[0].keep[:1]] if leaves else [])
    if leaves:
        resize = order(plan, 1)
        assert (resize.gpus, resize.add, resize.reason) == (4, (), Reason.COMPANION_ENDS.value)
        assert [piece.slurm_job_id for piece in resize.keep] == [1]


def test_a_companion_is_replaced_while_there_is_time() -> None:
    """Another node is idle: its successor comes before it is left, in one resize. Later there is no time for one."""
    assert not order(grown(LEAVE_S - 1, 1).plan(), 1).add
    assert not grown(WAIT_S + LEAVE_S + 1, 1).plan().resizes
    resize = order(grown(WAIT_S + LEAVE_S - 1, 1).plan(), 1)
    assert [piece.slurm_job_id for piece in resize.keep] == [1]
    assert [(shape.gpus, shape.node_list) for shape in resize.add] == [(4, ("n4",))]
    assert resize.gpus == 8


def test_a_job_that_may_not_grow_keeps_it_as_long_as_it_can() -> None:
    """In its cooldown there is no successor, so it is left late."""
    world = grown(WAIT_S + LEAVE_S - 1, 1)
    world.state(1, last=closed("done", NOW - 1))
    assert not world.plan().resizes
    world.cluster.change(9, time_left_s=LEAVE_S - 1)
    assert order(world.plan(), 1).gpus == 4


def test_a_job_that_has_left_one_grows_again_at_once() -> None:
    """It was not its choice: no cooldown holds it."""
    world = World(2)
    world.job(1, "n1", comment="elastic:gpus=4-8,batch=240-256")
    left = replace(closed("done", NOW - 1), reason=Reason.COMPANION_ENDS.value)
    world.state(1, last=left)
    assert order(world.plan(), 1).gpus == 8


def test_a_job_that_needs_it_keeps_it_to_the_end() -> None:
    """Below its minimum it is not asked to come."""
    world = World(2)
    world.job(1, "n1", comment="elastic:gpus=8-8,batch=240-256")
    world.cluster.companion(9, 1, "n2")
    world.cluster.change(9, time_left_s=LEAVE_S - 1)
    plan = world.plan()
    assert not plan.resizes and row(plan, 1).gpus_to == 8


def test_the_users_own_jobs_get_the_places_of_companions(tmp_path: Path) -> None:
    """MaxSubmitJobs: with each job that the user submits himself one more companion goes, the smallest first."""
    world = Daemon(tmp_path, nodes=4)
    world.slurm.limits = (SlurmLimit(uid=UIDS[USER], tres={"submits": 4.0}),)
    job = world.elastic(comment="elastic:gpus=4-16,batch=240-3840")
    blocker = world.slurm.submit(Component(2, 4), user="nobody")
    world.settle()
    world.slurm.finish(blocker)
    world.settle()
    assert [piece.gpus for piece in job.pieces] == [4, 4, 8]
    for gpus in (12, 4):
        world.slurm.submit(Component(1, 0), user=USER)
        world.settle()
        assert job.gpus == gpus
    world.slurm.submit(Component(1, 0), user=USER)
    world.settle()
    assert job.gpus == 4


def drained(*names: str, idle_nodes: int = 0) -> World:
    """The grown job, its companion without an end, and these nodes being drained."""
    world = grown(None, idle_nodes)
    for name in names:
        world.cluster.drain(name)
    return world


def test_a_node_that_is_drained_is_left() -> None:
    """Whoever drains it waits for it: the job goes on without it, at once."""
    assert not drained().plan().resizes
    resize = order(drained("n2").plan(), 1)
    assert (resize.gpus, resize.add, resize.reason) == (4, (), Reason.SHRINK_DRAIN.value)
    assert [piece.slurm_job_id for piece in resize.keep] == [1]


def test_another_node_takes_its_place_in_the_same_resize() -> None:
    """As long as one is idle; in a cooldown the job leaves all the same, and grows again without another one."""
    resize = order(drained("n2", idle_nodes=1).plan(), 1)
    assert resize.gpus == 8 and [shape.node_list for shape in resize.add] == [("n4",)]
    world = drained("n2", idle_nodes=1)
    world.state(1, last=closed("done", NOW - 1))
    assert order(world.plan(), 1).gpus == 4
    again = World(2)
    again.job(1, "n1", comment="elastic:gpus=4-8,batch=240-256")
    again.state(1, last=replace(closed("done", NOW - 1), reason=Reason.SHRINK_DRAIN.value))
    assert order(again.plan(), 1).gpus == 8


def test_a_node_that_the_job_cannot_do_without_is_kept() -> None:
    """The batch host, and what it needs for its least size: these are drained when the job has ended."""
    assert not drained("n1").plan().resizes
    world = World(2)
    world.job(1, "n1", comment="elastic:gpus=8-8,batch=240-256")
    world.cluster.companion(9, 1, "n2")
    world.cluster.drain("n2")
    assert not world.plan().resizes


def test_nodes_of_its_own_are_kept() -> None:
    """Whoever drains all nodes before a maintenance lets running jobs end on what they were submitted with; so does
    this, though Slurm could take a node from it in place."""
    world = World(2)
    world.job(1, "n1 n2", comment="elastic:gpus=4-8,batch=240-256,via=shrink")
    world.cluster.drain("n2")
    assert not world.plan().resizes


def test_of_a_wide_companion_only_the_drained_node_is_left() -> None:
    """The others of it go on."""
    world = World(3)
    world.job(1, "n1", measured=True, comment="elastic:gpus=4-12,batch=240-256")
    world.cluster.companion(9, 1, "n2 n3")
    world.cluster.drain("n3")
    resize = order(world.plan(), 1)
    assert resize.gpus == 8 and [piece.nodes for piece in resize.keep] == [("n1",), ("n2",)]


@pytest.mark.parametrize(
    ("flags", "leaves"),
    [
        ("mixed+drain", True),
        ("fail", True),
        ("mixed+fail", True),
        ("failing", True),
        ("mixed+maintenance", True),
        ("maint", True),
        ("mixed+reboot_requested", True),
        ("mixed+reboot_issued", True),
        ("mixed+planned", False),
        ("completing", False),
    ],
)
def test_what_state_a_node_is_left_in(flags: str, leaves: bool) -> None:
    """As sinfo writes it."""
    world = grown(None, 0)
    world.cluster.nodes["n2"] = replace(world.cluster.nodes["n2"], flags=state_flags(flags))
    assert [resize.reason for resize in world.plan().resizes] == [Reason.SHRINK_DRAIN.value] * leaves


@pytest.mark.parametrize(
    ("start", "end", "name", "leaves"),
    [
        (-600, 600, "repair", True),
        (LEAVE_S + WAIT_S - 1, 9e9, "repair", True),
        (LEAVE_S + WAIT_S + 1, 9e9, "repair", False),  # there is time
        (-600, -1, "repair", False),  # it is over
        (-1, 600, "selastic-7", False),  # keeps nodes for a job that a resize puts back
    ],
)
def test_a_node_is_left_before_a_reservation_of_it_begins(start: float, end: float, name: str, leaves: bool) -> None:
    """In time for another companion, which comes in the same resize; nothing grows there again."""
    world = grown(None, 1)
    kept = Reservation(name, ("n2",), world.cluster.at + start, world.cluster.at + end)
    plan = world.plan(site=Site(reservations=(kept,)))
    added = [[shape.node_list for shape in resize.add] for resize in plan.resizes]
    assert added == [[("n4",)]] * leaves
