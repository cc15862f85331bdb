"""How long its last resizes hold a job back."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from plan_cases import NOW, SETTINGS, World, closed, order, row, seen

from slurm_elastic.daemon.planner import JobState, decide
from slurm_elastic.daemon.planner.running.eligibility import cooldown_s
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.rows import ResizeRow
from slurm_elastic.protocol.codes import Reason, ResizeState
from slurm_elastic.protocol.messages import Resize, Shape


def test_cooldown_holds_growth_back_but_not_waiting_jobs() -> None:
    """After a resize a job does not grow for a while; it gives way to a waiting job at once."""
    world = World(4)
    world.job(1, "n1 n2")
    world.state(1, last=closed("done", NOW - 10))
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_COOLDOWN.value
    assert row(plan, 1).evidence["cooldown_until"] == NOW + 50
    world.cluster.wait(9, 3)
    assert row(world.plan(), 1).gpus_to == 4


def test_a_cooldown_is_as_short_as_the_pauses_are() -> None:
    """A job that pauses for a second grows again after a minute, one that pauses for half a minute after five; where
    the site says so a pause counts for nothing, and no cooldown is longer than the site's."""
    world = World(4)
    world.settings = replace(SETTINGS, cooldown_grow_s=600.0, cooldown_pauses=10.0)
    world.job(1, "n1 n2")
    found = []
    for pause_s, ago in ((1.0, 59), (1.0, 61), (30.0, 299), (30.0, 301), (None, 61), (90.0, 599), (90.0, 601)):
        world.state(1, last=closed("done", NOW - ago), pause_s=pause_s)
        found.append(row(world.plan(), 1).gpus_to > 8)
    assert found == [False, True, False, True, True, False, True]
    whole = replace(world.settings, cooldown_pauses=0.0)
    assert (cooldown_s(600.0, 1.0, whole), cooldown_s(30.0, 1.0, world.settings)) == (600.0, 30.0)


def test_nobody_waits_for_a_time_in_the_far_future() -> None:
    """A resize that a wrong clock has stored: there is no cooldown until that time comes."""
    world = World(4)
    world.job(1, "n1 n2")
    world.state(1, last=closed("done", NOW + 500 * 86400))
    assert [resize.gpus for resize in world.plan().resizes] == [16]


def test_what_was_given_up_in_vain_comes_back_without_the_cooldown() -> None:
    """The job that it was given up for did not take it."""
    world = World(4)
    world.job(1, "n1 n2")
    world.state(1, last=closed("done", NOW - 10), gave_in_vain=True)
    assert row(world.plan(), 1).gpus_to > 8


def test_a_job_is_resized_so_often_and_no_more() -> None:
    """The limit within an hour holds growth and shares back, not the room for waiting jobs, and lapses by itself."""
    world = World(4)
    world.settings = replace(SETTINGS, max_resizes_per_job_hour=2)
    world.job(1, "n1 n2")
    assert world.plan().resizes != ()
    world.state(1, resized=(NOW - 3000, NOW - 2000))
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_COOLDOWN.value
    assert row(plan, 1).evidence["cooldown_until"] == NOW + 600 and row(plan, 1).evidence["resizes_in_hour"] == 2
    world.cluster.wait(9, 3)
    assert row(world.plan(), 1).gpus_to == 4
    world = World(4)
    world.settings = replace(SETTINGS, max_resizes_per_job_hour=2)
    world.job(1, "n1 n2")
    world.state(1, resized=(NOW - 3601, NOW - 2000))
    assert world.plan().resizes != ()


def test_shrinking_for_another_elastic_job_waits_for_its_own_cooldown() -> None:
    """The two cooldowns are separate."""
    world = World(4)
    world.job(1, "n1 n2")
    world.job(2, "n3 n4")
    world.states[1] = JobState(observations=(seen(4, 1.0), seen(8, 0.99)), reference=(4, 256))
    world.states[2] = JobState(observations=(seen(4, 1.0), seen(8, 0.51)), reference=(4, 256))
    world.state(1, last=closed("done", NOW - 10))
    assert world.plan().resizes == ()
    world.state(1, last=closed("done", NOW - 40))
    assert [resize.job_id for resize in world.plan().resizes] == [1]


