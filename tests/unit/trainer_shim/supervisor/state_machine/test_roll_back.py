"""Changes of the world that fail, early or late: who goes back, who is started again; without any process."""

from __future__ import annotations

import pytest
from supervisor_harness import BASE, COMPANION, SHAPE, Drive

from slurm_elastic.protocol.messages import TOO_LARGE, Piece, Resize, Shape
from slurm_elastic.trainer_shim.allocation.pieces.actions import DropCompanions, Tell
from slurm_elastic.trainer_shim.allocation.pieces.events import AgentLost, CompanionGranted, NodeTerminating, ResizeCame
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import Kill, Send, Spawn
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode
from slurm_elastic.trainer_shim.supervisor.state_machine.events import WorkerExit


@pytest.mark.parametrize("ready", [False, True])
def test_joiner_dies_before_the_agreement(ready: bool) -> None:
    """A joiner's death, before or after its world message, is the resize's end and nothing else."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    joiners = drive.agents_up(COMPANION)
    if ready:
        drive.ready(joiners)
    drive(WorkerExit(joiners[0], 1))
    assert drive.phases(1)[-1] == "failed"
    assert drive.context.mode is Mode.RUNNING
    assert bool([send for send in drive.new(Send) if send.message["type"] == "abort"]) is ready


def agreed_grow(drive: Drive) -> list[str]:
    """A grow whose joiners are ready and whose members have agreed on a step; the joiners."""
    drive.order(1, (BASE,), (SHAPE,), batch=96)
    drive(CompanionGranted(1, 0, COMPANION))
    joiners = drive.agents_up(COMPANION)
    drive.ready(joiners)
    drive.quiesce(("10.n1.0",))
    return joiners


def test_joiner_dies_after_the_agreement() -> None:
    """The members are waited for, the other joiner is ended; once the members are back the resize has failed, with the
    joiner's end as its reason, on the old pieces and batch, and nobody was started again."""
    drive = Drive().up()
    joiners = agreed_grow(drive)
    spawned = len(drive.every(Spawn))
    drive(WorkerExit(joiners[0], 0, 9))
    assert [kill.worker for kill in drive.new(Kill)] == [joiners[1]]
    assert drive.phases(1)[-1] == "ready"
    drive.say("10.n1.0", "failed", generation=2, error="connection reset", survived=True)
    drive.say("10.n1.1", "failed", generation=2, error="connection reset", survived=True)
    assert drive.phases(1)[-1] == "failed"
    [detail] = [tell.said.detail for tell in drive.every(Tell) if tell.said.what == "failed"]
    assert joiners[0] in detail and "killed by signal 9" in detail
    drive.die_when_killed()
    drive.wait(1000.0)
    assert (drive.context.mode, drive.context.pieces, drive.context.batch) == (Mode.RUNNING, (BASE,), 64)
    assert len(drive.every(Spawn)) == spawned
    assert DropCompanions(1) in drive.done


@pytest.mark.parametrize("withdrawn", [False, True])
@pytest.mark.parametrize(("there", "named"), [(0, "n3"), (1, "11.n3.1")])
def test_who_is_not_ready_in_time_is_named(there: int, named: str, withdrawn: bool) -> None:
    """An agent that does not come, or a worker that stands still while it warms up; when selasticd takes the growth
    back, which it does first, or when the supervisor's own time for it is over."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    if there:
        drive.ready(drive.agents_up(COMPANION)[:1])
    if withdrawn:
        drive(ResizeCame(Resize(1, 10, (), (Shape(1, 1),), 1, 64, "grow_idle", 30.0, withdrawn=True)))
    else:
        drive.wait(1000.0)
    [detail] = [tell.said.detail for tell in drive.every(Tell) if tell.said.what in ("failed", "withdrawn")]
    assert detail.endswith(f"; not ready: {named}")


@pytest.mark.parametrize("missing", [[0, 1, 2, 3, 4], [4], [4, 99, -1, True, "x"]])
def test_a_joiner_that_stands_still_is_named(missing: list[object]) -> None:
    """It is there, so nobody has lost it: who waits knows its rank. Survivors, who come last, are not meant."""
    drive = Drive().up()
    agreed_grow(drive)
    drive.say("10.n1.0", "failed", generation=2, error="0 of 1 came", survived=True, missing=missing)
    [detail] = [tell.said.detail for tell in drive.every(Tell) if tell.said.what == "failed"]
    assert "0 of 1 came: 11.n3.0 did not come" in detail


def test_a_resize_that_came_instead_begins_though_a_joiner_of_the_first_one_dies() -> None:
    """It waits for the members' word on the first one, and that comes also when there is nothing to undo any more."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    joiners = drive.agents_up(COMPANION)
    drive.ready(joiners)
    drive.order(2, (BASE,), batch=32)
    drive(WorkerExit(joiners[0], 1))
    assert (drive.phases(1)[-1], drive.phases(2)) == ("failed", [])
    drive.say("10.n1.0", "called_off", generation=2)
    assert drive.phases(2) == ["accepted"] and drive.worlds(3)


