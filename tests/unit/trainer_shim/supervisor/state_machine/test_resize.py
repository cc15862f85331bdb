"""The supervisor's decisions about resizes, without any process."""

from __future__ import annotations

from typing import Any

import pytest
from supervisor_harness import BASE, COMPANION, SHAPE, Drive

from slurm_elastic.protocol.messages import Piece, Resize, Shape
from slurm_elastic.trainer_shim.allocation.pieces.actions import (
    CancelCompanion,
    DropCompanions,
    LaunchAgents,
    Print,
    QuitAgent,
    RetainJobs,
    SubmitCompanion,
    Tell,
)
from slurm_elastic.trainer_shim.allocation.pieces.events import (
    AgentLost,
    AgentUp,
    ClockDiffers,
    CompanionGranted,
    CompanionRefused,
    JobTerminating,
    NodeSuspending,
    NodeTerminating,
    ResizeCame,
    StepEnded,
)
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import Kill, Send
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode, RunLimits
from slurm_elastic.trainer_shim.supervisor.state_machine.events import WorkerExit


def test_grow_goes_through_all_phases() -> None:
    """accepted, submitted, granted, ready, running, with the new pieces only in the last one."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,), batch=96)
    assert drive.new(SubmitCompanion) == [SubmitCompanion(1, 0, SHAPE, 30.0)]
    drive(CompanionGranted(1, 0, COMPANION))
    assert [launch.piece for launch in drive.new(LaunchAgents)] == [COMPANION]
    drive.ready(drive.agents_up(COMPANION))
    worlds = drive.worlds(2)
    assert [worlds[name]["rank"] for name in ("10.n1.0", "11.n3.0", "11.n3.1")] == [0, 4, 5]
    assert {(m["source"], m["batch"], m["leave"]) for m in worlds.values()} == {("survivor", 96, False)}
    assert {message["joiners"] for message in worlds.values()} == {2}, "the world waits for them"
    assert drive.context.pieces == (BASE,)
    drive.running(2, pause_s=0.2, step=9, samples=90)
    assert drive.phases(1) == ["accepted", "submitted", "granted", "ready", "running"]
    last = drive.every(Tell)[-1].said
    assert (last.pieces, last.batch, last.pause_s, last.step) == ((BASE, COMPANION), 96, 0.2, 9)


def test_nodes_that_slurm_did_not_take_are_trained_on_again() -> None:
    """After a refused shrink: agents start on the node that was left, its workers warm up while training goes on, and
    the base is one piece again."""
    drive = Drive().up()
    drive.order(1, (Piece(10, "base", ("n1",), 2),))
    drive.quiesce(("10.n2.0", "10.n2.1"))
    drive.running(2)
    drive(AgentLost((10, "n2")))
    drive.order(2, (BASE,))
    again = Piece(10, "base", ("n2",), 2)
    assert [launch.piece for launch in drive.new(LaunchAgents)] == [again]
    assert drive.context.pieces == (Piece(10, "base", ("n1",), 2),)
    drive.ready(drive.agents_up(again))
    assert {message["size"] for message in drive.worlds(3).values()} == {4}
    drive.running(3)
    assert drive.phases(2) == ["accepted", "granted", "ready", "running"]
    assert drive.context.pieces == (BASE,)


def test_a_node_is_taken_back_while_its_old_agent_still_quits() -> None:
    """The new agent takes over its name and connection: it stays, and the workers of the old one are forgotten."""
    drive = Drive().up()
    drive.order(1, (Piece(10, "base", ("n1",), 2),))
    drive.quiesce(("10.n2.0", "10.n2.1"))
    drive.running(2)
    drive.order(2, (BASE,))
    quits = len(drive.every(QuitAgent))
    drive.ready(drive.agents_up(Piece(10, "base", ("n2",), 2)))
    drive.running(3)
    assert drive.context.pieces == (BASE,) and len(drive.every(QuitAgent)) == quits
    drive.wait(60.0)
    assert drive.context.mode is Mode.RUNNING and len(drive.context.workers) == 4


def test_a_node_that_cannot_be_taken_back_costs_nothing() -> None:
    """Its agents do not start: the job trains on as it did, and the base is not cancelled."""
    drive = Drive().up()
    left = Piece(10, "base", ("n1",), 2)
    drive.order(1, (left,))
    drive.quiesce(("10.n2.0", "10.n2.1"))
    drive.running(2)
    drive(AgentLost((10, "n2")))
    drive.order(2, (BASE,))
    launch = drive.new(LaunchAgents)[0]
    drive(StepEnded(launch.number, 1, ("srun: error",)))
    assert drive.phases(2)[-1] == "failed" and not drive.every(DropCompanions)
    assert drive.context.pieces == (left,) and drive.context.mode is Mode.RUNNING


def test_shrink_tells_leavers_and_quits_their_agents_afterwards() -> None:
    """Workers on dropped nodes leave at the agreed step; their agents stay until the new world runs."""
    drive = Drive().up()
    left = Piece(10, "base", ("n1",), 2)
    drive.order(1, (left,))
    assert drive.worlds(2)["10.n2.1"]["leave"] is True
    assert drive.worlds(2)["10.n1.0"]["leave"] is False
    drive.quiesce(("10.n2.0", "10.n2.1"))
    for worker in ("10.n2.0", "10.n2.1"):
        drive(WorkerExit(worker, 0))
    assert not drive.every(QuitAgent)
    drive.running(2)
    assert drive.every(QuitAgent) == [QuitAgent((10, "n2"))]
    assert drive.context.pieces == (left,)
    drive(AgentLost((10, "n2")))
    assert drive.context.mode is Mode.RUNNING


def test_leaver_whose_exit_is_seen_first_is_no_accident() -> None:
    """The agent may report a leaver's exit before its own last message is read."""
    drive = Drive().up()
    drive.order(1, (Piece(10, "base", ("n1",), 2),))
    drive(WorkerExit("10.n2.0", 0))
    assert drive.context.mode is Mode.RUNNING
    drive.running(2)
    assert drive.phases(1)[-1] == "running"


