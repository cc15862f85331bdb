"""Resizes by requeue, and jobs that come back at what fits: step by step, and in a whole daemon that may die."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from cluster_snapshots import TYPE, Cluster
from daemon_harness import World
from fake_slurm import Component, FakeClient
from resizable_jobs import Resizable, free_nodes, resizable
from store_records import resize_row

from slurm_elastic.daemon.actions.action import Action, Advance, Close, Free, Requeue, Resume, Shrink
from slurm_elastic.daemon.capacity.ledger import Amount, Ledger
from slurm_elastic.daemon.capacity.placement import (
    ShapeTemplate,
    can_restart,
    comes_back_at,
    place_restart,
    put_back,
    whole_sizes,
)
from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.mechanisms.base import ChosenWay, FreeNodes
from slurm_elastic.daemon.mechanisms.reconcile import next_actions
from slurm_elastic.daemon.mechanisms.requeue import RequeueResized
from slurm_elastic.daemon.mechanisms.settings import Bounds
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm.model import Size
from slurm_elastic.daemon.slurm.site import Site
from slurm_elastic.db.rows import REQUEUE, InUse
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.errors import SlurmRefused
from slurm_elastic.protocol.messages import Piece, Resize, Shape

VIA = "elastic:gpus=1-4,batch=240-3840,via=shrink+requeue"
NOW = 1000.0
SHAPE = Shape(1, 2, gpu_type=TYPE, node_list=("n1",))
BASE = Piece(1, "base", ("n1",), 4, TYPE)
FREE = Free(1, 1, "it has its nodes (selastic-1)")


def actions(at: str, /, age: float = 5.0, use: InUse | None = None, **base: object) -> list[Action]:
    """What is done for job 1, which a resize takes from 4 GPUs to 2, `age` seconds after it came to this state."""
    world = Cluster(2)
    pending = base.get("state") == "PENDING"
    if pending:
        world.wait(1, 1, 4, VIA, **{"asked_per_node": 4, "restarts": 1, **base})
    else:
        world.run(1, "n1", 4, VIA, **{"asked_per_node": 4, **base})
    resize = resize_row(Resize(7, 1, (), (SHAPE,), 2, 240, "r", 60.0), at, NOW - 100, NOW - age)
    roster = sort_jobs(world.snapshot(), accepted={1})
    return next_actions(roster, {1: use} if use else {}, [resize], {}, NOW, Bounds())


BACK: dict[str, object] = {"state": "PENDING", "reason": "BeginTime", "eligible_time": NOW + 115}
ASKED = Requeue(1, 1, 7, ("n1",), "alice", "another size by resize 7")
SIZED = Resume(1, 1, 7, Size(1, 2), "requeued at another size by resize 7")


REQUEUEING = RequeueResized()


def holder(comment: str = VIA, **more: object) -> tuple[Resizable, FreeNodes]:
    """Job 1 on n1 and n2 of three nodes, as the mechanism looks at it, and where it may go."""
    world = Cluster(3)
    world.run(1, "n1 n2", 4, comment, **{"asked_per_node": 4, **more})
    snapshot = world.snapshot()
    return resizable(snapshot, pause_s=0.5), free_nodes(snapshot)


def test_it_fits_ordinary_batch_jobs_that_name_it() -> None:
    """No part of a heterogeneous job, of an array, or of a reservation of its owner's can get another size."""
    ordinary = "only an ordinary batch job that asked for its GPUs per node can get another size in the queue"
    assert REQUEUEING.fits(holder()[0], Site()) == ""
    assert REQUEUEING.fits(holder(VIA.replace("+requeue", ""))[0], Site()).startswith("its request does not name it")
    for other in ({"asked_per_node": 0}, {"array_job_id": 1}, {"reservation": "course"}):
        assert REQUEUEING.fits(holder(**other)[0], Site()) == ordinary


