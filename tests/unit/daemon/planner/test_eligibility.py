"""Who is left alone by a plan, or is not the optimizer's to choose a size for, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_cases import NOW, SETTINGS, World, closed, order, row, seen
from store_records import resize_row

from slurm_elastic.daemon.planner import JobState
from slurm_elastic.daemon.planner.decide import decide
from slurm_elastic.daemon.planner.eligibility import Remaining, cooldown_s, remaining, weight_of
from slurm_elastic.daemon.text.reasons import Reason
from slurm_elastic.db.rows import InUse
from slurm_elastic.protocol.messages import Piece, Report, Resize
from slurm_elastic.protocol.request import parse


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


def test_a_weight_counts_as_far_as_the_site_allows() -> None:
    """Whoever asks for more weight than `max_weight` gets no more for it, and is told."""
    request = parse("gpus=4-16,batch=256-4096,weight=5")
    assert (weight_of(request, SETTINGS), weight_of(request, replace(SETTINGS, max_weight=3.0))) == (1.0, 3.0)
    assert weight_of(parse("gpus=4-16,batch=256-4096,weight=0.5"), SETTINGS) == 0.5
    world = World(4)
    world.job(1, "n1 n2", "elastic:gpus=4-16,batch=256-4096,weight=5")
    evidence = row(world.plan(), 1).evidence
    assert (evidence["weight_asked"], evidence["weight_counts"]) == (5.0, 1.0)


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


def test_a_pinned_job_is_not_moved_not_even_for_waiting_jobs() -> None:
    """A pin is the owner's word."""
    world = World(2)
    world.job(1, "n1 n2")
    world.state(1, pinned=8)
    world.cluster.wait(9)
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_PINNED.value


def test_a_pin_to_another_size_moves_the_job_there() -> None:
    """Pinning to a size means that size, not the present one."""
    world = World(4)
    world.job(1, "n1")
    world.state(1, pinned=8)
    plan = world.plan()
    assert order(plan, 1).gpus == 8
    assert row(plan, 1).reason == Reason.KEEP_PINNED.value


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


def test_one_resize_at_a_time() -> None:
    """A job whose resize is under way gets no second one."""
    world = World(4)
    world.job(1, "n1")
    resize = resize_row(Resize(5, 1, (), (), 8, 256, "grow_idle", 60.0), "granted", NOW, NOW)
    world.state(1, resize=resize)
    assert world.plan().resizes == ()


def test_a_small_gain_moves_nobody() -> None:
    """Below the least gain everybody stays, and the row says what it would have been."""
    world = World(2)
    world.job(1, "n1", "elastic:gpus=4-8,batch=256")
    world.states[1] = JobState(observations=(seen(4, 1.0), seen(8, 0.9)), reference=(4, 256))
    world.settings = replace(SETTINGS, min_gain=0.5)
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_BEST.value
    assert "below the least worth moving for" in row(plan, 1).evidence["next"]


@pytest.mark.parametrize("policy", ["auto", "throughput", "goodput", "harmonic"])
@pytest.mark.parametrize(("gain", "grows"), [(0.05, True), (0.6, False)])
def test_the_least_gain_is_one_jobs_relative_gain_under_every_policy(policy: str, gain: float, grows: bool) -> None:
    """A job that would train 50 % faster moves at a least gain of 5 % and stays at 60 %, on however many GPUs it is."""
    world = World(4)
    world.job(1, "n1 n2", "elastic:gpus=8-16,batch=256")
    world.states[1] = JobState(observations=(seen(8, 1.0), seen(16, 1 / 1.5)), reference=(8, 256))
    world.settings = replace(SETTINGS, min_gain=gain, policy=policy)
    assert bool(world.plan().resizes) == grows


def test_a_pause_that_would_not_pay_moves_nobody() -> None:
    """Close to its time limit a job has no time to earn back its pause."""
    world = World(2)
    world.job(1, "n1")
    world.cluster.change(1, time_left_s=20)
    world.state(1, pause_s=15.0)
    assert world.plan().resizes == ()


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


def test_what_slurm_holds_beyond_the_training_counts_as_coming_free() -> None:
    """A leaked companion is about to be released, so a waiting job takes nothing from anyone for it."""
    world = World(2)
    world.job(1, "n1")
    world.cluster.companion(101, 1, "n2")
    base = Piece(1, "base", ("n1",), 4, "a100")
    world.state(1, in_use=InUse(1, 0, (base,), 256, 0.0, 0.0))
    world.cluster.wait(9)
    plan = world.plan()
    assert plan.resizes == () and plan.met[0].nodes == ("n2",)


def test_evidence_counts_the_reports_and_says_what_is_modelled() -> None:
    """A figure that was never measured is marked as the model's."""
    world = World(2)
    world.job(1, "n1")
    evidence = row(world.plan(), 1).evidence
    assert (evidence["reports_from"], evidence["reports_to"], evidence["modelled"]) == (5, 0, True)
    assert evidence["last_report_age_s"] == 20 and evidence["pause_measured"] is False
    assert evidence["speedup_to"] > evidence["speedup_from"]