def test_batch_only() -> None:
    """The same workers, another global batch; in their group, but for those of 0.2.0, which form another one."""
    for takes_batches in (True, False):
        drive = Drive().up(**({"takes_batches": True} if takes_batches else {}))
        drive.order(1, (BASE,), batch=128)
        announced = drive.worlds(2).values()
        assert {(message["batch"], message["in_place"]) for message in announced} == {(128, takes_batches)}
        drive.running(2)
        assert (drive.context.batch, drive.context.pieces) == (128, (BASE,))
        assert not drive.every(QuitAgent)


def test_who_comes_or_goes_needs_another_group() -> None:
    """A batch that changes with the size is no change in place, nor is a first world."""
    drive = Drive().up(takes_batches=True)
    drive.order(1, (Piece(10, "base", ("n1",), 2),), batch=128)
    assert {message["in_place"] for world in (1, 2) for message in drive.worlds(world).values()} == {False}


def test_a_batch_that_changes_in_place_is_no_world_to_go_back_from() -> None:
    """A worker that dies after the agreement on it starts all of them again, at the batch that had trained; one that is
    taken back after it is done all the same."""
    drive = Drive().up(takes_batches=True)
    drive.order(1, (BASE,), batch=128)
    drive.quiesce(tuple(drive.worlds(2)))
    drive(WorkerExit("10.n1.1", -1, signal=9))
    assert drive.phases(1)[-1] == "failed" and drive.context.mode is Mode.RESTARTING
    assert drive.context.batch != 128


def test_the_same_resize_twice_is_one_resize() -> None:
    """Ids are idempotent: seen ones change nothing, before and after the resize."""
    drive = Drive().up()
    resize = drive.order(1, (BASE,), batch=128)
    assert not drive(ResizeCame(resize))
    drive.running(2)
    assert not drive(ResizeCame(resize))


@pytest.mark.parametrize(
    ("keep", "reason"),
    [
        ((Piece(10, "base", ("n2",), 2),), "batch host n1"),
        ((BASE, Piece(12, "companion", ("n3",), 2)), "job 12 is not in use"),
        ((Piece(10, "base", ("n1", "n7"), 2),), "node n7"),
        ((Piece(10, "base", ("n1", "n2"), 1),), "whole nodes"),
        ((), "batch host n1"),
    ],
)
def test_resize_that_does_not_fit_fails(keep: tuple[Piece, ...], reason: str) -> None:
    """What cannot be done is refused with its reason, and nothing moves."""
    drive = Drive().up()
    drive.order(1, keep)
    assert drive.phases(1) == ["failed"]
    assert reason in drive.every(Tell)[-1].said.detail
    assert drive.context.mode is Mode.RUNNING