def test_it_costs_its_own_measured_pause() -> None:
    """The pause of other resizes says nothing of it."""
    job = holder()[0]
    assert REQUEUEING.cost_s(job, Settings()) == Settings().assumed_requeue_s
    assert REQUEUEING.cost_s(replace(job, requeue_s=20.0), Settings()) == 20.0
    chosen = ChosenWay(4, (), 0.5)
    assert REQUEUEING.why_not(replace(job, requeue_s=20.0), Site(), chosen, Settings()) == (
        "it would cost 20 s where this costs 0.5 s"
    )


def test_it_keeps_nothing_and_is_placed_on_its_own_nodes_first() -> None:
    """What it gives back counts as free soon, what it takes as used."""
    job, free = holder()
    placed = REQUEUEING.place(job, (), 2, free)
    assert placed is not None and placed.keep == () and placed.add[0].node_list == ("n1",)
    assert free.ledger.gpus(("n1", "n2", "n3")) == 10
    assert REQUEUEING.place(job, (), 32, free) is None


def test_it_waits_for_its_nodes_until_it_was_put_back() -> None:
    """From then on they are kept for it, or it waits like any other job."""
    resize = resize_row(Resize(7, 1, (), (SHAPE,), 2, 240, "r", 60.0), "saved", NOW, NOW)
    job = holder()[0].job
    assert REQUEUEING.awaits(job, resize) == (SHAPE,)
    assert REQUEUEING.awaits(job, replace(resize, state=ResizeState.SUBMITTED)) == ()
    assert REQUEUEING.undo(1, (), "why") == [Free(1, 1, "why")]


def test_each_state_has_its_one_step() -> None:
    """Written down before it is done; what Slurm shows says what comes next, not what was done before."""
    assert actions("issued") == actions("accepted") == []  # the supervisor's word comes first: a checkpoint is on disk
    assert actions("saved") == [ASKED]  # again and again: nobody knows whether Slurm has heard
    assert actions("saved", state="COMPLETING") == []
    assert actions("saved", **BACK) == [Advance(1, 7, "submitted")]
    assert actions("submitted", age=1.0, **BACK) == []  # not in the second in which it was killed
    assert actions("submitted", **BACK) == [SIZED]
    small = {**BACK, "asked_per_node": 2, "eligible_time": NOW - 1, "reason": "Resources"}
    assert actions("submitted", **small) == []
    assert actions("submitted") == [Advance(1, 7, "granted"), FREE]
    trains = InUse(1, 2, (BASE,), 240, NOW - 3, NOW - 3)
    assert actions("granted") == []
    assert actions("granted", use=trains) == [Close(1, 7, "done", "")]


@pytest.mark.parametrize(
    ("state", "age", "base", "word"),
    [
        ("issued", 5.0, BACK, "does not run any more"),
        ("issued", 70.0, {}, "has not taken it within 70 s"),
        ("accepted", 5.0, BACK, "does not run any more"),
        ("accepted", 400.0, {}, "no checkpoint was written within 400 s"),
        ("saved", 20.0, {"start_time": NOW - 2}, "started again before"),
        ("saved", 400.0, {"state": "COMPLETING"}, "had not ended 400 s"),
        (
            "submitted",
            95.0,
            {**BACK, "reason": "Resources", "eligible_time": 0.0},
            "waits in Slurm's queue (Resources)",
        ),
        ("granted", 5.0, BACK, "ended again"),
        ("granted", 400.0, {}, "has not registered"),
    ],
)
def test_each_state_has_a_bound(state: str, age: float, base: dict[str, object], word: str) -> None:
    """No state lasts for ever, and the nodes kept for the job are let go with it."""
    done = actions(state, age, **base)
    assert isinstance(done[0], Free) and isinstance(done[1], Close), done
    assert done[1].state in ("failed", "withdrawn") and word in done[1].detail


def test_a_job_that_ended_is_forgotten() -> None:
    """Of a job that Slurm does not list any more, cancelled meanwhile for example, only the kept nodes are let go."""
    resize = resize_row(Resize(7, 9, (), (SHAPE,), 2, 240, "r", 60.0), "accepted", NOW, NOW)
    done = next_actions(sort_jobs(Cluster(1).snapshot()), {}, [resize], {}, NOW, Bounds())
    assert done == [Free(9, 9, "the job has ended"), Close(9, 7, "withdrawn", "the job has ended")]


