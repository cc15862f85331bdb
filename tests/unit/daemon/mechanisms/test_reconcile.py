"""What is released, cancelled and closed, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from cluster_snapshots import TYPE, Cluster
from store_records import resize_row

from slurm_elastic.daemon.actions.action import Action, Advance, Cancel, Close, Shrink
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.mechanisms.reconcile import next_actions, unused
from slurm_elastic.daemon.mechanisms.settings import Bounds
from slurm_elastic.db.rows import InUse, ResizeRow
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.messages import Piece, Resize, Shape

REQUEST = "elastic:gpus=1-32,batch=16-4096"
BOUNDS = Bounds()
NOW = 1000.0
BASE = Piece(1, "base", ("n1", "n2"), 4, TYPE)
COMPANION = Piece(5, "companion", ("n3", "n4"), 4, TYPE)


def cluster() -> Cluster:
    """Job 1 on n1 n2 with a companion on n3 n4."""
    world = Cluster(6)
    world.run(1, "n1 n2", comment=REQUEST)
    world.companion(5, 1, "n3 n4", resize=7)
    return world


def use(*pieces: Piece) -> dict[int, InUse]:
    return {1: InUse(1, 1, pieces, 256, 0.0, 0.0)}


def resize(state: str, keep: tuple[Piece, ...] = (BASE,), add: tuple[Shape, ...] = (), age: float = 0.0) -> ResizeRow:
    return resize_row(Resize(7, 1, keep, add, 8, 256, "r", 60.0), state, NOW - age, NOW - age)


def act(
    world: Cluster, in_use: dict[int, InUse], resizes: Sequence[ResizeRow] = (), idle_for: float = 1000.0
) -> list[Action]:
    """The next actions, when whatever is unused has been so for `idle_for` seconds."""
    roster = sort_jobs(world.snapshot(), accepted={1})
    since = dict.fromkeys(unused(roster, in_use, resizes, {}, NOW), NOW - idle_for)
    return next_actions(roster, in_use, resizes, since, NOW, BOUNDS)


# --- releases -----------------------------------------------------------------------------------------------------


def test_what_trains_is_left_alone() -> None:
    """Nothing to do when Slurm and the supervisor agree."""
    assert act(cluster(), use(BASE, COMPANION)) == []


def test_an_unused_companion_is_cancelled() -> None:
    """Held, not trained on, no resize behind it: a leak."""
    assert act(cluster(), use(BASE)) == [Cancel(1, 5, "held, but not trained on")]


def test_nothing_is_released_on_the_word_of_a_supervisor_that_is_not_understood() -> None:
    """It may train on the companion by now: the phase that said so was refused."""
    refused = {1: replace(use(BASE)[1], refusal="Phase.pieces: 'x' is not a list")}
    assert act(cluster(), use(BASE)) != [] and act(cluster(), refused) == []


def test_an_unused_companion_has_a_moment_of_grace() -> None:
    """A supervisor that restarts its workers may be about to use it again."""
    assert act(cluster(), use(BASE), idle_for=BOUNDS.leak_s - 1) == []


@pytest.mark.parametrize("state", [state for state in ResizeState if not state.closed])
@pytest.mark.parametrize("keep", [(BASE,), ()], ids=["resize", "requeue"])
def test_every_state_that_a_supervisor_can_claim_comes_to_an_end(state: str, keep: tuple[Piece, ...]) -> None:
    """Also one that its kind of resize does not have: one supervisor's word must not end the round of all jobs."""
    claimed = resize(state, keep=keep, add=(Shape(1, 4, node_list=("n5",)),), age=1e4)
    assert any(isinstance(action, Close | Advance) for action in act(cluster(), use(BASE, COMPANION), [claimed]))


def test_what_a_finished_switch_gave_up_is_released_at_once() -> None:
    """After `running` nobody needs it, and a waiting job does."""
    switched = resize("running", keep=(BASE,))
    assert act(cluster(), use(BASE), [switched], idle_for=0) == [Cancel(1, 5, "given up by resize 7")]


def test_a_companion_is_shrunk_to_the_nodes_in_use() -> None:
    """Part of a companion goes, and the rest stays."""
    part = replace(COMPANION, nodes=("n4",))
    assert act(cluster(), use(BASE, part)) == [Shrink(1, 5, ("n4",), "held, but not trained on")]


def test_the_base_is_shrunk_and_keeps_its_batch_host() -> None:
    """The batch host stays although nothing trains there: Slurm refuses to take it."""
    world = cluster()
    world.change(1, nodes=("n1", "n2", "n6"), num_nodes=3, gpus=12)
    only_n2 = replace(BASE, nodes=("n2",))
    actions = act(world, use(only_n2, COMPANION))
    assert actions == [Shrink(1, 1, ("n1", "n2"), "held, but not trained on")]


def test_a_base_on_its_batch_host_alone_is_never_shrunk() -> None:
    """There is nothing left that Slurm would take."""
    world = Cluster(2)
    world.run(1, "n1", comment=REQUEST)
    world.companion(5, 1, "n2", resize=7)
    assert act(world, use(Piece(1, "base", ("n1",), 4, TYPE), Piece(5, "companion", ("n2",), 4, TYPE))) == []


