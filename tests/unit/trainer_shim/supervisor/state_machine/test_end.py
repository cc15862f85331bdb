"""How the supervisor ends a job, checkpoints and reports included, without any process."""

from __future__ import annotations

import pytest
from supervisor_harness import BASE, COMPANION, SHAPE, Drive

from slurm_elastic.protocol.messages import Piece
from slurm_elastic.trainer_shim.allocation.pieces.actions import (
    DetachAgents,
    DropCompanions,
    LaunchAgents,
    Print,
    Tell,
)
from slurm_elastic.trainer_shim.allocation.pieces.events import (
    AgentLost,
    DirectoryTaken,
    JobTerminating,
    NodeTerminating,
    StepEnded,
)
from slurm_elastic.trainer_shim.control.worker_client import EXIT_LOST
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import Send
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode, RunLimits
from slurm_elastic.trainer_shim.supervisor.state_machine.events import WorkerExit
from slurm_elastic.trainer_shim.supervisor.state_machine.job_end import UNSAVED_CODE


def test_all_done_is_zero() -> None:
    """The job ends when every worker of the last world has exited by itself."""
    drive = Drive().up()
    for worker in drive.members():
        drive.say(worker, "done", step=9, samples=9, epoch=1)
        assert not drive.exits()
        drive(WorkerExit(worker, 0))
    assert drive.exits() == [0]
    last = drive.new(Tell)[-1].said
    assert (last.what, last.step, last.samples) == ("finished", 9, 9)


def test_selasticd_hears_once_that_the_job_is_about_to_end() -> None:
    """Of all the notices of a grace, so that it orders nothing that would be refused."""
    drive = Drive().up()
    drive(NodeTerminating((10, "n1")))
    drive(NodeTerminating((10, "n2")))
    drive(JobTerminating(60.0, stop=False))
    assert drive.phases(0).count("ending") == 1


def test_script_that_does_not_train_ends_well() -> None:
    """A script that exits with 0 before any loop is no failure."""
    drive = Drive()
    for worker in drive.agents_up(BASE):
        drive(WorkerExit(worker, 0))
    assert drive.exits() == [0]


def test_workers_that_wait_for_one_that_left_do_not_wait_for_ever() -> None:
    """One rank has ended before the training while the others are ready for it."""
    drive = Drive()
    workers = drive.agents_up(BASE)
    drive.ready(workers[:3])
    drive(WorkerExit(workers[3], 0))
    assert drive.exits() == [1]