def test_resize_whose_numbers_disagree_fails() -> None:
    """A resize has to say how many GPUs its pieces make."""
    drive = Drive().up()
    drive(ResizeCame(Resize(1, 10, (BASE,), (), 3, 64, "batch", 10.0)))
    assert "add up to 4 GPUs, not 3" in drive.every(Tell)[-1].said.detail


def test_withdrawn_while_waiting_for_a_companion() -> None:
    """The request to Slurm is taken back; a grant that comes all the same is given back."""
    drive = Drive().up()
    resize = drive.order(1, (BASE,), (SHAPE,))
    drive(ResizeCame(Resize(**{**_fields(resize), "withdrawn": True})))
    assert drive.new(DropCompanions) == [DropCompanions(1)]
    assert drive.phases(1)[-1] == "withdrawn"
    assert drive(CompanionGranted(1, 0, COMPANION)) == [DropCompanions(1)]


def test_withdrawn_before_the_agreement() -> None:
    """A world that is only coming is called off: survivors are asked; with the first who has not left for it joiners
    are killed, companions given back."""
    drive = Drive().up()
    resize = drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    joiners = drive.agents_up(COMPANION)
    drive.ready(joiners)
    drive(ResizeCame(Resize(**{**_fields(resize), "withdrawn": True})))
    aborts = [send for send in drive.new(Send) if send.message["type"] == "abort"]
    assert {send.worker for send in aborts} == set(drive.members())
    assert not any(send.message["lost"] for send in aborts)
    assert not drive.every(Kill) and drive.phases(1)[-1] == "ready"
    drive.say("10.n2.1", "called_off", generation=2)
    assert drive.phases(1)[-1] == "withdrawn"
    assert {kill.worker for kill in drive.new(Kill)} == set(joiners)
    assert drive.new(QuitAgent) == [QuitAgent((11, "n3"))]
    drive.die_when_killed()
    drive(AgentLost((11, "n3")))
    assert (drive.context.mode, drive.context.pieces) == (Mode.RUNNING, (BASE,))


def test_withdrawn_after_the_agreement_comes_too_late() -> None:
    """Once somebody has stopped for the new world it is carried through and reported as it is."""
    drive = Drive().up()
    resize = drive.order(1, (BASE,), batch=128)
    drive.quiesce(("10.n1.0",))
    drive(ResizeCame(Resize(**{**_fields(resize), "withdrawn": True})))
    drive.running(2)
    assert drive.phases(1)[-1] == "running"
    assert drive.context.batch == 128


def test_withdrawal_crossing_the_agreement_of_a_shrink() -> None:
    """Called off and agreed on at the same moment: without joiners the new world is whole, and is taken."""
    drive = Drive().up()
    resize = drive.order(1, (Piece(10, "base", ("n1",), 2),))
    drive(ResizeCame(Resize(**{**_fields(resize), "withdrawn": True})))
    drive.quiesce(("10.n1.0", "10.n2.0"))
    drive(WorkerExit("10.n2.0", 0))
    drive.running(2)
    assert drive.context.pieces == (Piece(10, "base", ("n1",), 2),)
    assert drive.context.mode is Mode.RUNNING


@pytest.mark.parametrize("newer", [False, True])
def test_withdrawal_crossing_the_agreement_of_a_grow(newer: bool) -> None:
    """Nobody says that he has not left for the new world: it comes, and what is to replace it comes after it."""
    drive = Drive().up()
    resize = drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive.ready(drive.agents_up(COMPANION))
    if newer:
        drive.order(2, (BASE,), batch=32)
    else:
        drive(ResizeCame(Resize(**{**_fields(resize), "withdrawn": True})))
    drive.quiesce(drive.members())
    assert not drive.every(Kill) and not drive.phases(2)
    drive.running(2)
    assert drive.phases(1)[-1] == "running"
    assert drive.phases(2) == (["accepted"] if newer else [])


