"""One round's plan: who grows, who gives, who is left alone, and what is said about it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from snapshots import Cluster

from slurm_elastic.daemon.capacity.elastic import sort_jobs
from slurm_elastic.daemon.fitted import observation, observations
from slurm_elastic.daemon.optimizer.models import Observation
from slurm_elastic.daemon.optimizer.plans import Cache
from slurm_elastic.daemon.planner import Inputs, JobState, Plan, plan_round
from slurm_elastic.daemon.planner.standing import slow_nodes, weight_of
from slurm_elastic.daemon.reasons import Reason
from slurm_elastic.daemon.settings import Settings
from slurm_elastic.db.rows import DecisionRow, IntentRow, InUse, Mark, ObservationRow
from slurm_elastic.trainer_shim.request import parse
from slurm_elastic.trainer_shim.wire import Directive, Piece, Report, Shape

REQUEST = "elastic:gpus=2-16,batch=240-256"
"""So narrow that the batch alone is never worth a change."""
SETTINGS = Settings(mode="act", cooldown_grow_s=60.0, cooldown_shrink_s=30.0)
NOW = 10_000.0


class Curve:
    """A throughput model without surprises: what was measured, and k**p in between and beyond."""

    jitter = 0.005

    def __init__(self, observations: Sequence[Observation], prior: object = None) -> None:
        first, last = min(observations, key=lambda o: o.gpus), max(observations, key=lambda o: o.gpus)
        self.sizes_seen = tuple(sorted({o.gpus for o in observations}))
        self.known = {o.gpus: o.batch / o.step_time_s for o in observations}
        self.scale = first.batch / first.step_time_s / first.gpus**0.85
        self.power = 0.85
        if last.gpus > first.gpus:
            speeds = last.batch / last.step_time_s, first.batch / first.step_time_s
            self.power = math.log(speeds[0] / speeds[1]) / math.log(last.gpus / first.gpus)
            self.scale = speeds[1] / first.gpus**self.power

    def throughput(self, gpus: int, nodes: int, batch: int, micro_batch: int | None = None) -> float:
        return self.known.get(gpus, self.scale * gpus**self.power) * batch / (batch + 64)

    def uncertainty(self, gpus: int, nodes: int | None = None) -> float:
        return 0.02 if gpus in self.sizes_seen else 0.1 if len(self.sizes_seen) < 3 else 0.9


def seen(gpus: int, step_time: float = 1.0, batch: int = 256, count: int = 5) -> ObservationRow:
    """Reports at one size."""
    nodes = -(-gpus // 4)
    return ObservationRow(gpus, nodes, batch, max(1, batch // gpus), 1, count, step_time, batch / step_time, NOW - 20)


class World:
    """A cluster whose elastic jobs train on all they hold and have been measured, unless told otherwise."""

    def __init__(self, nodes: int = 4) -> None:
        self.cluster = Cluster(nodes)
        self.states: dict[int, JobState] = {}
        self.settings = SETTINGS

    def job(self, job_id: int, nodes: str, comment: str = REQUEST, gpus: int = 4, measured: bool = True) -> None:
        self.cluster.run(job_id, nodes, gpus, comment)
        count = len(nodes.split()) * gpus
        observations = (seen(count),) if measured else ()
        self.states[job_id] = JobState(observations=observations, reference=(count, 256), reported_at=NOW - 20)

    def state(self, job_id: int, **more: object) -> None:
        self.states[job_id] = replace(self.states[job_id], **more)  # type: ignore[arg-type]

    def plan(
        self, passed: Sequence[int] = (), cache: Cache | None = None, marks: Mapping[int, Mark] | None = None
    ) -> Plan:
        snapshot = self.cluster.snapshot()
        roster = sort_jobs(snapshot, accepted=set(self.states))
        states = {}
        for job_id, job in roster.elastic.items():
            state = self.states.get(job_id, JobState())
            if state.in_use is None and job.running and job_id in self.states:
                state = replace(state, in_use=InUse(job_id, 0, job.pieces, 256, 0.0, 0.0))
            model = Curve(observations(state.observations)) if state.observations else None
            states[job_id] = replace(state, model=model)
        return plan_round(Inputs(snapshot, roster, states, self.settings, NOW, passed, cache, marks=marks or {}))


def row(plan: Plan, job_id: int) -> DecisionRow:
    return next(row for row in plan.rows if row.job_id == job_id)


def order(plan: Plan, job_id: int) -> Directive:
    return next(directive for directive in plan.directives if directive.job_id == job_id)


def closed(state: str, at: float, job_id: int = 1) -> IntentRow:
    return IntentRow(Directive(1, job_id, (), (), 4, 256, "grow_idle", 60.0), state, "", at, at)


# --- what the reports say of a node --------------------------------------------------------------------------------


def test_only_the_present_world_names_a_slow_node() -> None:
    """The node of the slow rank, with what it costs every step; none when the ranks have moved since, or when what
    holds the steps back is not a rank."""
    report = Report(3, NOW, 8, 2, 256, 32, 1, 10, 1.0, 1.1, 256.0, 10, 2560, 0,
                    bottleneck="slow_rank", bottleneck_share=0.25, bottleneck_rank=5, bottleneck_node="n2")  # fmt: skip
    now = InUse(1, 3, (Piece(1, "base", ("n1", "n2"), 4, "a100"),), 256, 0.0, 0.0)
    assert slow_nodes(report, now) == {"n2": 0.25}
    assert slow_nodes(report, replace(now, generation=4)) == {}
    assert slow_nodes(replace(report, bottleneck="communication"), now) == {}
    assert slow_nodes(replace(report, bottleneck_node=""), now) == slow_nodes(None, now) == {}


def test_a_plan_gives_up_the_slow_node() -> None:
    """A job that makes room for another that waits keeps the nodes that hold nobody back."""
    world = World(3)
    world.job(1, "n1 n2 n3")
    world.cluster.wait(2)
    assert [piece.nodes for piece in order(world.plan(), 1).keep] == [("n1", "n3")]
    world.state(1, slow={"n3": 0.25})
    assert [piece.nodes for piece in order(world.plan(), 1).keep] == [("n1", "n2")]


# --- growing ------------------------------------------------------------------------------------------------------


def test_a_job_grows_onto_idle_gpus() -> None:
    """One job, measured at one size only, and three idle nodes: it is given them as companions, with the reason."""
    world = World(4)
    world.job(1, "n1")
    plan = world.plan()
    directive = order(plan, 1)
    assert directive.gpus == 16 and directive.id == 0
    assert directive.keep == (Piece(1, "base", ("n1",), 4, "a100"),)
    assert [(s.nodes, s.gpus_per_node, s.node_list) for s in directive.add] == [(3, 4, ("n2", "n3", "n4"))]
    decision = row(plan, 1)
    assert (decision.gpus_from, decision.gpus_to, decision.reason) == (4, 16, Reason.GROW_IDLE.value)
    assert decision.mechanism == "companion" and decision.gain is not None and decision.gain > 0


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
    assert plan.directives == () and row(plan, 1).reason == Reason.KEEP_UNMEASURED.value


def test_a_job_without_a_supervisor_is_not_touched() -> None:
    """An elastic comment alone does not make a script able to be resized."""
    world = World(4)
    world.cluster.run(1, "n1", 4, REQUEST)
    world.cluster.wait(2, 4)
    plan = world.plan()
    assert plan.directives == () and row(plan, 1).reason == Reason.KEEP_UNREGISTERED.value


def test_drained_nodes_are_not_grown_onto() -> None:
    """Slurm would not start a companion there."""
    world = World(4)
    world.job(1, "n1")
    world.cluster.drain("n2")
    world.cluster.drain("n4")
    assert order(world.plan(), 1).add[0].node_list == ("n3",)


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
    assert world.plan().directives == ()


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
    assert all(directive.add == () for directive in plan.directives)
    assert plan.met[0].need.job_id == 9 and plan.met[0].waits


def test_room_already_on_its_way_is_not_made_twice() -> None:
    """While a shrink is under way for a waiting job, nobody else has to give for it."""
    world = World(4)
    world.job(1, "n1 n2")
    world.job(2, "n3 n4")
    world.cluster.wait(9, 1)
    keep = (Piece(1, "base", ("n1",), 4, "a100"),)
    intent = IntentRow(Directive(5, 1, keep, (), 4, 256, "shrink_for_job", 60.0), "accepted", "", NOW, NOW)
    world.state(1, intent=intent)
    plan = world.plan()
    assert plan.directives == () and plan.met[0].waits
    assert row(plan, 1).reason == Reason.KEEP_RESIZING.value and row(plan, 1).gpus_to == 4


def test_companions_under_way_are_not_promised_again() -> None:
    """The GPUs of a growth that has not been granted yet are nobody else's."""
    world = World(3)
    world.job(1, "n1")
    world.job(2, "n2")
    shape = Shape(1, 4, node_list=("n3",))
    intent = IntentRow(Directive(5, 1, (), (shape,), 8, 256, "grow_idle", 60.0), "accepted", "", NOW, NOW)
    world.state(1, intent=intent)
    assert world.plan().directives == ()


