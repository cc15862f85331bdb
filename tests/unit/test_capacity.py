"""What is elastic, what can be given up, what waiting jobs need, and where growth fits."""

from __future__ import annotations

from dataclasses import replace

import pytest
from snapshots import TYPE, Cluster

from slurm_elastic.daemon.capacity.elastic import Roster, Scope, companion_tag, sort_jobs
from slurm_elastic.daemon.capacity.growth import Like, place, take
from slurm_elastic.daemon.capacity.ledger import Amount, Ledger, per_node, pool_of, pools
from slurm_elastic.daemon.capacity.needs import meets, needs
from slurm_elastic.daemon.capacity.room import Room, make_room
from slurm_elastic.daemon.capacity.units import Giver, droppable, shrinks, units_of, without
from slurm_elastic.daemon.reasons import Reason
from slurm_elastic.daemon.slurm.types import Partition, Snapshot
from slurm_elastic.trainer_shim.wire import Piece

REQUEST = "elastic:gpus=1-16,batch=16-4096"


def giver(roster: Roster, job_id: int) -> Giver:
    """An elastic job of a roster, free to give whatever it accepts to give."""
    job = roster.elastic[job_id]
    return Giver(
        job_id,
        job.pieces,
        job.base.batch_host,
        frozenset(job.request.sizes()),
        job.request.via,
        {held.job.job_id: per_node(held.job) for held in job.held},
    )


def room(snapshot: Snapshot, **more: object) -> Room:
    roster = sort_jobs(snapshot)
    givers = [giver(roster, job_id) for job_id, job in roster.elastic.items() if job.running]
    return make_room(snapshot, Ledger.of(snapshot), givers, needs(snapshot, roster))


# --- which jobs are elastic ---------------------------------------------------------------------------------------


def test_elastic_job_has_its_pieces_in_order() -> None:
    """Base, components by offset, companions by job id: what everything else builds on."""
    cluster = Cluster(6)
    cluster.run(10, "n1", comment=REQUEST)
    cluster.companion(15, 10, "n4", directive=3)
    cluster.companion(12, 10, "n3", directive=2)
    cluster.run(11, "n2", het_job_id=10, het_offset=1)
    cluster.change(10, het_job_id=10)
    job = sort_jobs(cluster.snapshot()).elastic[10]
    assert [(p.slurm_job_id, p.kind) for p in job.pieces] == [
        (10, "base"),
        (11, "component"),
        (12, "companion"),
        (15, "companion"),
    ]
    assert [held.directive for held in job.held] == [0, 0, 2, 3]
    assert job.gpus == 16


def test_ordinary_jobs_are_in_no_roster() -> None:
    """A job that did not ask is never touched, whatever else its comment says."""
    cluster = Cluster()
    cluster.run(1, "n1", comment="inelastic:gpus=1-4,batch=16")
    cluster.run(2, "n2")
    roster = sort_jobs(cluster.snapshot())
    assert (roster.elastic, roster.unmanaged, roster.orphans) == ({}, {}, ())


def test_malformed_request_is_left_alone_with_its_sentence() -> None:
    """A request that cannot be read makes an ordinary job, and the sentence names the key."""
    cluster = Cluster()
    cluster.run(1, "n1", comment="elastic:gpu=1-4,batch=16-64")
    verdict = sort_jobs(cluster.snapshot()).unmanaged[1]
    assert verdict.reason is Reason.MALFORMED
    assert "unknown key 'gpu'" in verdict.detail and "gpus" in verdict.detail


def test_starting_size_outside_the_range_is_refused_once_only() -> None:
    """A start the range excludes is malformed; a job that was managed before may hold such a size by our doing."""
    cluster = Cluster()
    cluster.run(1, "n1", comment="elastic:gpus=8-16,batch=16-64")
    snapshot = cluster.snapshot()
    assert "starts with 4 GPUs" in sort_jobs(snapshot).unmanaged[1].detail
    assert 1 in sort_jobs(snapshot, accepted={1}).elastic


