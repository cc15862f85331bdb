"""Who is left alone by a plan, or is not the optimizer's to choose a size for, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

from plan_cases import NOW, SETTINGS, World, closed, order, row, seen
from store_records import resize_row

from slurm_elastic.daemon.planner.running.eligibility import weight_of
from slurm_elastic.db.rows import InUse
from slurm_elastic.protocol.codes import Reason
from slurm_elastic.protocol.messages import Piece, Resize
from slurm_elastic.protocol.request import parse


def test_a_weight_counts_as_far_as_the_site_allows() -> None:
    """Whoever asks for more weight than `max_weight` gets no more for it, and is told."""
    request = parse("gpus=4-16,batch=256-4096,weight=5")
    assert (weight_of(request, SETTINGS), weight_of(request, replace(SETTINGS, max_weight=3.0))) == (1.0, 3.0)
    assert weight_of(parse("gpus=4-16,batch=256-4096,weight=0.5"), SETTINGS) == 0.5
    world = World(4)
    world.job(1, "n1 n2", "elastic:gpus=4-16,batch=256-4096,weight=5")
    evidence = row(world.plan(), 1).evidence
    assert (evidence["weight_asked"], evidence["weight_counts"]) == (5.0, 1.0)


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


def stalled(world: World, job_id: int, nodes: str) -> None:
    pieces = (Piece(job_id, "base", tuple(nodes.split()), 4, "a100"),)
    world.state(job_id, in_use=InUse(job_id, 0, pieces, 256, 0.0, 0.0, stalled_since=NOW - 400))


def test_a_job_that_is_about_to_end_is_given_nothing_and_gives_as_ever() -> None:
    """No GPU, pinned or not, and no other batch."""
    world = World(4)
    world.job(1, "n1")
    world.state(1, ending=True)
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_ENDING.value
    world.state(1, pinned=8)
    assert world.plan().resizes == ()
    other = World(1)
    other.job(1, "n1", "elastic:gpus=2-4,batch=64-4096")
    other.state(1, observations=(seen(4, 1.0, 256), seen(4, 1.5, 512)))
    assert order(other.plan(), 1).batch != 256
    other.state(1, ending=True)
    assert other.plan().resizes == ()
    crowded = World(2)
    crowded.job(1, "n1 n2")
    crowded.state(1, ending=True)
    crowded.cluster.wait(9)
    assert order(crowded.plan(), 1).gpus == 4


def test_a_job_that_does_no_step_is_never_grown_and_gives_first() -> None:
    """Nor where its owner has pinned it to more; and before one that holds as much, and is the younger."""
    world = World(4)
    world.job(1, "n1")
    stalled(world, 1, "n1")
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_STALLED.value
    world.state(1, pinned=8)
    plan = world.plan()
    assert plan.resizes == () and row(plan, 1).reason == Reason.KEEP_STALLED.value
    for which, nodes in ((1, "n1 n2"), (2, "n3 n4")):
        world = World(4)
        world.job(1, "n1 n2")
        world.job(2, "n3 n4")
        stalled(world, which, nodes)
        world.cluster.wait(9)
        assert [(resize.job_id, resize.gpus) for resize in world.plan().resizes] == [(which, 4)]


def test_one_resize_at_a_time() -> None:
    """A job whose resize is under way gets no second one."""
    world = World(4)
    world.job(1, "n1")
    resize = resize_row(Resize(5, 1, (), (), 8, 256, "grow_idle", 60.0), "granted", NOW, NOW)
    world.state(1, resize=resize)
    assert world.plan().resizes == ()


def test_what_slurm_holds_beyond_the_training_counts_as_coming_free() -> None:
    """A leaked companion is about to be released, so a waiting job takes nothing from anyone for it."""
    world = World(2)
    world.job(1, "n1")
    world.cluster.companion(101, 1, "n2")
    base = Piece(1, "base", ("n1",), 4, "a100")
    world.state(1, in_use=InUse(1, 0, (base,), 256, 0.0, 0.0))
    world.cluster.wait(9)
    plan = world.plan()
    assert plan.resizes == () and plan.served[0].nodes == ("n2",)


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