def test_nothing_moves_when_the_queue_cannot_use_it() -> None:
    """A waiting job larger than all that could be freed does not shrink anyone."""
    world = World(3)
    world.job(1, "n1 n2", "elastic:gpus=8-8,batch=256")
    world.cluster.run(8, "n3", uid=1002)
    world.cluster.wait(9, 3)
    plan = world.plan()
    assert plan.directives == () and plan.unmet == (9,)


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
    assert world.plan().directives == ()


def test_room_that_was_not_taken_is_used_again() -> None:
    """A waiting job that does not start though there is room waits for something else."""
    world = World(3)
    world.job(1, "n1")
    world.cluster.wait(9, 2)
    assert row(world.plan(passed=[9]), 1).gpus_to == 12


def test_a_job_that_is_just_starting_takes_nothing_from_anyone() -> None:
    """Jobs are read before nodes: one that starts in between seems to lack what it already has."""
    world = World(2)
    world.job(1, "n1 n2")
    world.cluster.run(9, "n2", 0)
    world.cluster.nodes["n2"] = replace(world.cluster.nodes["n2"], gpus=8, gpus_used=4)
    world.cluster.wait(10, 1, 4)
    assert world.plan().directives == ()


def test_two_more_elastic_jobs_arrive_and_everyone_gets_a_share() -> None:
    """The first gives up what the two that wait start with; then all three share evenly."""
    world = World(4)
    world.job(1, "n1")
    world.cluster.companion(101, 1, "n2 n3 n4")
    world.states[1] = JobState(observations=(seen(4), seen(16, 0.3)), reference=(4, 256))
    world.cluster.wait(2, 1, 4, REQUEST)
    world.cluster.wait(3, 1, 4, REQUEST)
    directive = order(world.plan(), 1)
    assert directive.gpus == 8
    assert [(p.kind, len(p.nodes)) for p in directive.keep] == [("base", 1), ("companion", 1)]


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
    assert [directive.job_id for directive in plan.directives] == [1]
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