def test_minimum_above_the_partition_is_impossible() -> None:
    """A request this cluster can never meet is told with the number that it has."""
    cluster = Cluster(2)
    cluster.wait(1, 3, comment="elastic:gpus=12-16,batch=16-64")
    verdict = sort_jobs(cluster.snapshot()).unmanaged[1]
    assert verdict.reason is Reason.IMPOSSIBLE and "has 8 GPUs" in verdict.detail


def test_unknown_gpu_type_is_impossible() -> None:
    """So is a GPU type the partition does not have."""
    cluster = Cluster(2)
    cluster.wait(1, 1, comment=REQUEST, gpu_type="h100")
    assert "h100" in sort_jobs(cluster.snapshot()).unmanaged[1].detail


def test_gpus_spread_unevenly_over_nodes_are_left_alone() -> None:
    """A GPU is given up with its node's share; where shares differ and are not known, nothing is."""
    cluster = Cluster()
    cluster.run(1, "n1 n2", 4, comment=REQUEST, gpus=6)
    assert "not known to be as many on each" in sort_jobs(cluster.snapshot()).unmanaged[1].detail


def test_scope_limits_partitions_and_users() -> None:
    """A partition that is not open says so; in user mode another user's job is an ordinary one."""
    cluster = Cluster()
    cluster.run(1, "n1", comment=REQUEST)
    cluster.run(2, "n2", comment=REQUEST, uid=1002)
    snapshot = cluster.snapshot()
    assert sort_jobs(snapshot, Scope(partitions=("long",))).unmanaged[1].reason is Reason.NOT_ALLOWED
    assert sort_jobs(snapshot, Scope(accounts=("physics",))).unmanaged[1].reason is Reason.NOT_ALLOWED
    assert set(sort_jobs(snapshot, Scope(uid=1001)).elastic) == {1}


def test_request_of_the_supervisor_overrides_the_comment() -> None:
    """`selastic run --elastic=...` speaks for a job whose comment says nothing."""
    cluster = Cluster()
    cluster.run(1, "n1")
    assert sort_jobs(cluster.snapshot(), asked={1: "gpus=2-8,batch=16-64"}).elastic[1].request.max_gpus == 8


def test_companion_of_an_ended_base_is_an_orphan() -> None:
    """Nothing in Slurm ends a companion with its base, so the roster names it."""
    cluster = Cluster()
    cluster.companion(5, 4, "n2")
    assert [job.job_id for job in sort_jobs(cluster.snapshot()).orphans] == [5]


def test_companion_of_a_requeued_base_is_an_orphan_and_of_a_suspended_one_is_not() -> None:
    """A base back in the queue starts again at its own size; a suspended one will go on where it was."""
    cluster = Cluster()
    cluster.run(4, "n1", comment=REQUEST)
    cluster.companion(5, 4, "n2")
    cluster.change(4, state="PENDING", nodes=())
    assert [job.job_id for job in sort_jobs(cluster.snapshot()).orphans] == [5]
    cluster.change(4, state="SUSPENDED", nodes=("n1",))
    assert sort_jobs(cluster.snapshot()).orphans == ()


def test_another_users_tag_gains_nothing() -> None:
    """Tagging one's own job for another's base neither joins it nor has it cancelled."""
    cluster = Cluster()
    cluster.run(4, "n1", comment=REQUEST)
    cluster.companion(5, 4, "n2")
    cluster.change(5, uid=1002)
    roster = sort_jobs(cluster.snapshot())
    assert roster.orphans == () and len(roster.elastic[4].held) == 1


def test_a_comment_alone_is_no_companion() -> None:
    """Comment and name must both say it: a user's own job with a copied comment is not cancelled."""
    cluster = Cluster()
    job = cluster.run(5, "n2", comment="selastic:companion-of=4;directive=1", name="mine")
    assert companion_tag(job) is None
    assert sort_jobs(cluster.snapshot()).orphans == ()


# --- what can be given up -----------------------------------------------------------------------------------------


def held(
    *pieces: Piece, sizes: range = range(1, 100), via: tuple[str, ...] = ("shrink", "companion", "component")
) -> Giver:
    share = {piece.slurm_job_id: Amount(piece.gpus_per_node, 2, 100) for piece in pieces}
    return Giver(1, pieces, "n1", frozenset(sizes), via, share)