def test_a_resize_that_waits_begins_after_the_restart_that_undoing_one_takes() -> None:
    """Members that had agreed on a world which another member has not left for start again: nothing begins before."""
    drive = Drive().up()
    drive.order(1, (BASE,), batch=128)
    drive.order(2, (BASE,), batch=32)
    drive.say("10.n1.0", "quiesced", generation=2, step=5, samples=50)
    drive.say("10.n2.0", "called_off", generation=2)
    assert (drive.phases(1)[-1], drive.phases(2), drive.context.mode) == ("withdrawn", [], Mode.RESTARTING)
    drive.settle()
    assert drive.phases(2)[0] == "accepted"


def test_members_that_do_not_go_on_are_started_again() -> None:
    """No word from the old world in the time that forming may take: everybody starts again from the checkpoint."""
    drive = Drive().up()
    joiners = agreed_grow(drive)
    drive.say("10.n1.0", "saved", step=5, samples=50, path="p")
    drive(WorkerExit(joiners[0], 0, 9))
    drive.wait(drive.context.limits.world_s - 1)
    assert drive.context.mode is Mode.RUNNING
    drive.wait(2.0)
    assert drive.phases(1)[-1] == "failed"
    drive.die_when_killed()
    drive.ready([spawn.worker for spawn in drive.every(Spawn)[-4:]])
    worlds = drive.worlds(3)
    assert {(m["size"], m["batch"], m["source"]) for m in worlds.values()} == {(4, 64, "checkpoint")}


def test_joiner_dies_just_after_the_first_step() -> None:
    """Its end was seen before the word of the first step: the world had come, and has broken like any other."""
    drive = Drive().up()
    joiners = agreed_grow(drive)
    drive(WorkerExit(joiners[0], 0, 9))
    drive.running(2)
    assert drive.phases(1)[-1] == "running"
    assert drive.context.mode is Mode.RESTARTING


def test_member_dies_while_the_old_world_goes_back() -> None:
    """Then there is no old world to go back to: a restart at once."""
    drive = Drive().up()
    joiners = agreed_grow(drive)
    drive(WorkerExit(joiners[0], 0, 9))
    drive(WorkerExit("10.n2.0", 0, 9))
    assert drive.phases(1)[-1] == "failed"
    assert drive.context.mode is Mode.RESTARTING