# --- leaving alone ------------------------------------------------------------------------------------------------


def test_cooldown_holds_growth_back_but_not_waiting_jobs() -> None:
    """After a resize a job does not grow for a while; it gives way to a waiting job at once."""
    world = World(4)
    world.job(1, "n1 n2")
    world.state(1, last=closed("done", NOW - 10))
    plan = world.plan()
    assert plan.directives == () and row(plan, 1).reason == Reason.KEEP_COOLDOWN.value
    assert row(plan, 1).evidence["cooldown_until"] == NOW + 50
    world.cluster.wait(9, 3)
    assert row(world.plan(), 1).gpus_to == 4


def test_a_job_is_resized_so_often_and_no_more() -> None:
    """The limit within an hour holds growth and shares back, not the room for waiting jobs, and lapses by itself."""
    world = World(4)
    world.settings = replace(SETTINGS, max_resizes_per_job_hour=2)
    world.job(1, "n1 n2")
    assert world.plan().directives != ()
    world.state(1, resized=(NOW - 3000, NOW - 2000))
    plan = world.plan()
    assert plan.directives == () and row(plan, 1).reason == Reason.KEEP_COOLDOWN.value
    assert row(plan, 1).evidence["cooldown_until"] == NOW + 600 and row(plan, 1).evidence["resizes_in_hour"] == 2
    world.cluster.wait(9, 3)
    assert row(world.plan(), 1).gpus_to == 4
    world = World(4)
    world.settings = replace(SETTINGS, max_resizes_per_job_hour=2)
    world.job(1, "n1 n2")
    world.state(1, resized=(NOW - 3601, NOW - 2000))
    assert world.plan().directives != ()


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
    assert world.plan().directives == ()
    world.state(1, last=closed("done", NOW - 40))
    assert [directive.job_id for directive in world.plan().directives] == [1]


def test_a_pinned_job_is_not_moved_not_even_for_waiting_jobs() -> None:
    """A pin is the owner's word."""
    world = World(2)
    world.job(1, "n1 n2")
    world.state(1, pinned=8)
    world.cluster.wait(9)
    plan = world.plan()
    assert plan.directives == () and row(plan, 1).reason == Reason.KEEP_PINNED.value


def test_a_pin_to_another_size_moves_the_job_there() -> None:
    """Pinning to a size means that size, not the present one."""
    world = World(4)
    world.job(1, "n1")
    world.state(1, pinned=8)
    plan = world.plan()
    assert order(plan, 1).gpus == 8
    assert row(plan, 1).reason == Reason.KEEP_PINNED.value


def test_a_failed_resize_leaves_the_job_alone_for_a_while() -> None:
    """What just failed is not tried again at once, in any direction."""
    world = World(4)
    world.job(1, "n1 n2")
    world.state(1, last=closed("failed", NOW - 10))
    world.cluster.wait(9, 3)
    plan = world.plan()
    assert plan.directives == () and row(plan, 1).reason == Reason.KEEP_FAILED.value
    assert row(plan, 1).evidence["blocked_until"] == NOW - 10 + SETTINGS.failed_backoff_s