BASE = Piece(1, "base", ("n1", "n2"), 4, TYPE)


def test_batch_host_is_never_droppable() -> None:
    """Slurm refuses to take the batch host from a job."""
    assert set(droppable(held(BASE))) == {(1, "n2")}
    assert set(shrinks(held(BASE))) == {4, 8}


def test_component_goes_whole_or_keeps_its_first_node() -> None:
    """The first node of a component goes only with all its others."""
    component = Piece(2, "component", ("n3", "n4"), 2, TYPE)
    units = droppable(held(BASE, component))
    assert set(units[(2, "n3")]) == {(2, "n3"), (2, "n4")}
    assert units[(2, "n4")] == ((2, "n4"),)
    assert set(shrinks(held(BASE, component))) == {4, 6, 8, 10, 12}


def test_newest_companion_goes_first_and_base_nodes_last() -> None:
    """Of several ways to one size the gentlest is taken."""
    old, new = Piece(5, "companion", ("n3",), 4, TYPE), Piece(6, "companion", ("n4",), 4, TYPE)
    kept = shrinks(held(BASE, old, new))
    assert kept[12] == (BASE, old)
    assert kept[8] == (BASE,)


def test_small_companions_make_small_steps_possible() -> None:
    """Sizes are subset sums: a 1-GPU companion lets a job give one GPU."""
    small = Piece(5, "companion", ("n3",), 1, TYPE)
    assert set(shrinks(held(BASE, small))) == {4, 5, 8, 9}


def test_what_lies_furthest_or_is_asked_for_goes_first() -> None:
    """Without a network the last node; with one that under the lonely switch; before both one that is asked for."""
    piece = Piece(1, "base", ("n1", "n2", "n3", "n4"), 4, TYPE)
    plain = Giver(1, (piece,), "n1", frozenset({4, 8, 12, 16}), ("shrink",), {1: Amount(4)})
    assert shrinks(plain)[12][0].nodes == ("n1", "n2", "n3")
    switched = replace(plain, switches={"n1": "s1", "n2": "s2", "n3": "s1", "n4": "s1"})
    assert shrinks(switched)[12][0].nodes == ("n1", "n3", "n4")
    assert shrinks(switched)[8][0].nodes == ("n1", "n3")
    asked = replace(switched, wanted=frozenset({"n3", "n1"}))
    assert shrinks(asked)[12][0].nodes == ("n1", "n2", "n4")  # the batch host never goes


def test_the_slowest_node_goes_first() -> None:
    """What holds the others back goes before what lies far off, and after what a waiting job asks for by name."""
    piece = Piece(1, "base", ("n1", "n2", "n3", "n4"), 4, TYPE)
    plain = Giver(1, (piece,), "n1", frozenset({4, 8, 12, 16}), ("shrink",), {1: Amount(4)})
    slow = replace(plain, slow={"n3": 0.15, "n2": 0.4, "n1": 0.5})
    assert shrinks(slow)[12][0].nodes == ("n1", "n3", "n4")  # the batch host never goes
    assert shrinks(slow)[8][0].nodes == ("n1", "n4")
    switched = replace(slow, switches={"n1": "s1", "n2": "s1", "n3": "s1", "n4": "s2"})
    assert shrinks(switched)[12][0].nodes == ("n1", "n3", "n4")
    assert shrinks(replace(switched, wanted=frozenset({"n4"})))[12][0].nodes == ("n1", "n2", "n3")


def test_a_companion_on_a_slow_node_goes_before_newer_ones() -> None:
    """Among companions the slow one goes, however long it has been held; the base's own nodes still stay."""
    old, new = Piece(5, "companion", ("n3",), 4, TYPE), Piece(6, "companion", ("n4",), 4, TYPE)
    assert shrinks(replace(held(BASE, old, new), slow={"n3": 0.3}))[12] == (BASE, new)
    assert shrinks(replace(held(BASE, old, new), slow={"n2": 0.3}))[12] == (BASE, old)