def test_a_component_is_cancelled_whole_or_keeps_its_first_node() -> None:
    """Slurm refuses to take a component's first node."""
    world = Cluster(4)
    world.run(1, "n1", comment=REQUEST, het_job_id=1)
    world.run(2, "n2 n3", 4, het_job_id=1, het_offset=1)
    base = Piece(1, "base", ("n1",), 4, TYPE)
    assert act(world, use(base)) == [Cancel(1, 2, "held, but not trained on")]
    assert act(world, use(base, Piece(2, "component", ("n2",), 4, TYPE))) == [
        Shrink(1, 2, ("n2",), "held, but not trained on")
    ]
    assert act(world, use(base, Piece(2, "component", ("n3",), 4, TYPE))) == []


def test_nothing_is_released_before_a_supervisor_has_spoken() -> None:
    """What an elastic job trains on is its supervisor's to say."""
    assert act(cluster(), {}) == []


def test_a_word_that_does_not_name_the_base_releases_nothing() -> None:
    """It is about some other allocation, for example from before a requeue."""
    assert act(cluster(), use(Piece(1, "base", ("n9",), 4, TYPE))) == []


def test_a_resize_under_way_protects_what_it_keeps_and_adds() -> None:
    """A companion that was granted is not in use until the switch."""
    growing = resize("granted", keep=(BASE,), add=(Shape(2, 4, node_list=("n3", "n4")),))
    assert act(cluster(), use(BASE), [growing]) == []


def test_a_resize_under_way_does_not_protect_an_older_companion() -> None:
    """Only what carries its own number is part of it."""
    world = cluster()
    world.companion(6, 1, "n5", resize=3)
    growing = resize("granted", keep=(BASE,), add=(Shape(2, 4, node_list=("n3", "n4")),))
    assert act(world, use(BASE), [growing]) == [Cancel(1, 6, "held, but not trained on")]


def test_a_queued_companion_of_a_resize_that_is_over_is_cancelled() -> None:
    """It would start one day, and hold GPUs for nobody."""
    world = Cluster(2)
    world.run(1, "n1", comment=REQUEST)
    world.wait(5, 1, 4, "selastic:companion-of=1;resize=7", name="selastic-1")
    base = Piece(1, "base", ("n1",), 4, TYPE)
    assert act(world, use(base)) == [Cancel(1, 5, "waits for a resize that is over")]
    assert act(world, use(base), [resize("submitted", keep=(base,), add=(Shape(1, 4),))]) == []


def test_orphans_are_cancelled_at_once() -> None:
    """A companion whose base is gone serves nobody."""
    world = Cluster(2)
    world.companion(5, 1, "n2")
    assert act(world, {}) == [Cancel(1, 5, "the job that this companion belongs to does not run")]


# --- resizes that end ---------------------------------------------------------------------------------------------


def test_a_resize_is_done_when_everything_given_up_is_free() -> None:
    """Done is what Slurm shows, not what was asked of it."""
    world = cluster()
    switched = resize("running", keep=(BASE,))
    assert not any(isinstance(action, Close) for action in act(world, use(BASE), [switched]))
    del world.jobs[5]
    assert act(world, use(BASE), [switched]) == [Close(1, 7, "done", "")]


def test_a_resize_of_a_job_that_ended_is_withdrawn() -> None:
    """Nobody is left to carry it out."""
    closed = act(Cluster(2), {}, [resize("granted")])
    assert closed == [Close(1, 7, "withdrawn", "the job does not run any more")]


def test_every_state_has_its_bound() -> None:
    """A silent supervisor never keeps a job frozen for ever."""
    add = (Shape(2, 4, node_list=("n3", "n4")),)
    limits = {"issued": 60, "accepted": 90, "submitted": 90, "granted": 300, "ready": 300}
    for state, limit in limits.items():
        assert act(cluster(), use(BASE), [resize(state, (BASE,), add, age=limit - 1)]) == []
        (close,) = act(cluster(), use(BASE), [resize(state, (BASE,), add, age=limit)])
        assert isinstance(close, Close) and close.state == "withdrawn" and state in close.detail


def test_a_release_that_slurm_does_not_grant_ends_the_resize_all_the_same() -> None:
    """The job trains at its new size; what could not be released is released later, as a leak."""
    (close,) = act(cluster(), use(BASE), [resize("running", (BASE,), age=BOUNDS.release_s)])
    assert isinstance(close, Close) and close.state == "done" and "not everything" in close.detail


def test_unused_time_is_counted_from_when_it_was_first_seen() -> None:
    """And forgotten as soon as the unit is in use again."""
    roster = sort_jobs(cluster().snapshot(), accepted={1})
    first = unused(roster, use(BASE), [], {}, 10.0)
    assert first == {(5, "n3"): 10.0, (5, "n4"): 10.0}
    assert unused(roster, use(BASE), [], first, 20.0) == first
    assert unused(roster, use(BASE, COMPANION), [], first, 30.0) == {}