def test_a_failed_resize_leaves_the_job_alone_for_a_while() -> None:
    """What just failed is not tried again at once, in any direction; but it gives way long before the time is over,
    later where it fails again and again."""
    world = World(4)
    world.job(1, "n1 n2")
    world.state(1, last=closed("failed", NOW - 10))
    world.cluster.wait(9, 3)
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_FAILED.value
    assert row(plan, 1).evidence["blocked_until"] == NOW - 10 + SETTINGS.failed_backoff_s
    tenth = SETTINGS.failed_backoff_s / 10
    for failures, after, gives in (
        (1, 1, True),
        (2, 1, False),
        (2, 2, True),
        (3, 2, False),
        (3, 4, True),
        (9, 9, False),
    ):
        world.state(1, last=closed("failed", NOW - after * tenth), failures=failures)
        assert bool(world.plan().resizes) is gives, (failures, after)
    del world.cluster.jobs[9]
    world.state(1, last=closed("failed", NOW - tenth), failures=1)
    assert world.plan().resizes == ()  # it neither grows nor shrinks for others


def test_a_companion_that_never_came_stops_growth_only() -> None:
    """It is no fault of the job: it still gives way."""
    world = World(4)
    world.job(1, "n1 n2")
    world.state(1, last=closed("withdrawn", NOW - 10))
    assert world.plan().resizes == ()
    world.cluster.wait(9, 3)
    assert row(world.plan(), 1).gpus_to == 4


def refused_growth(gpus: int, state: str = "withdrawn", after_s: float = 1.0, asked: str = "submitted") -> ResizeRow:
    """A growth of a job with 4 GPUs, which Slurm was asked for so long before it ended."""
    resize = Resize(1, 1, (), (Shape(1, gpus - 4),), gpus, 256, "grow_idle", 60.0)
    row = ResizeRow.issued(resize, NOW - 20).come_to(ResizeState(asked), NOW - 10 - after_s)
    return row.come_to(ResizeState(state), NOW - 10)


def test_after_a_size_that_slurm_refused_a_smaller_one_is_tried() -> None:
    """At once, with half of what was to be added, then half of that; when none is left, after the backoff."""
    world = World(4)
    world.job(1, "n1", "elastic:gpus=4-16,step=4,batch=240-256")
    assert order(world.plan(), 1).gpus == 16
    world.state(1, last=refused_growth(16))
    plan = world.plan()
    assert order(plan, 1).gpus == 8 and sum(shape.gpus for shape in order(plan, 1).add) == 4
    limit = row(plan, 1).evidence["limit"]
    assert limit == "Slurm refused it more at once, and it may try 10 GPUs in all: without that it would have 16"
    world.state(1, last=refused_growth(8))
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_FAILED.value
    world.state(1, last=refused_growth(8), pinned=16)
    assert world.plan().resizes == ()


@pytest.mark.parametrize("last", [
    refused_growth(16, after_s=60.0),  # Slurm granted none within its time
    refused_growth(16, state="failed"),
    refused_growth(16, asked="accepted"),
    refused_growth(16, asked="granted"),
])  # fmt: skip
def test_only_a_refusal_says_that_a_smaller_size_may_pass(last: ResizeRow) -> None:
    """What was waited for in vain, or failed later, would not be had by asking for less."""
    world = World(4)
    world.job(1, "n1", "elastic:gpus=4-16,step=4,batch=240-256")
    world.state(1, last=last)
    assert world.plan().resizes == ()