def test_a_refused_requeue_keeps_no_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Slurm takes the reservation and refuses the requeue: the job runs on, and the nodes are everybody's again."""
    world = World(tmp_path, nodes=2)
    job = world.elastic(comment=VIA)
    world.round()
    kept: list[bool] = []

    def refuse(_: FakeClient, job_id: int) -> None:
        kept.append(bool(world.slurm.model.reservations))
        raise SlurmRefused(f"Slurm refused to requeue job {job_id}: Access/permission denied")

    monkeypatch.setattr(FakeClient, "requeue", refuse)
    world.store.jobs.pin(job.job_id, 2)
    for _ in range(6):
        world.round(2.0)
    assert kept == [True], "asked once, with its nodes kept"
    assert not world.slurm.model.reservations and not world.store.resizes.under_way()
    base = world.snapshot().jobs[job.job_id]
    assert base.running and base.restarts == 0 and job.gpus == 4


# --- sizes --------------------------------------------------------------------------------------------------------


def test_whole_sizes_are_equal_shares_fewest_nodes_first() -> None:
    """6 GPUs on nodes of 4: 2 x 3, 3 x 2, 6 x 1; never 4 + 2."""
    assert list(whole_sizes(6, 4)) == [Size(2, 3), Size(3, 2), Size(6, 1)]


def test_a_place_is_its_own_nodes_first() -> None:
    """What the job gives back counts as free, and is taken before anything else."""
    cluster = Cluster(3)
    job = cluster.run(1, "n2", 4)
    ledger, template = Ledger.of(cluster.snapshot()), ShapeTemplate.of(job)
    own = {"n2": Amount(4, 8, 4000)}
    shape = place_restart(ledger, own, 2, template, ["n1", "n2", "n3"], 4)
    assert shape is not None and (shape.node_list, shape.gpus_per_node, shape.cpus_per_node) == (("n2",), 2, 4)
    shape = place_restart(ledger, own, 12, template, ["n1", "n2", "n3"], 4)
    assert shape is not None and shape.nodes == 3
    assert place_restart(ledger, {}, 12, template, ["n1", "n2", "n3"], 4) is None


@pytest.mark.parametrize(
    ("changes", "ours"),
    [
        ({}, True),
        ({"restarts": 0}, False),
        ({"reason": "JobHeldUser"}, False),
        ({"reason": "launch failed requeued held"}, False),
        ({"eligible_time": NOW + 120.5}, False),
        ({"eligible_time": NOW + 3600}, False),
        ({"reason": "Resources", "eligible_time": NOW - 50}, True),
    ],
    ids=str,
)
def test_only_what_slurm_put_back_is_touched(changes: dict[str, object], ours: bool) -> None:
    """Never a job that has not run yet, that somebody holds, or that somebody gave a begin time of its own."""
    cluster = Cluster(2)
    values: dict[str, object] = {"restarts": 1, "reason": "BeginTime", "eligible_time": NOW + 60, **changes}
    assert put_back(cluster.wait(1, 2, 4, VIA, asked_per_node=4, **values), NOW) is ours


def test_only_ordinary_jobs_start_anew() -> None:
    """Not one that asked for its GPUs otherwise, a part of an array, or one in a reservation of its owner's."""
    cluster = Cluster(2)
    changes: list[dict[str, object]] = [
        {}, {"reservation": "selastic-2"}, {"asked_per_node": 0}, {"array_job_id": 9}, {"reservation": "course"}
    ]  # fmt: skip
    for number, more in enumerate(changes, 1):
        cluster.wait(number, 1, 4, VIA, **{"asked_per_node": 4, **more})
    roster = sort_jobs(cluster.snapshot())
    assert [can_restart(roster.elastic[number]) for number in range(1, 6)] == [True, True, False, False, False]