def test_finish_while_a_companion_is_awaited() -> None:
    """The training ends first: the resize is withdrawn, and a later resize too."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive.say("10.n1.0", "done", step=9, samples=9, epoch=1)
    assert drive.phases(1)[-1] == "withdrawn"
    assert DropCompanions(1) in drive.fresh
    drive.order(2, (BASE,), batch=32)
    assert drive.phases(2) == ["withdrawn"]


def test_finish_right_after_the_agreement() -> None:
    """The last step was the agreed one: the new world has nothing to do, ends well, and no one waits for its step."""
    drive = Drive().up()
    left = Piece(10, "base", ("n1",), 2)
    drive.order(1, (left,))
    drive.quiesce(drive.members())
    for worker in ("10.n2.0", "10.n2.1"):
        drive(WorkerExit(worker, 0))
    for worker in ("10.n1.0", "10.n1.1"):
        drive.say(worker, "done", step=5, samples=50, epoch=1)
        drive(WorkerExit(worker, 0))
    assert drive.exits() == [0]
    assert drive.phases(1)[-1] == "running"


def test_hurry_with_stop_ends_after_the_checkpoint() -> None:
    """SIGTERM: everybody is told, and with the checkpoint on disk the job ends."""
    drive = Drive().up()
    drive(JobTerminating(25.0, stop=True, code=143))
    assert {send.worker for send in drive.new(Send)} == set(drive.members())
    assert all(send.message["stop"] and send.message["deadline_s"] == 25.0 for send in drive.new(Send))
    assert not drive.exits()
    drive.say("10.n1.0", "saved", step=7, samples=70, path="p")
    assert drive.exits() == [143]
    assert [tell.said.exit_code for tell in drive.new(Tell) if tell.said.what == "finished"] == [143]


@pytest.mark.parametrize("twice", [False, True])
def test_hurry_does_not_wait_for_ever(twice: bool) -> None:
    """No checkpoint in time, or a second Ctrl-C: the job ends all the same."""
    drive = Drive().up()
    drive(JobTerminating(25.0, stop=True, code=130))
    if twice:
        drive(JobTerminating(25.0, stop=True, code=130))
    else:
        drive.wait(25.0)
    assert drive.exits() == [130]


def test_a_companion_that_is_lost_does_not_stop_the_last_checkpoint() -> None:
    """Its step dies, the world breaks: rank 0 writes what it has by itself, and is left alone until then."""
    drive = Drive().up().grown()
    drive(JobTerminating(25.0, stop=True, code=143))
    drive(AgentLost((11, "n3")))
    drive(WorkerExit("10.n2.0", EXIT_LOST))
    drive.wait(5.0)
    drive(NodeTerminating((11, "n3")))
    assert not drive.exits()
    drive.say("10.n1.0", "saved", step=7, samples=70, path="p")
    assert drive.exits() == [143]


@pytest.mark.parametrize(("said", "signal", "alone"), [(False, 0, True), (True, 0, False), (False, 9, False)])
def test_a_worker_that_leaves_the_loop_alone_ends_the_job(said: bool, signal: int, alone: bool) -> None:
    """The others' world breaks, and to start again would train more than its script says. Not where the training was
    over, or where somebody was killed."""
    drive = Drive().up()
    first, second, *_ = drive.members()
    drive.say(first, "done", step=9, samples=9, epoch=1, finished=said)
    drive(WorkerExit(first, 0))
    drive(WorkerExit(second, 0 if signal else EXIT_LOST, signal))
    drive.wait(5.0)
    assert drive.exits() == [1] * alone
    text = "\n".join(line.text for line in drive.every(Print))
    assert ("starting again" in text) != alone and (f"worker {first} has left the job's loop" in text) == alone


def test_without_rank_0_nothing_more_is_waited_for() -> None:
    """It is the one that writes."""
    drive = Drive().up()
    drive(JobTerminating(25.0, stop=True, code=143))
    drive(WorkerExit("10.n1.0", 0, 9))
    assert drive.exits() == [143]


def test_a_training_that_is_over_may_write_its_last_checkpoint() -> None:
    """SIGTERM between the last step and the end of the script: it is not killed over it."""
    drive = Drive().up()
    drive.say("10.n1.1", "done", step=9, samples=9, epoch=1)
    drive(JobTerminating(25.0, stop=True, code=143))
    assert not drive.exits()
    drive.say("10.n1.0", "saved", step=9, samples=9, path="p")
    assert drive.exits() == [143]


def test_agents_of_companions_hang_on_no_srun_of_the_base_job() -> None:
    """Once all of a launch are there; the base's own srun stays."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    assert not drive.every(DetachAgents)
    drive.grown(2)
    [launch] = [launch for launch in drive.every(LaunchAgents) if launch.piece == COMPANION]
    assert drive.every(DetachAgents) == [DetachAgents(launch.number)]
    assert not drive(StepEnded(launch.number, -9))


def test_sigterm_that_comes_again_changes_nothing() -> None:
    """Slurm sends it more than once, and the parent of the supervisor passes it on."""
    drive = Drive().up()
    for _ in range(3):
        drive(JobTerminating(25.0, stop=True, code=143))
    assert not drive.exits()
    drive.wait(25.0)
    assert drive.exits() == [143]


def test_hurry_before_any_world_ends_at_once() -> None:
    """There is nothing to save yet."""
    drive = Drive()
    drive(JobTerminating(25.0, stop=True, code=143))
    assert drive.exits() == [143]