def test_the_same_inputs_give_the_same_plan() -> None:
    """Nothing in a plan depends on the order of dictionaries or on chance."""
    world = World(6)
    for job in (1, 2, 3):
        world.job(job, f"n{job}")
    first = world.plan()
    world.cluster.jobs = dict(reversed(list(world.cluster.jobs.items())))
    assert world.plan() == first


@pytest.mark.parametrize("policy", ["throughput", "log-goodput"])
def test_every_policy_of_the_settings_is_known_to_the_optimizer(policy: str) -> None:
    """A settings file that loads gives a plan."""
    world = World(2)
    world.job(1, "n1")
    world.settings = replace(SETTINGS, policy=policy)
    assert world.plan().trouble == ()


def test_the_batch_alone_can_change_and_waits_for_the_cooldown_too() -> None:
    """A larger batch at the same size is a resize without pieces; a new world costs a pause all the same."""
    world = World(1)
    world.job(1, "n1", "elastic:gpus=2-4,batch=64-4096")
    world.states[1] = JobState(observations=(seen(4, 1.0, 256), seen(4, 1.5, 512)), reference=(4, 256))
    plan = world.plan()
    assert row(plan, 1).reason == Reason.BATCH.value and row(plan, 1).mechanism == "batch"
    assert order(plan, 1).batch > 256 and order(plan, 1).add == ()
    world.state(1, last=closed("done", NOW - 10))
    assert world.plan().resizes == ()


def test_after_a_change_of_batch_alone_a_job_grows_at_once() -> None:
    """Jobs begin by taking a faster batch: GPUs that are idle then are not left idle for ten minutes."""
    ended = closed("done", NOW - 10)
    ended = replace(ended, reason=Reason.BATCH.value)
    world = World(4)
    world.job(1, "n1")
    world.state(1, last=ended)
    assert row(world.plan(), 1).gpus_to > 4
    world = World(1)
    world.job(1, "n1", "elastic:gpus=2-4,batch=64-4096")
    world.states[1] = JobState(observations=(seen(4, 1.0, 256), seen(4, 1.5, 512)), reference=(4, 256))
    world.state(1, last=ended)
    assert world.plan().resizes == ()


def test_a_size_never_measured_is_tried_on_idle_gpus() -> None:
    """The optimizer does not bet on what it hardly knows. Idle GPUs are no stake; a measured size is no guess."""
    world = World(8)
    world.job(1, "n1 n2 n3 n4", "elastic:gpus=4-32,step=4,batch=240-256")
    # With three sizes known, Curve says that it knows nothing of any other.
    measured = (seen(4, 1.0), seen(8, 0.55), seen(16, 0.3))
    world.state(1, observations=measured)
    decision = row(world.plan(), 1)
    assert decision.gpus_to == 32 and decision.reason == Reason.GROW_IDLE.value
    assert decision.evidence["tried"] is True and decision.gain is None
    world.state(1, observations=(*measured, *(seen(k, 0.3) for k in (20, 24, 28, 32))))
    assert row(world.plan(), 1).gpus_to == 16


def test_a_size_is_not_tried_when_it_takes_gpus_from_anyone() -> None:
    """Trying is for idle GPUs alone."""
    world = World(4)
    world.job(1, "n1 n2 n3 n4", "elastic:gpus=4-32,step=4,batch=240-256")
    world.state(1, observations=(seen(4, 1.0), seen(8, 0.55), seen(16, 0.3)))
    assert world.plan().resizes == ()


def test_a_pin_to_a_size_it_cannot_be_cut_down_to_leaves_the_job_as_it_is() -> None:
    """With via=companion alone the base keeps its nodes, whatever it is pinned to."""
    world = World(2)
    world.job(1, "n1 n2", "elastic:gpus=4-8,step=4,batch=240-256,via=companion")
    world.state(1, pinned=4)
    plan = world.plan()
    found = row(plan, 1)
    assert plan.resizes == () and found.gpus_to == 8 and found.reason == Reason.KEEP_PINNED.value
    assert str(found.evidence["next"]).endswith("it can't come to that; sizes in reach: 8")


def test_a_pin_between_what_its_nodes_make_says_which_sizes_are_in_reach() -> None:
    """Nodes of four GPUs go whole, and what is added comes on top of what is left."""
    world = World(4)
    world.job(1, "n1 n2", "elastic:gpus=2-16,step=2,batch=240-256,via=shrink+companion")
    world.state(1, pinned=6)
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_PINNED.value
    assert str(row(plan, 1).evidence["next"]).startswith("it is pinned to 6 GPUs, and from the 8 that it has")
    assert "sizes in reach: 4, 8" in str(row(plan, 1).evidence["next"])
    for size in (4, 12):
        world.state(1, pinned=size)
        assert order(world.plan(), 1).gpus == size