def test_it_comes_back_at_the_largest_size_that_fits() -> None:
    """Two of its four nodes are taken: it comes back on the other two, and with none left it waits for its minimum."""
    cluster = Cluster(4)
    request = "elastic:gpus=4-16,step=4,batch=240-3840"
    cluster.wait(1, 4, 4, request, asked_per_node=4, restarts=1, eligible_time=NOW + 100)
    sizes = frozenset({4, 8, 12, 16})

    def back() -> Shape | None:
        snapshot = cluster.snapshot()
        return comes_back_at(snapshot, sort_jobs(snapshot).elastic[1], Ledger.of(snapshot), sizes)

    cluster.run(2, "n1 n2")
    shape = back()
    assert shape is not None and shape.node_list == ("n3", "n4")
    cluster.run(3, "n3 n4")
    shape = back()
    assert shape is not None and (shape.nodes, shape.gpus_per_node, shape.node_list) == (1, 4, ())
    cluster.change(1, num_nodes=1, gpus=4, eligible_time=NOW)
    assert back() is None  # it waits for no more than that already


def test_it_comes_back_on_nodes_that_reach_each_other() -> None:
    """Four nodes are free, and one of them does not reach the others: three are enough, and so is any of them alone."""
    cluster = Cluster(4)
    cluster.wait(1, 4, 4, "elastic:gpus=4-16,step=4,batch=240-3840", asked_per_node=4, restarts=1)
    snapshot = cluster.snapshot()
    job, ledger = sort_jobs(snapshot).elastic[1], Ledger.of(snapshot)
    cut_off = [("n1", "n2"), ("n2", "n3"), ("n2", "n4")]

    def back(*sizes: int, apart: list[tuple[str, str]]) -> Shape | None:
        return comes_back_at(snapshot, job, ledger, sizes, apart)

    assert back(4, 8, 12, 16, apart=[]) is None, "as it was submitted"
    shape = back(4, 8, 12, 16, apart=cut_off)
    assert shape is not None and shape.node_list == ("n1", "n3", "n4")
    alone = back(4, 16, apart=cut_off)
    assert alone is not None and (alone.nodes, alone.gpus_per_node) == (1, 4)


# --- a whole daemon -----------------------------------------------------------------------------------------------


def test_a_pin_below_a_node_is_reached_by_requeue(tmp_path: Path) -> None:
    """2 of a node's 4 GPUs: neither shrink nor companion can; the job restarts there, and its pause is measured."""
    world = World(tmp_path, nodes=2)
    job = world.elastic(comment=VIA)
    world.round()
    world.round()
    world.store.jobs.pin(job.job_id, 2)
    world.settle()
    base = world.snapshot().jobs[job.job_id]
    assert (base.gpus, base.num_nodes, base.restarts, job.gpus) == (2, 1, 1, 2)
    assert not world.slurm.model.reservations
    row = world.store.allocations.rows(job.job_id)[-1]
    assert row.reason == REQUEUE and row.pause_s > 0 and row.gpus == 2
    assert (
        world.store.allocations.mean_pause(job.job_id, REQUEUE) == row.pause_s
        and world.store.allocations.mean_pause(job.job_id) != row.pause_s
    )


def test_it_leaves_a_node_that_is_drained(tmp_path: Path) -> None:
    """Its batch host is being drained: it restarts on another node, at its size; with none free it stays."""
    world = World(tmp_path, nodes=2)
    job, other = world.elastic(comment=VIA), world.rigid()
    world.round()
    world.round()
    world.slurm.set_node_state("n1", "MIXED", "DRAIN")
    world.settle()
    assert world.snapshot().jobs[job.job_id].nodes == ("n1",)
    world.slurm.finish(other)
    world.settle()
    base = world.snapshot().jobs[job.job_id]
    assert (base.nodes, base.restarts, job.gpus) == (("n2",), 1, 4)


def test_a_job_that_writes_no_checkpoint_is_not_put_back(tmp_path: Path) -> None:
    """Its supervisor takes the order and never says that a checkpoint is on disk: the job trains on, not requeued."""
    world = World(tmp_path, nodes=2)
    job = world.elastic(comment=VIA)
    world.round()
    world.store.jobs.pin(job.job_id, 2)
    while job.active is None or not job.active.requeues:
        world.round()
    job.silent = True
    for _ in range(int(Bounds().stop_s / 5.0) + 2):
        world.round()
    assert not world.store.resizes.under_way() and world.snapshot().jobs[job.job_id].restarts == 0
    last = world.store.resizes.last_closed(job.job_id)
    assert last is not None and last.state == "failed" and "no checkpoint" in last.detail
    assert job.gpus == 4 and not world.slurm.model.reservations