def test_recalled_and_rolled_back_is_withdrawn() -> None:
    """A member that stays in the old world says so in either way; a recall is no failure."""
    drive = Drive().up()
    resize = drive.order(1, (BASE,), batch=128)
    drive(ResizeCame(Resize(**{**_fields(resize), "withdrawn": True})))
    drive.say("10.n1.0", "failed", generation=2, error="world 2 was called off", survived=True)
    drive.say("10.n1.1", "called_off", generation=2)
    assert drive.phases(1) == ["accepted", "withdrawn"]


@pytest.mark.parametrize("back", [True, False])
def test_the_end_of_the_job_crossing_the_agreement_of_a_grow(back: bool) -> None:
    """The joiners are dead by then: the members go back to their old world, or are started again."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive.ready(drive.agents_up(COMPANION))
    drive(JobTerminating(60.0, stop=False))
    drive.quiesce(("10.n1.0",))
    assert drive.context.mode is Mode.RUNNING
    if back:
        drive.say("10.n1.0", "failed", generation=2, error="connection reset", survived=True)
    drive.wait(drive.context.limits.world_s + 1)
    assert drive.context.mode is (Mode.RUNNING if back else Mode.RESTARTING)


def test_newer_resize_replaces_an_unfinished_one() -> None:
    """The daemon's last word counts."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive.order(2, (BASE,), batch=128)
    assert drive.phases(1)[-1] == "withdrawn"
    drive.running(drive.context.generation)
    assert drive.phases(2) == ["accepted", "running"]


def test_newer_resize_waits_for_an_agreed_one() -> None:
    """A change that is past its point of no return is finished first."""
    drive = Drive().up()
    drive.order(1, (BASE,), batch=128)
    drive.quiesce(("10.n1.0",))
    drive.order(2, (BASE,), batch=32)
    assert not drive.phases(2)
    drive.running(2)
    drive.running(3)
    assert (drive.phases(1)[-1], drive.phases(2)[-1], drive.context.batch) == ("running", "running", 32)


def test_companion_not_granted() -> None:
    """Slurm's no, or its silence, ends the resize as withdrawn; training has not noticed."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE, SHAPE))
    drive(CompanionGranted(1, 0, COMPANION))
    drive(CompanionRefused(1, 1, "not within 30 s"))
    assert drive.phases(1)[-1] == "withdrawn"
    assert drive.new(DropCompanions) == [DropCompanions(1)]
    assert not drive.worlds(2)


def test_companion_that_does_not_warm_up_in_time() -> None:
    """A hanging node costs the resize, not the training."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive.agents_up(COMPANION)
    drive.wait(drive.context.limits.warm_up_s)
    assert drive.phases(1)[-1] == "failed"
    assert drive.context.mode is Mode.RUNNING
    assert DropCompanions(1) in drive.fresh


def test_waiting_and_warming_up_have_a_time_each() -> None:
    """The workers of a companion that was granted late have as long as any others."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive.wait(20.0)
    drive(CompanionGranted(1, 0, COMPANION))
    drive.agents_up(COMPANION)
    drive.wait(drive.context.limits.warm_up_s - 1.0)
    assert drive.phases(1)[-1] == "granted"
    drive.wait(2.0)
    assert drive.phases(1)[-1] == "failed"


def test_companion_that_nobody_answers_for_is_withdrawn() -> None:
    """Neither granted nor refused: the resize ends all the same."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive.wait(30.0)
    assert drive.phases(1)[-1] == "withdrawn"
    assert DropCompanions(1) in drive.fresh


def test_companion_whose_srun_fails() -> None:
    """No agent will ever come: the resize fails at once, not after its time."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive(StepEnded(drive.every(LaunchAgents)[-1].number, 1))
    assert drive.phases(1)[-1] == "failed"


def test_companion_with_other_gpus_than_asked() -> None:
    """A node that shows fewer GPUs than its piece would break every later sum."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive(AgentUp((11, "n3"), ("0",)))
    assert "shows 1 GPUs instead of 2" in drive.every(Tell)[-1].said.detail


def test_companion_taken_away_with_notice() -> None:
    """Slurm's SIGTERM on a companion: the others agree on going on without it, before it is killed."""
    drive = Drive().up().grown()
    drive(NodeTerminating((11, "n3")))
    worlds = drive.worlds(3)
    assert {name for name, message in worlds.items() if message["leave"]} == {"11.n3.0", "11.n3.1"}
    drive.running(3)
    assert drive.context.pieces == (BASE,)
    assert drive.phases(0)[-1] == "running"
    assert drive.new(CancelCompanion) == [CancelCompanion(11)]  # nobody waits for the end of a grace