def test_a_companion_that_never_came_stops_growth_only() -> None:
    """It is no fault of the job: it still gives way."""
    world = World(4)
    world.job(1, "n1 n2")
    world.state(1, last=closed("withdrawn", NOW - 10))
    assert world.plan().directives == ()
    world.cluster.wait(9, 3)
    assert row(world.plan(), 1).gpus_to == 4


def test_one_resize_at_a_time() -> None:
    """A job whose resize is under way gets no second one."""
    world = World(4)
    world.job(1, "n1")
    intent = IntentRow(Directive(5, 1, (), (), 8, 256, "grow_idle", 60.0), "granted", "", NOW, NOW)
    world.state(1, intent=intent)
    assert world.plan().directives == ()


def test_a_small_gain_moves_nobody() -> None:
    """Below the least gain everybody stays, and the row says what it would have been."""
    world = World(2)
    world.job(1, "n1", "elastic:gpus=4-8,batch=256")
    world.states[1] = JobState(observations=(seen(4, 1.0), seen(8, 0.9)), reference=(4, 256))
    world.settings = replace(SETTINGS, min_gain=0.5)
    plan = world.plan()
    assert plan.directives == () and row(plan, 1).reason == Reason.KEEP_BEST.value
    assert "below the least worth moving for" in row(plan, 1).evidence["next"]


def test_a_pause_that_would_not_pay_moves_nobody() -> None:
    """Close to its time limit a job has no time to earn back its pause."""
    world = World(2)
    world.job(1, "n1")
    world.cluster.change(1, time_left_s=20)
    world.state(1, pause_s=15.0)
    assert world.plan().directives == ()


def test_only_so_many_resizes_begin_in_one_round() -> None:
    """The others are planned, and said to come later."""
    world = World(8)
    for job in (1, 2, 3):
        world.job(job, f"n{job}", "elastic:gpus=2-8,batch=240-256")
    world.settings = replace(SETTINGS, max_resizes_per_round=2)
    plan = world.plan()
    assert len(plan.directives) == 2
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
    assert plan.directives == () and plan.met[0].nodes == ("n2",)


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
    assert world.plan().directives == ()


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
    assert world.plan().directives == ()


def test_a_pin_to_a_size_it_cannot_be_cut_down_to_leaves_the_job_as_it_is() -> None:
    """With via=companion alone the base keeps its nodes, whatever it is pinned to."""
    world = World(2)
    world.job(1, "n1 n2", "elastic:gpus=4-8,step=4,batch=240-256,via=companion")
    world.state(1, pinned=4)
    plan = world.plan()
    assert plan.directives == () and row(plan, 1).gpus_to == 8


def test_a_pin_does_not_hammer_a_growth_that_failed() -> None:
    """The owner's word overrides a cooldown, and not the time after a companion that never came."""
    world = World(4)
    world.job(1, "n1")
    world.state(1, pinned=8, last=closed("done", NOW - 1))
    assert order(world.plan(), 1).gpus == 8
    world.state(1, last=closed("withdrawn", NOW - 1))
    plan = world.plan()
    assert plan.directives == () and row(plan, 1).reason == Reason.KEEP_FAILED.value


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


# --- limits, partitions, GPU types --------------------------------------------------------------------------------


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
    """Step times within the noise, and one more report of many, are the same observation: nothing is fitted anew."""
    first, again = seen(4, 1.0, count=40), seen(4, 1.001, count=41)
    assert observation(first) == observation(again)
    assert math.isclose(observation(first).step_time_s, 1.0, rel_tol=0.002)
    assert observation(seen(4, 1.02, count=40)) != observation(first)


def test_what_is_kept_between_rounds_changes_no_plan() -> None:
    """A round with what the last one left behind decides as one without."""
    world, cache = World(4), Cache()
    world.job(1, "n1")
    world.job(2, "n2")
    for step in (1.0, 1.0, 0.7):
        world.state(1, observations=(seen(4, 1.0), seen(8, step)))
        assert world.plan(cache=cache) == world.plan()


def test_a_decision_that_stands_is_made_without_its_evidence() -> None:
    """The plan and every row's numbers are the same; what is not stored again is not written anew, the rest in full."""
    world = World(5)
    world.job(1, "n1")
    world.job(2, "n2", measured=False)
    world.job(3, "n3")
    world.state(3, pinned=4)
    plain = world.plan()
    marks = {row.job_id: row.mark for row in plain.rows}
    known = world.plan(marks=marks)
    assert known == replace(plain, rows=tuple(replace(row, evidence={}, alternatives=[]) for row in plain.rows))
    assert world.plan(marks={**marks, 2: marks[1], 3: marks[1]}).rows[1:] == plain.rows[1:]
    assert all(row.evidence for row in plain.rows) and len(plain.rows) == 3