def agreed_exchange(drive: Drive) -> list[str]:
    """The base's second node is to leave and the companion to come, and all have agreed on a step; the joiners."""
    drive.order(1, (Piece(10, "base", ("n1",), 2),), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    joiners = drive.agents_up(COMPANION)
    drive.ready(joiners)
    drive.quiesce(drive.members())
    return joiners


def test_who_leaves_is_dismissed_with_the_new_worlds_first_step() -> None:
    """Not before: until then they could be needed again."""
    drive = Drive().up()
    agreed_exchange(drive)
    assert not [send for send in drive.every(Send) if send.message["type"] == "dismiss"]
    drive.running(2)
    sent = [(send.worker, send.message) for send in drive.new(Send) if send.message["type"] == "dismiss"]
    assert sent == [(f"10.n2.{gpu}", {"type": "dismiss", "generation": 2}) for gpu in (0, 1)]


def test_joiner_dies_where_others_leave() -> None:
    """All members are waited for, also who was to leave; nobody is started again, and they are the job's as before."""
    drive = Drive().up()
    joiners = agreed_exchange(drive)
    spawned = len(drive.every(Spawn))
    drive(WorkerExit(joiners[0], 0, 9))
    assert drive.phases(1)[-1] == "ready"
    for member in drive.members():
        drive.say(member, "failed", generation=2, error="connection reset", survived=True)
    drive.die_when_killed()
    drive.wait(1000.0)
    assert (drive.context.mode, drive.context.pieces, len(drive.every(Spawn))) == (Mode.RUNNING, (BASE,), spawned)
    assert [tell.said.what for tell in drive.every(Tell) if tell.said.resize == 1].count("failed") == 1
    drive(WorkerExit("10.n2.0", 0, 9))
    assert drive.context.mode is Mode.RESTARTING


@pytest.mark.parametrize("first", ["joiner", "leaver"])
def test_without_all_members_there_is_no_way_back(first: str) -> None:
    """A joiner and one of those who leave are lost: everybody starts again, at once."""
    drive = Drive().up()
    deaths = [WorkerExit(agreed_exchange(drive)[0], 0, 9), WorkerExit("10.n2.0", 0, 9)]
    for death in deaths if first == "joiner" else reversed(deaths):
        assert drive.context.mode is Mode.RUNNING
        drive(death)
    assert drive.context.mode is Mode.RESTARTING


def test_a_node_that_is_left_may_be_lost_before_the_first_step() -> None:
    """Slurm may take it as soon as its time is up, with its agent: those who stay train on."""
    drive = Drive().up().grown()
    drive(NodeTerminating((11, "n3")))
    drive.quiesce(drive.members())
    drive(AgentLost((11, "n3")))
    assert drive.context.mode is Mode.RUNNING
    drive.running(3)
    assert (drive.context.mode, drive.context.pieces) == (Mode.RUNNING, (BASE,))


def test_a_resize_that_waits_begins_when_the_members_are_back() -> None:
    """The change before it has failed, and nobody was started again."""
    drive = Drive().up()
    agreed_exchange(drive)
    drive.order(2, (BASE,), batch=32)
    assert not drive.phases(2)
    drive.say("10.n1.0", "failed", generation=2, error="connection reset", survived=True)
    assert (drive.phases(1)[-1], drive.phases(2)) == ("failed", ["accepted"])


def test_a_newer_resize_crossing_the_agreement_of_a_shrink() -> None:
    """The shrink has come first; what was to replace it takes the node back. Nobody is started again."""
    drive = Drive().up()
    left = Piece(10, "base", ("n1",), 2)
    drive.order(1, (left,))
    drive.order(2, (BASE,), batch=32)
    drive.say("10.n1.0", "quiesced", generation=2, step=5, samples=50)
    drive.running(2)
    assert (drive.phases(1)[-1], drive.phases(2), drive.context.pieces) == (
        "running",
        ["accepted", "granted"],
        (left,),
    )
    assert drive.context.mode is Mode.RUNNING


def test_world_that_survivors_gave_up() -> None:
    """The coming world was incomplete and the old one goes on: the resize failed, the training did not."""
    drive = Drive().up()
    drive.order(1, (BASE,), batch=96)
    drive.say("10.n1.0", "failed", generation=2, error="3 of 4 arrived", survived=True)
    assert drive.phases(1)[-1] == "failed"
    assert (drive.context.mode, drive.context.batch) == (Mode.RUNNING, 64)


def test_a_world_that_was_called_off_does_not_outlive_a_restart() -> None:
    """A late word of it brings back no workers that are gone."""
    drive = Drive().up()
    drive.order(1, (BASE,), batch=128)
    drive.order(2, (BASE,), batch=32)
    drive(WorkerExit(drive.members()[0], 0, 9))
    drive.die_when_killed()
    drive.settle()
    drive.say(drive.members()[0], "quiesced", generation=2)
    drive.say(drive.members()[0], "done", step=9, samples=9, epoch=1)
    assert drive.context.change is None and drive.context.mode is Mode.FINISHING


@pytest.mark.parametrize("again", [False, True])
def test_a_size_that_does_not_fit_into_memory_is_not_tried_twice(again: bool) -> None:
    """Its members go back, and selasticd is told why; the next order of that size fails at once, without any process,
    unless less is to be computed at a time. Nobody is started again."""
    drive = Drive().up()
    joiners = agreed_grow(drive)
    drive.say("10.n1.0", "no_room", generation=2, error="world 2 does not fit: CUDA out of memory", again=again)
    drive(WorkerExit(joiners[0], 75))
    for name in ("10.n1.0", "10.n1.1"):
        drive.say(name, "failed", generation=2, error="another rank has gone back", survived=True)
    drive.die_when_killed()
    drive.order(2, (BASE,), (SHAPE,))
    assert drive.phases(1)[-1] == "failed"
    assert drive.phases(2) == (["accepted", "submitted"] if again else ["failed"])
    details = [tell.said.detail for tell in drive.every(Tell) if tell.said.what == "failed"]
    assert len(details) == (1 if again else 2)
    assert all("world 2 does not fit: CUDA out of memory" in detail for detail in details)
    assert [detail.startswith(TOO_LARGE) for detail in details] == [not again] * len(details)
    assert drive.context.mode is Mode.RUNNING


def test_a_size_whose_first_step_ends_the_script_for_memory_is_left_for_good() -> None:
    """Where there is no way back in the processes: all start again on what the job had, not at that size until
    it is given up; and the next order of that size fails at once."""
    drive = Drive().up()
    agreed_grow(drive)
    drive.say("10.n1.0", "no_room", generation=2, error="OutOfMemoryError: CUDA out of memory", again=False)
    drive.say("10.n1.0", "failed", generation=2, error="OutOfMemoryError: CUDA out of memory")
    drive(WorkerExit("10.n1.0", 1, 0, True, "OutOfMemoryError at train.py:7"))
    drive.die_when_killed()
    drive.settle()
    assert drive.phases(1)[-1] == "failed"
    assert drive.context.mode is not Mode.ENDED and drive.context.pieces == (BASE,)
    drive.order(2, (BASE,), (SHAPE,))
    drive.settle()
    details = [tell.said.detail for tell in drive.every(Tell) if tell.said.what == "failed"]
    assert len(details) == 2 and all("CUDA out of memory" in detail for detail in details), details
    assert all(detail.startswith(TOO_LARGE) for detail in details), details