def test_companion_that_ends_before_its_successor_is_there() -> None:
    """A resize is to replace it, and Slurm ends it first: it is left without a restart, and the resize is given up."""
    drive = Drive().up().grown()
    drive.order(2, (BASE,), (SHAPE,))
    drive(NodeTerminating((11, "n3")))
    assert drive.phases(2)[-1] == "failed" and drive.every(DropCompanions)[-1] == DropCompanions(2)
    drive.running(3)
    assert drive.context.pieces == (BASE,) and drive.context.mode is Mode.RUNNING


def test_companion_that_is_suspended_is_left_or_woken_up_by_its_end() -> None:
    """Slurm's SIGTSTP: what is not left before the SIGSTOP stops everybody, until the companion is cancelled."""
    drive = Drive().up().grown()
    drive(NodeSuspending((11, "n3")))
    assert not any(message["leave"] for name, message in drive.worlds(3).items() if name.startswith("10."))
    assert not drive.wait(2.0)
    assert drive.wait(3.0) == [CancelCompanion(11)]
    drive(NodeTerminating((11, "n3")))
    drive.running(3)
    assert drive.context.pieces == (BASE,)


def test_a_suspended_base_is_left_as_it_is() -> None:
    """It goes on when Slurm resumes it."""
    drive = Drive().up().grown()
    assert not drive(NodeSuspending((10, "n1")))
    assert not drive.wait(10.0)


def test_while_slurm_ends_the_job_it_still_gives() -> None:
    """During a grace: who it is ended for may need less. A smaller size is taken, also while that is under way."""
    drive = Drive().up().grown()
    drive(JobTerminating(25.0, stop=False))
    drive.order(2, (BASE, COMPANION), (SHAPE,))
    assert drive.phases(2)[-1] == "withdrawn"
    drive.order(3, (BASE,))
    drive(JobTerminating(25.0, stop=False))
    drive.running(3)
    assert drive.phases(3)[-1] == "running"
    assert drive.context.pieces == (BASE,)
    drive(JobTerminating(25.0, stop=True))
    drive.order(4, (Piece(10, "base", ("n1",), 2),))
    assert drive.phases(4)[-1] == "withdrawn"


def _fields(resize: Resize) -> dict[str, Any]:
    return {name: getattr(resize, name) for name in Resize.__dataclass_fields__}


def units(drive: Drive, workers: list[str], unit: int) -> None:
    for worker in workers:
        drive.say(worker, "ready", unit=unit)


def test_worlds_are_whole_model_parallel_units() -> None:
    """Four workers, three to a replica: three train and the fourth is ended; a shrink below one unit is refused."""
    drive = Drive()
    units(drive, drive.agents_up(BASE), 3)
    assert sorted(drive.worlds(1)) == ["10.n1.0", "10.n1.1", "10.n2.0"]
    assert [kill.worker for kill in drive.every(Kill)] == ["10.n2.1"]
    drive.die_when_killed()
    drive.running(1)
    drive.order(1, (Piece(10, "base", ("n1",), 2),))
    assert drive.phases(1) == ["accepted", "failed"]
    assert drive.context.mode is Mode.RUNNING and len(drive.members()) == 3


def test_a_worker_without_a_whole_unit_leaves_and_is_no_accident() -> None:
    """Six workers, three to a replica, shrink to the base's four: three go on, and the fourth leaves as told."""
    drive = Drive(BASE, COMPANION)
    units(drive, drive.agents_up(BASE) + drive.agents_up(COMPANION), 3)
    drive.running(1)
    assert len(drive.members()) == 6
    drive.order(1, (BASE,))
    assert [name for name, told in drive.worlds(2).items() if told["leave"]] == ["10.n2.1", "11.n3.0", "11.n3.1"]
    drive.running(2)
    for worker in ("10.n2.1", "11.n3.0", "11.n3.1"):
        drive(WorkerExit(worker, 0))
    assert drive.context.mode is Mode.RUNNING and drive.phases(1)[-1] == "running"