def faster_at_512(settings: Settings = SETTINGS) -> World:
    """One job, which another batch would do good."""
    world = World(1)
    world.settings = settings
    world.job(1, "n1", "elastic:gpus=2-4,batch=64-4096")
    world.states[1] = JobState(observations=(seen(4, 1.0, 256), seen(4, 1.5, 512)), reference=(4, 256))
    return world


def test_the_batch_alone_waits_for_reports_and_for_no_cooldown() -> None:
    """A larger batch at the same size is a resize without pieces, and costs what such changes have cost the job, first
    nothing. After a resize it waits for a minute, in which the new size is reported, though the cooldown of the
    nodes lasts ten."""
    world = faster_at_512(replace(SETTINGS, cooldown_grow_s=600.0, cooldown_shrink_s=600.0, cooldown_pauses=0.0))
    plan = world.plan()
    made = row(plan, 1)
    assert (made.reason, made.mechanism, made.evidence["pause_s"]) == (Reason.BATCH.value, "batch", 0.0)
    assert order(plan, 1).batch > 256 and order(plan, 1).add == ()
    world.state(1, last=closed("done", NOW - 10), batch_pause_s=0.25)
    assert world.plan().resizes == ()
    world.state(1, last=closed("done", NOW - 61))
    plan = world.plan()
    assert order(plan, 1).batch > 256
    assert (row(plan, 1).evidence["pause_s"], row(plan, 1).evidence["pause_measured"]) == (0.25, True)


def test_a_change_of_batch_that_costs_a_long_pause_is_charged() -> None:
    """A job whose batch changes have paused it for minutes stays as it is: its own measurements say so."""
    world = faster_at_512()
    world.state(1, batch_pause_s=0.5 * SETTINGS.horizon_s)
    assert world.plan().resizes == ()


def test_the_time_between_two_changes_of_batch() -> None:
    """A minute while they cost next to nothing, longer where they pause; longer still after one that failed."""
    world = faster_at_512(replace(SETTINGS, cooldown_grow_s=600.0, cooldown_pauses=10.0))
    found = []
    for how, pause_s, ago in (
        ("done", 0.1, 59), ("done", 0.1, 61), ("done", 20.0, 61), ("done", 20.0, 201), ("failed", 0.1, 61),
        ("failed", 0.1, SETTINGS.failed_backoff_s + 1),
    ):  # fmt: skip
        ended = replace(closed(how, NOW - ago), reason=Reason.BATCH.value)
        world.state(1, last_batch=ended, batch_pause_s=pause_s)
        found.append(bool(world.plan().resizes))
    assert found == [False, True, False, True, False, True]


def test_batches_are_no_resizes_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """With room for one resize in a round three jobs change their batch; not so many that writing them down takes the
    round's time."""
    world = World(4)
    world.settings = replace(SETTINGS, max_resizes_per_round=1)
    for number in (1, 2, 3):
        world.job(number, f"n{number}", "elastic:gpus=4-4,batch=64-4096")
        world.states[number] = JobState(observations=(seen(4, 1.0, 256), seen(4, 1.5, 512)), reference=(4, 256))
    assert {(made.job_id, made.reason) for made in world.plan().resizes} == {(n, Reason.BATCH.value) for n in (1, 2, 3)}
    monkeypatch.setattr(sys.modules[decide.__module__], "MOST_BATCHES", 2)
    assert len(world.plan().resizes) == 2


def test_after_a_change_of_batch_alone_a_job_grows_at_once() -> None:
    """Jobs begin by taking a faster batch: GPUs that are idle then are not left idle for ten minutes."""
    ended = closed("done", NOW - 10)
    ended = replace(ended, reason=Reason.BATCH.value)
    world = World(4)
    world.job(1, "n1")
    world.state(1, last_batch=ended)
    assert row(world.plan(), 1).gpus_to > 4
    world = faster_at_512()
    world.state(1, last_batch=ended)
    assert world.plan().resizes == ()