def test_room_is_made_on_the_slowest_node_that_would_do() -> None:
    """Of nodes that cost their job as many GPUs, a waiting job is given the one that holds it back."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2 n3 n4", comment=REQUEST)
    cluster.wait(2)
    snapshot = cluster.snapshot()
    roster = sort_jobs(snapshot)
    slow = replace(giver(roster, 1), slow={"n3": 0.2})
    made = make_room(snapshot, Ledger.of(snapshot), [slow], needs(snapshot, roster))
    assert made.forced == {1: frozenset({(1, "n3")})}
    assert room(snapshot).forced != made.forced


def test_growth_prefers_nodes_next_to_the_jobs_own() -> None:
    """Of nodes with as many free GPUs those under the same switch are taken."""
    cluster = Cluster(4)
    like = Like.base(cluster.run(1, "n1"))
    ledger = Ledger.of(cluster.snapshot())
    shapes = place(ledger, 4, like, ["n2", "n3", "n4"], near={"n4"})
    assert shapes is not None and shapes[0].node_list == ("n4",)


def test_forced_units_are_gone_from_every_size() -> None:
    """What a waiting job needs goes, even where something gentler would reach the same size."""
    old, new = Piece(5, "companion", ("n3",), 4, TYPE), Piece(6, "companion", ("n4",), 4, TYPE)
    kept = shrinks(held(BASE, old, new), {(5, "n3")})
    assert kept[12] == (BASE, new)
    assert max(kept) == 12


def test_via_forbids_what_it_does_not_name() -> None:
    """A job with via=companion never loses base nodes."""
    companion = Piece(5, "companion", ("n3",), 4, TYPE)
    assert set(shrinks(held(BASE, companion, via=("companion",)))) == {8, 12}
    assert set(droppable(held(BASE, companion, via=("companion",)))) == {(5, "n3")}


def test_without_drops_pieces_that_lose_every_node() -> None:
    """A companion whose nodes all go is gone."""
    companion = Piece(5, "companion", ("n3",), 4, TYPE)
    assert without((BASE, companion), {(5, "n3"), (1, "n2")}) == (Piece(1, "base", ("n1",), 4, TYPE),)
    assert units_of((companion,)) == {(5, "n3")}


# --- what waiting jobs need ---------------------------------------------------------------------------------------


def test_only_jobs_that_wait_for_resources_count() -> None:
    """Held, dependent, begin-time and limited jobs could not use what elastic jobs give."""
    cluster = Cluster()
    for number, reason in enumerate(("Dependency", "JobHeldUser", "BeginTime", "QOSMaxGRESPerUser", "Priority"), 1):
        cluster.wait(number, reason=reason, eligible_time=cluster.at + (600 if reason == "BeginTime" else 0))
    snapshot = cluster.snapshot()
    assert [need.job_id for need in needs(snapshot, sort_jobs(snapshot))] == [5]


def test_room_is_made_shortly_before_a_begin_time() -> None:
    """A job that may start in less than a minute is made room for now: at its time Slurm would preempt what is in its
    way. Not one that was put back, whose
    begin time is Slurm's own, nor one that may start later, or in a reservation of its own."""
    cluster = Cluster()
    cluster.wait(1, reason="BeginTime", eligible_time=cluster.at + 50)
    cluster.wait(2, reason="BeginTime", eligible_time=cluster.at + 70)
    cluster.wait(3, reason="BeginTime", eligible_time=cluster.at + 50, restarts=1)
    cluster.wait(4, reason="BeginTime", eligible_time=cluster.at + 50, reservation="course")
    snapshot = cluster.snapshot()
    assert [need.job_id for need in needs(snapshot, sort_jobs(snapshot))] == [1]


def test_needs_come_in_slurms_order() -> None:
    """Priority first, then the time of submission."""
    cluster = Cluster()
    cluster.wait(1, priority=5)
    cluster.wait(2, priority=9)
    cluster.wait(3, priority=9, submit_time=1.0)
    snapshot = cluster.snapshot()
    assert [need.job_id for need in needs(snapshot, sort_jobs(snapshot))] == [3, 2, 1]