def test_without_via_requeue_nothing_is_requeued(tmp_path: Path) -> None:
    """The request decides: by default a job is never ended to be resized."""
    world = World(tmp_path, nodes=2)
    job = world.elastic(comment="elastic:gpus=1-4,batch=240-3840")
    world.round()
    world.store.jobs.pin(job.job_id, 2)
    world.settle()
    assert world.snapshot().jobs[job.job_id].restarts == 0 and job.gpus == 4


@pytest.mark.parametrize("after", range(1, 9))
def test_a_daemon_that_dies_in_a_requeue_goes_on(tmp_path: Path, after: int) -> None:
    """Whatever round it dies after, the next daemon brings the job to its size, once, and leaves nothing reserved."""
    world = World(tmp_path, nodes=2)
    job = world.elastic(comment=VIA)
    world.round()
    world.store.jobs.pin(job.job_id, 2)
    for _ in range(after):
        world.round(2.0)
    world.boot()
    world.settle()
    base = world.snapshot().jobs[job.job_id]
    assert (base.gpus, base.restarts, job.gpus) == (2, 1, 2) and not world.slurm.model.reservations


def test_a_daemon_that_never_comes_back_holds_no_job(tmp_path: Path) -> None:
    """In the middle of a requeue the daemon is gone: Slurm starts the job again, and a late daemon resizes it."""
    world = World(tmp_path, nodes=2, failed_backoff_s=20.0)
    job = world.elastic(comment=VIA)
    world.round()
    world.store.jobs.pin(job.job_id, 2)
    while world.snapshot().jobs[job.job_id].running:
        world.round(1.0)
    world.slurm.now += 130
    world.slurm.model.reservations.clear()  # it has ended by itself
    world.slurm.schedule()
    assert world.snapshot().jobs[job.job_id].running
    world.boot()
    world.settle()
    assert job.gpus == 2


def test_a_preempted_job_comes_back_on_what_is_left(tmp_path: Path) -> None:
    """Slurm puts it back for a job of a higher tier: within a few rounds it trains on the nodes that are left."""
    world = World(tmp_path, nodes=4, failed_backoff_s=20.0)
    job = world.elastic(nodes=4, comment="elastic:gpus=4-16,step=4,batch=240-3840")
    world.round()
    world.round()
    assert job.gpus == 16
    world.slurm.client().requeue(job.job_id)
    urgent = world.slurm.submit(Component(3, 4), user="nobody")
    assert world.snapshot().jobs[urgent].running
    for _ in range(4):
        world.round(2.0)
    base = world.snapshot().jobs[job.job_id]
    assert base.running and base.gpus == job.gpus == 4
    world.slurm.finish(urgent)
    world.settle()
    assert job.gpus == 16 and world.snapshot().jobs[job.job_id].restarts == 1


@pytest.mark.parametrize(
    ("ended_as", "by_us"),
    [("NODE_FAIL", True), ("NODE_FAIL", False), ("BOOT_FAIL", False), ("", True), ("", False), (None, False)],
)
def test_after_a_node_failure_slurms_two_minutes_are_kept(tmp_path: Path, ended_as: str | None, by_us: bool) -> None:
    """What ends the first run on a node that is back may reach the second. So it is where slurmdbd does not know how
    the run ended, or is away (None), and where a resize of ours was to put it back. Then it starts at what fits."""
    world = World(tmp_path, nodes=4, failed_backoff_s=20.0)
    request = "elastic:gpus=4-16,step=4,batch=240-3840" + (",via=requeue" if by_us else "")
    job = world.elastic(nodes=4, comment=request)
    world.round()
    world.round()
    if ended_as is None:
        world.slurm.slurmdbd = False
    world.slurm.run_ended_as = ended_as or ""
    if by_us:
        world.store.jobs.pin(job.job_id, 8)
        while world.snapshot().jobs[job.job_id].running:
            world.round()
    else:
        world.slurm.client().requeue(job.job_id)
    eligible = world.snapshot().jobs[job.job_id].eligible_time
    world.slurm.submit(Component(2, 4), user="nobody")
    while world.slurm.now < eligible - 20:
        world.round(12.0)
        assert world.snapshot().jobs[job.job_id].eligible_time == eligible
    for _ in range(6):
        world.round(6.0)
    assert world.snapshot().jobs[job.job_id].running and job.gpus == 8