def test_before_a_requeue_a_checkpoint_is_written() -> None:
    """An order that keeps nothing asks for a checkpoint: `saved` is said once it is on disk, not for one from before,
    and the training goes on meanwhile."""
    drive = Drive().up()
    drive.say("10.n1.0", "report", step=40)
    sent = len(drive.every(Send))
    drive.order(1, (), (Shape(1, 1),))
    assert [(s.worker, s.message) for s in drive.every(Send)[sent:]] == [("10.n1.0", {"type": "checkpoint"})]
    assert drive.phases(1) == ["accepted"]
    drive.say("10.n1.0", "saved", step=30)  # was being written when the order came
    assert drive.phases(1) == ["accepted"]
    drive.say("10.n1.0", "saved", step=41)
    drive.say("10.n1.0", "saved", step=50)
    assert drive.phases(1) == ["accepted", "saved"] and not drive.exits()


def test_a_checkpoint_for_a_requeue_is_asked_for_again_by_a_new_world() -> None:
    """The world that was asked broke before it had written: the next one is asked, and a withdrawal ends it."""
    drive = Drive(limits=RunLimits(checkpoint_s=1e9)).up()
    drive.order(1, (), (Shape(1, 1),))
    drive(WorkerExit(drive.members()[-1], 1, 9))
    drive.die_when_killed()
    sent = len(drive.every(Send))
    drive.settle()
    asked = [send for send in drive.every(Send)[sent:] if send.message == {"type": "checkpoint"}]
    assert [send.worker for send in asked] == [drive.members()[0]]
    drive(ResizeCame(Resize(1, 10, (), (Shape(1, 1),), 1, 64, "keep_pinned", 30.0, withdrawn=True)))
    drive.say(drive.members()[0], "saved", step=50)
    assert drive.phases(1) == ["accepted"]


def test_nothing_is_remembered_of_companions_that_were_left() -> None:
    """A job is resized for weeks: what its supervisor keeps of companions is those in use, used or not used before."""
    drive = Drive().up()
    for number in range(1, 40):
        piece = Piece(10 + number, "companion", (f"n{10 + number}",), 2)
        drive.order(4 * number, (BASE,), (SHAPE,))
        drive(CompanionGranted(4 * number, 0, piece))
        drive.ready(drive.agents_up(piece))
        if number % 2:
            drive.running(drive.context.generation)
            drive.order(4 * number + 1, (BASE,))
            drive.quiesce((f"{10 + number}.n{10 + number}.0",))
            drive.running(drive.context.generation)
        else:
            withdrawn = Resize(4 * number, 10, (BASE,), (SHAPE,), 6, 64, "grow_idle", 30.0, withdrawn=True)
            drive(ResizeCame(withdrawn))
        assert drive.every(RetainJobs)[-1].slurm_job_ids == {10}
        drive(AgentLost((10 + number, f"n{10 + number}")))
    context, parts = drive.context, drive.machine.parts
    assert drive.phases(39 * 4 + 1)[-1] == "running"
    assert {agent[0] for agent in context.nodes.rows} == {10}
    assert {worker.agent[0] for worker in context.workers.values()} == {10}
    held = [value for part in parts for value in vars(part).values() if isinstance(value, (dict, list, set))]
    assert max(map(len, held)) <= 2, held


def test_a_clock_that_differs_from_slurms_is_told_once() -> None:
    """With every companion it is seen again; the job's output names the host and the difference once."""
    drive = Drive().up()
    for seconds in (3600.0, 3601.0, -90.0):
        drive(ClockDiffers(seconds))
    told = [line.text for line in drive.every(Print) if "clock" in line.text]
    assert told == ["the clock of n1 is 3600 s ahead of Slurm's: tell an admin"]


def test_a_companion_of_another_build_is_turned_away() -> None:
    """slurm-elastic was upgraded under the job: one sentence, and training goes on as it is."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive(AgentUp((11, "n3"), ("0", "1"), other_build="9.9, build 1234"))
    failed = drive.every(Tell)[-1].said
    assert failed.what == "failed"
    assert failed.detail.startswith("node n3 has another slurm-elastic (9.9, build 1234) than this job runs")
    assert DropCompanions(1) in drive.fresh and QuitAgent((11, "n3")) in drive.fresh
    assert drive.context.mode is Mode.RUNNING