def test_hurry_without_stop_trains_on() -> None:
    """SIGUSR1: a checkpoint, no more resizes, and Slurm ends the job when it does."""
    drive = Drive().up()
    drive(JobTerminating(60.0, stop=False))
    drive.say("10.n1.0", "saved", step=7, samples=70, path="p")
    assert drive.context.mode is Mode.RUNNING
    drive.order(1, (BASE,), batch=32)
    assert drive.phases(1) == ["withdrawn"]


def test_one_notice_that_reaches_many_processes_is_one_checkpoint() -> None:
    """Slurm sends it to each node of each step, and to the batch script. With that on disk the next one is another."""
    drive = Drive().up()
    assert [bool(drive(JobTerminating(60.0, stop=False))) for _ in range(3)] == [True, False, False]
    drive.say("10.n1.0", "saved", step=7, samples=70, path="p")
    assert drive(JobTerminating(60.0, stop=False))


def test_hurry_without_stop_before_any_world_is_remembered() -> None:
    """SIGUSR1 while workers warm up: the checkpoint is written once there is something to write."""
    drive = Drive()
    drive(JobTerminating(60.0, stop=False))
    assert not drive.new(Send)
    drive.up()
    hurried = [send.worker for send in drive.new(Send) if send.message["type"] == "hurry"]
    assert hurried == list(drive.members())


def test_checkpoints_are_asked_for_in_time() -> None:
    """Rank 0 is asked when the last checkpoint is too old, and only then."""
    drive = Drive(limits=RunLimits(checkpoint_s=100.0)).up()
    drive.wait(60.0)
    drive.say("10.n1.0", "saved", step=7, samples=70, path="p")
    assert not drive.wait(60.0)
    assert drive.wait(60.0) == [Send("10.n1.0", {"type": "checkpoint"})]


def test_an_end_that_is_in_no_checkpoint_is_no_success() -> None:
    """One rank says that the last checkpoint could not be written: the job ends with a code of its own, and its last
    line says where a rerun begins."""
    drive = Drive().up()
    drive.say("10.n1.0", "saved", step=3, samples=30, path="p")
    for worker in drive.members():
        drive.say(worker, "done", step=5, samples=50, finished=True, unsaved="full" if worker == "10.n1.0" else "")
    for worker in drive.members():
        drive(WorkerExit(worker, 0))
    assert drive.exits() == [UNSAVED_CODE]
    assert "written: full; run again, this begins at the checkpoint of step 3" in drive.every(Print)[-1].text


def test_a_training_without_checkpoints_is_told_once() -> None:
    """Three intervals without one: a line with the reason and where a restart would begin; not again before there has
    been one; a new world begins no new count."""

    def told() -> int:
        return sum("no checkpoint for" in line.text for line in drive.every(Print))

    drive = Drive(limits=RunLimits(checkpoint_s=600.0)).up()
    drive.say("10.n1.0", "unsaved", error="the disk is full")
    drive.wait(599.0)
    drive.grown()
    for _ in range(2):
        drive.wait(600.0)
    assert told() == 0
    drive.wait(600.0)
    assert told() == 1
    assert "(the disk is full); a restart goes back to the beginning" in drive.new(Print)[-1].text
    for _ in range(4):
        drive.wait(600.0)
    assert told() == 1
    drive.say("10.n1.0", "saved", step=7, samples=70, path="p")
    for _ in range(3):
        drive.wait(600.0)
    assert told() == 2


def test_a_directory_that_another_supervisor_has_taken_is_left_alone() -> None:
    """Slurm has started the job elsewhere, say: the end comes at once, and asks for no checkpoint."""
    drive = Drive().up()
    drive(DirectoryTaken())
    assert drive.exits() == [EXIT_LOST]
    assert not [action for action in drive.new(Send) if action.message["type"] in ("hurry", "checkpoint")]