def test_a_higher_tier_comes_first_and_a_begin_time_to_come_does_not_count() -> None:
    """PriorityTier beats priority, as in Slurm; a job just put back has no reason yet, and cannot start for minutes."""
    cluster = Cluster()
    cluster.wait(1, priority=9)
    cluster.wait(2, priority=1, partition="urgent")
    cluster.wait(3, priority=99, reason="", eligible_time=cluster.at + 121)
    snapshot = replace(cluster.snapshot(), partitions={"urgent": Partition("urgent", 20), "main": Partition("main")})
    assert [need.job_id for need in needs(snapshot, Roster())] == [2, 1]


@pytest.mark.parametrize(
    ("constraint", "met"),
    [("", True), ("ib", True), ("hdr", False), ("ib&nvlink", True), ("ib&hdr", False), ("hdr|ib&nvlink", True),
     ("hdr,nvlink", True), ("[hdr*2&ib*1]", True), ("!ib", True)],
)  # fmt: skip
def test_which_nodes_meet_a_constraint(constraint: str, met: bool) -> None:
    """Names with & and | are judged; of forms not known here Slurm is left to say."""
    assert meets(constraint, {"ib", "nvlink"}) is met


def test_no_room_is_made_on_nodes_without_the_feature() -> None:
    """A job that wants a feature gains nothing from nodes that lack it."""
    cluster = Cluster(2)
    cluster.run(1, "n1 n2", comment=REQUEST)
    cluster.wait(2, features="nvlink")
    assert not room(cluster.snapshot()).forced
    cluster.nodes["n2"] = replace(cluster.nodes["n2"], features=frozenset({"nvlink"}))
    assert room(cluster.snapshot()).forced == {1: frozenset({(1, "n2")})}


def test_a_heterogeneous_job_needs_all_its_components_at_once() -> None:
    """Components are one need of several parts."""
    cluster = Cluster()
    cluster.wait(1, 2, 4, het_job_id=1)
    cluster.wait(2, 1, 1, het_job_id=1, het_offset=1)
    snapshot = cluster.snapshot()
    (need,) = needs(snapshot, sort_jobs(snapshot))
    assert [(part.nodes, part.amount.gpus) for part in need.parts] == [(2, 4), (1, 1)]


def test_gpus_without_a_node_count_are_spread_over_nodes() -> None:
    """--gpus=8 on nodes of 4 needs two nodes."""
    cluster = Cluster()
    cluster.wait(1, 1, 0, gpus=8, gpu_type=TYPE)
    snapshot = cluster.snapshot()
    (need,) = needs(snapshot, sort_jobs(snapshot))
    assert [(part.nodes, part.amount.gpus) for part in need.parts] == [(2, 4)]


# --- making room --------------------------------------------------------------------------------------------------


def test_idle_gpus_are_kept_for_a_job_that_fits_on_them() -> None:
    """A job that could start without anyone giving takes nothing from anyone, and its room is not grown into."""
    cluster = Cluster(3)
    cluster.run(1, "n1 n2", comment=REQUEST)
    cluster.wait(2)
    made = room(cluster.snapshot())
    assert made.forced == {}
    assert made.met[0].nodes == ("n3",) and not made.met[0].waits
    assert made.ledger.gpus(cluster.nodes) == 0