@pytest.mark.parametrize("slurmdbd", [True, False])
def test_a_resize_by_requeue_starts_at_once(tmp_path: Path, slurmdbd: bool) -> None:
    """Also where there is no slurmdbd: selasticd has ended the run itself."""
    world = World(tmp_path, nodes=4)
    job = world.elastic(nodes=4, comment="elastic:gpus=4-16,step=4,batch=240-3840,via=requeue")
    world.round()
    world.round()
    world.slurm.slurmdbd = slurmdbd
    world.store.jobs.pin(job.job_id, 8)
    while world.snapshot().jobs[job.job_id].running:
        world.round()
    ended = world.slurm.now
    while not world.snapshot().jobs[job.job_id].running:
        world.round()
    assert world.slurm.now < ended + 60 and world.snapshot().jobs[job.job_id].gpus == 8


def test_slurmdbd_is_asked_once_of_all_jobs_that_were_put_back(tmp_path: Path) -> None:
    world = World(tmp_path, nodes=4)
    jobs = [world.elastic(nodes=1, comment="elastic:gpus=4-4,batch=240-3840").job_id for _ in range(3)]
    world.round()
    world.round()
    world.slurm.run_ended_as = "NODE_FAIL"
    for job_id in jobs:
        world.slurm.client().requeue(job_id)
    for _ in range(4):
        world.round()
    assert world.slurm.asked_slurmdbd == [tuple(jobs)]


@pytest.mark.parametrize("by_us", [True, False])
def test_a_shrink_that_met_a_preemption_binds_the_job_to_no_node(tmp_path: Path, by_us: bool) -> None:
    """Put back just before our shrink, the job must get the nodes that it was to keep, which another has now: that is
    undone with its new size, and it trains elsewhere. Nodes that its owner named are waited for."""
    world = World(tmp_path, nodes=4, failed_backoff_s=20.0)
    job = world.elastic(nodes=2, comment="elastic:gpus=4-8,step=4,batch=240-3840")
    world.round()
    world.round()
    world.slurm.client().requeue(job.job_id)
    if by_us:
        shrink = Shrink(job.job_id, job.job_id, ("n1",), "given up by resize 1")
        world.rounds.executor.run([shrink], act=True)
    else:
        world.slurm.client().shrink(job.job_id, ("n1",))
    assert world.snapshot().jobs[job.job_id].required_nodes == ("n1",)
    urgent = world.slurm.submit(Component(2, 4, ("n1", "n2")), user="nobody")
    assert world.snapshot().jobs[urgent].running
    for _ in range(4):
        world.round(2.0)
    base = world.snapshot().jobs[job.job_id]
    assert base.required_nodes == (() if by_us else ("n1",))
    assert (base.running and set(base.nodes) <= {"n3", "n4"} and job.gpus > 0) if by_us else base.pending


def test_advice_puts_nothing_back(tmp_path: Path) -> None:
    """In mode review a preempted job is Slurm's alone."""
    world = World(tmp_path, nodes=4, mode="review")
    job = world.elastic(nodes=4, comment="elastic:gpus=4-16,step=4,batch=240-3840")
    world.round()
    world.slurm.client().requeue(job.job_id)
    world.slurm.submit(Component(3, 4), user="nobody")
    for _ in range(4):
        world.round(2.0)
    base = world.snapshot().jobs[job.job_id]
    assert base.pending and replace(base, reason="").num_nodes == 4