def test_a_pin_does_not_hammer_a_growth_that_failed() -> None:
    """The owner's word overrides a cooldown, and not the time after a companion that never came."""
    world = World(4)
    world.job(1, "n1")
    world.state(1, pinned=8, last=closed("done", NOW - 1))
    assert order(world.plan(), 1).gpus == 8
    world.state(1, last=closed("withdrawn", NOW - 1))
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_FAILED.value


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


def test_only_a_job_until_quality_gives_up_a_large_batch_for_its_noise() -> None:
    """A noise scale that three reports agree on counts where the request says until=quality, and nowhere else."""
    said = {}
    for until, count in (("epochs", 9), ("quality", 9), ("quality", 2)):
        world = World(1)
        world.job(1, "n1", f"elastic:gpus=4,batch=64-4096,until={until}")
        noisy = [replace(seen(4, step, batch, count), noise_scale=1.0) for step, batch in ((1.0, 256), (1.5, 512))]
        world.states[1] = JobState(observations=tuple(noisy), reference=(4, 256))
        said[until, count] = row(world.plan(), 1).batch_to
    assert said["quality", 9] < 256 < said["epochs", 9] == said["quality", 2]


def test_who_trains_epochs_at_a_batch_that_wastes_samples_is_told() -> None:
    """The worth of a sample there, and what until=quality would bring at the same size; nothing where little is lost,
    or the noise is not known."""
    told = {}
    for until, noise in (("epochs", 100.0), ("epochs", 1e6), ("epochs", 0.0), ("quality", 100.0)):
        world = World(1)
        world.job(1, "n1", f"elastic:gpus=4,batch=64-4096,until={until}")
        reports = [replace(seen(4, step, batch, 9), noise_scale=noise) for step, batch in ((1.0, 256), (1.5, 512))]
        world.states[1] = JobState(observations=tuple(reports), reference=(4, 256))
        evidence = row(world.plan(), 1).evidence
        told[until, noise] = evidence.get("sample_worth"), evidence.get("quality_gain")
    worth, gain = told.pop(("epochs", 100.0))
    assert worth == pytest.approx(356 / 4196, abs=1e-3) and gain > 1
    assert set(told.values()) == {(None, None)}


def test_a_guarded_range_ends_where_samples_lose_their_worth() -> None:
    """guard=80 takes no batch at which a sample keeps less than 80 %, and none above the first while the noise is
    not known; without a guard the range is all there is."""
    said = {}
    for guard, noise in (("", 1000.0), (",guard=80", 1000.0), (",guard=80", 0.0), (",guard=80", 1e9)):
        world = World(1)
        world.job(1, "n1", f"elastic:gpus=4,batch=64-4096{guard}")
        reports = [replace(seen(4, step, batch, 9), noise_scale=noise) for step, batch in ((1.0, 256), (1.5, 512))]
        world.state(1, observations=tuple(reports))
        said[guard, noise] = row(world.plan(), 1).batch_to
    assert said["", 1000.0] == said[",guard=80", 1e9] == 4096
    assert said[",guard=80", 1000.0] == 512
    assert said[",guard=80", 0.0] <= 256


def test_a_training_with_less_left_gets_more_and_nothing_where_that_is_off() -> None:
    """Two equal jobs of which one says that it has a quarter of the other's samples left."""
    world = World(6)
    for job_id, left in ((1, 100_000), (2, 400_000)):
        world.job(job_id, f"n{job_id}", "elastic:gpus=4-24,batch=2000-2048")
        world.state(job_id, remaining=Remaining(left, 100.0, NOW - 60))
    assert decide(world.inputs()).context.weights.factors == pytest.approx({1: 2**0.5, 2: 2**-0.5})
    sizes = [row(world.plan(), job_id).gpus_to for job_id in (1, 2)]
    assert sizes[0] > sizes[1]
    world.settings = replace(SETTINGS, shorter_first=0.0)
    assert decide(world.inputs()).context.weights.factors == {}


def test_what_is_left_follows_from_the_last_report() -> None:
    """At the speed reported, never below nothing; a report that does not say it leaves it unknown."""
    told = Report(1, NOW - 10, 4, 1, 64, 16, 1, 9, 0.1, 0.1, 640.0, 9, 576, samples_left=10_000)
    found = remaining(told)
    assert found is not None and found.after(NOW) == 3600 and found.after(NOW + 1e6) == 0
    assert remaining(replace(told, samples_left=0)) is remaining(None) is None


def test_no_size_is_planned_that_gives_a_rank_what_its_script_cant_take() -> None:
    """192 samples on four of 16 GPUs that grow: 12 each, or 16 on twelve where each takes multiples of 16 only."""
    for words, chosen in (("", 16), (",slice=12", 16), (",slice=16", 12), (",slice=24", 8)):
        world = World(4)
        world.job(1, "n1", f"elastic:gpus=4-16,batch=192{words}")
        assert row(world.plan(), 1).gpus_to == chosen