def test_room_is_exactly_what_the_waiting_job_needs() -> None:
    """Two nodes are needed, one is idle: one node is given up, not two."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2 n3", comment=REQUEST)
    cluster.wait(2, 2)
    made = room(cluster.snapshot())
    assert made.met[0].givers == {1: 4} and made.met[0].waits
    assert sum(len(units) for units in made.forced.values()) == 1
    assert made.ledger.gpus(cluster.nodes) == 0


def test_companions_on_a_half_used_node_complete_it() -> None:
    """The node that needs least to become free is the one that is freed."""
    cluster = Cluster(3)
    cluster.run(1, "n1", comment=REQUEST)
    cluster.companion(2, 1, "n2", 4)
    cluster.companion(3, 1, "n3", 1)
    cluster.wait(9, 1, 4)
    made = room(cluster.snapshot())
    assert made.forced == {1: frozenset({(3, "n3")})}


def test_no_elastic_job_goes_below_its_minimum() -> None:
    """A waiting job for which someone would have to go below its minimum is not met, and takes nothing."""
    cluster = Cluster(2)
    cluster.run(1, "n1 n2", comment="elastic:gpus=8-16,batch=16-4096")
    cluster.wait(2)
    made = room(cluster.snapshot())
    assert made.forced == {} and [need.job_id for need in made.unmet] == [2]


def test_nothing_moves_when_the_queue_could_not_use_it() -> None:
    """Three nodes are needed and only two can ever be freed: nothing is reserved and nothing given."""
    cluster = Cluster(3)
    cluster.run(1, "n1 n2 n3", comment=REQUEST)
    cluster.wait(2, 3)
    made = room(cluster.snapshot())
    assert made.forced == {} and made.met == ()


def test_size_rules_are_kept_while_giving() -> None:
    """With step=8 a job gives 8 or nothing."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2 n3 n4", comment="elastic:gpus=8-16,step=8,batch=16-4096")
    cluster.wait(2, 1)
    made = room(cluster.snapshot())
    assert made.met[0].need.job_id == 2
    assert set(shrinks(giver(sort_jobs(cluster.snapshot()), 1), made.forced[1])) & {8, 16} == {8}


def test_the_one_that_holds_most_gives_first() -> None:
    """Between equal costs, the job with most GPUs per weight gives."""
    cluster = Cluster(6)
    cluster.run(1, "n1 n2", comment=REQUEST)
    cluster.run(2, "n3 n4 n5 n6", comment=REQUEST)
    cluster.wait(3, 1)
    assert set(room(cluster.snapshot()).forced) == {2}


def test_two_waiting_jobs_get_different_nodes() -> None:
    """What was reserved for the first is not promised to the second."""
    cluster = Cluster(4)
    cluster.run(1, "n1 n2 n3 n4", comment=REQUEST)
    cluster.wait(2, 1)
    cluster.wait(3, 2)
    made = room(cluster.snapshot())
    assert len(set(made.met[0].nodes) | set(made.met[1].nodes)) == 3
    assert len(made.forced[1]) == 3


def test_a_later_job_does_not_overtake_one_that_slurm_holds_nodes_for() -> None:
    """Behind a job that cannot be met, only a job that ends before that one could start is given room."""
    cluster = Cluster(3)
    cluster.run(1, "n1 n2", comment=REQUEST)
    cluster.run(8, "n3", time_left_s=1800.0)
    cluster.run(9, "n3", 0, time_left_s=600.0)
    cluster.change(1, time_left_s=7200.0)
    cluster.wait(2, 2, priority=900)
    cluster.wait(3, 1, priority=1, time_limit_s=3600.0)
    cluster.wait(4, 1, priority=1, time_limit_s=1200.0)
    made = room(cluster.snapshot())
    assert [need.job_id for need in made.unmet] == [2, 3]
    assert [met.need.job_id for met in made.met] == [4]


def test_memory_and_cores_are_limits_too() -> None:
    """A node whose GPUs are idle but whose cores are taken holds no waiting job."""
    cluster = Cluster(2)
    cluster.run(1, "n1", comment=REQUEST)
    cluster.run(2, "n2", 0, cpus=16)
    cluster.wait(3, 1, 1)
    made = room(cluster.snapshot())
    assert made.met == () and made.forced == {}


def test_a_cpu_job_gets_the_cores_that_companions_sit_on() -> None:
    """Rigid jobs without GPUs come first as well."""
    cluster = Cluster(2)
    cluster.run(1, "n1", comment=REQUEST)
    cluster.companion(5, 1, "n2", 4)
    cluster.wait(3, 1, 0, cpus=16)
    assert room(cluster.snapshot()).forced == {1: frozenset({(5, "n2")})}


def test_drained_nodes_are_no_room() -> None:
    """A drained node is neither kept for a waiting job nor freed for it."""
    cluster = Cluster(3)
    cluster.run(1, "n1 n2", comment=REQUEST)
    cluster.drain("n2")
    cluster.drain("n3")
    cluster.wait(2)
    made = room(cluster.snapshot())
    assert made.met == () and made.forced == {}


def test_what_is_being_released_counts_and_is_marked_as_waiting() -> None:
    """Room that is on its way is not made a second time."""
    cluster = Cluster(3)
    cluster.run(1, "n1 n2 n3", comment=REQUEST)
    cluster.wait(2)
    snapshot = cluster.snapshot()
    ledger = Ledger.of(snapshot)
    ledger.release("n3", Amount(4, 8, 4000))
    made = make_room(snapshot, ledger, [giver(sort_jobs(snapshot), 1)], needs(snapshot, sort_jobs(snapshot)))
    assert made.forced == {} and made.met[0].waits and made.met[0].nodes == ("n3",)


# --- where growth fits --------------------------------------------------------------------------------------------


def like(cluster: Cluster) -> Like:
    return Like.base(cluster.run(99, "n1", 4))


def test_whole_nodes_first_then_one_remainder() -> None:
    """Six GPUs on idle nodes of four: one whole node, and two on another."""
    cluster = Cluster(4)
    shape = like(cluster)
    shapes = place(Ledger.of(cluster.snapshot()), 6, shape, cluster.nodes)
    assert shapes is not None
    assert [(s.nodes, s.gpus_per_node, s.cpus_per_node, s.node_list) for s in shapes] == [
        (1, 4, 8, ("n2",)),
        (1, 2, 4, ("n3",)),
    ]


def test_remainder_goes_where_it_leaves_least_over() -> None:
    """A half-used node is filled before a whole one is broken."""
    cluster = Cluster(4)
    shape = like(cluster)
    cluster.run(5, "n3", 2)
    shapes = place(Ledger.of(cluster.snapshot()), 2, shape, cluster.nodes)
    assert shapes is not None and [s.node_list for s in shapes] == [("n3",)]


def test_growth_respects_cores() -> None:
    """GPUs without the cores that the base has per GPU are not used."""
    cluster = Cluster(2)
    shape = like(cluster)
    cluster.run(5, "n2", 0, cpus=14)
    assert place(Ledger.of(cluster.snapshot()), 2, shape, cluster.nodes) is None
    assert place(Ledger.of(cluster.snapshot()), 1, shape, cluster.nodes) is not None


def test_growth_never_counts_what_is_not_free_yet() -> None:
    """A companion on GPUs still held would only wait; such growth is known to be possible later."""
    cluster = Cluster(2)
    shape = like(cluster)
    cluster.run(5, "n2", 4)
    ledger = Ledger.of(cluster.snapshot())
    ledger.release("n2", Amount(4, 8, 4000))
    assert place(ledger, 4, shape, cluster.nodes) is None
    assert place(ledger, 4, shape, cluster.nodes, soon=True) is not None


def test_two_growths_take_different_nodes() -> None:
    """What one plan takes is used up for the next."""
    cluster = Cluster(3)
    shape = like(cluster)
    ledger = Ledger.of(cluster.snapshot())
    first = place(ledger, 4, shape, cluster.nodes)
    assert first is not None
    take(ledger, first)
    second = place(ledger, 4, shape, cluster.nodes)
    assert second is not None and second[0].node_list != first[0].node_list
    take(ledger, second)
    assert place(ledger, 1, shape, cluster.nodes) is None


def test_pools_join_partitions_that_share_nodes() -> None:
    """Jobs of two partitions over the same nodes compete for the same GPUs; another type is another pool."""
    cluster = Cluster(3)
    from dataclasses import replace

    cluster.nodes["n1"] = replace(cluster.nodes["n1"], partitions=("main", "short"))
    cluster.nodes["n3"] = replace(cluster.nodes["n3"], gpu_type="v100")
    found = pools(cluster.snapshot())
    assert [(pool.gpu_type, sorted(pool.nodes)) for pool in found] == [("a100", ["n1", "n2"]), ("v100", ["n3"])]
    job = cluster.run(7, "n3", gpu_type="v100")
    mine = pool_of(found, job)
    assert mine is not None and mine.gpu_type == "v100"
