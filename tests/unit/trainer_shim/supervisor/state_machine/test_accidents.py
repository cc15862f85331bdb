"""The supervisor's decisions about workers and nodes that die, without any process."""

from __future__ import annotations

import pytest
from supervisor_harness import BASE, COMPANION, SHAPE, Drive

from slurm_elastic.trainer_shim.allocation.pieces.actions import (
    CancelCompanion,
    LaunchAgents,
    Print,
    QuitAgent,
    StartOver,
    Tell,
)
from slurm_elastic.trainer_shim.allocation.pieces.events import AgentLost, AgentUp, CompanionGranted, StepEnded
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import Kill, Spawn
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode, RunLimits
from slurm_elastic.trainer_shim.supervisor.state_machine.events import WorkerExit, WorkerLost


def test_killed_worker_restarts_everybody_once() -> None:
    """The rest is killed, new workers start when the last old one is dead, from the checkpoint."""
    drive = Drive().up()
    drive.say("10.n1.0", "saved", step=5, samples=50, path="p")
    drive(WorkerExit("10.n2.1", 0, 9))
    assert {kill.worker for kill in drive.new(Kill)} == {"10.n1.0", "10.n1.1", "10.n2.0"}
    drive(WorkerExit("10.n1.0", 0, 9))
    drive(WorkerExit("10.n1.1", 0, 9))
    assert not drive.new(Spawn)
    drive(WorkerExit("10.n2.0", 0, 9))
    assert [spawn.worker for spawn in drive.new(Spawn)] == ["10.n1.0.2", "10.n1.1.2", "10.n2.0.2", "10.n2.1.2"]


def test_the_way_back_is_a_checkpoint_that_verified() -> None:
    """The newest of step 64 was damaged, the workers began at 50: the next failure goes back there, and progress from
    there on counts as such."""
    drive = Drive(saved_step=64)
    drive.ready(drive.agents_up(BASE))
    drive.running(1, step=51)
    for saved in (None, 60):
        if saved:
            drive.say(next(iter(drive.members())), "saved", step=saved, samples=1, path="p")
        drive(WorkerExit(next(iter(drive.members())), 0, 9))
        said = f"starting again from the checkpoint of step {saved or 50}"
        assert any(line.text.endswith(said) for line in drive.new(Print)), drive.fresh
        drive.die_when_killed()
        drive.ready([spawn.worker for spawn in drive.every(Spawn)[-4:]])
        drive.running(drive.context.generation, step=(saved or 50) + 1)


def test_lost_companion_without_notice() -> None:
    """Its workers are gone with it: a new generation on what is left. It is given back at once: its node may be only
    cut off, and hold it for nothing."""
    drive = Drive().up().grown()
    drive(AgentLost((11, "n3")))
    assert CancelCompanion(11) in drive.fresh
    assert drive.context.mode is Mode.RESTARTING
    drive.die_when_killed()
    drive.ready([spawn.worker for spawn in drive.every(Spawn)[-4:]])
    assert drive.context.pieces == (BASE,)
    drive.running(3)
    assert drive.every(Tell)[-1].said.pieces == (BASE,)


def test_lost_agent_of_the_batch_host_is_launched_again() -> None:
    """The batch host is what a job never gives up."""
    drive = Drive().up()
    drive(AgentLost((10, "n1")))
    assert [launch.piece.nodes for launch in drive.new(LaunchAgents)] == [("n1",)]
    drive.die_when_killed()
    assert drive.context.mode is Mode.RESTARTING
    drive(AgentUp((10, "n1"), ("0", "1")))
    assert len(drive.new(Spawn)) == 4


def test_an_agent_of_another_build_on_the_batch_host_starts_over() -> None:
    """slurm-elastic was upgraded under the job, and its first agent lost: the next supervisor is of that build too."""
    drive = Drive().up()
    drive(AgentLost((10, "n1")))
    drive.die_when_killed()
    drive(AgentUp((10, "n1"), ("0", "1"), other_build="9.9, build 1234"))
    why = "node n1 has another slurm-elastic (9.9, build 1234) than this job runs"
    assert drive.new(StartOver) == [StartOver(why)] and not drive.new(Spawn)


def test_the_end_of_an_old_launch_says_nothing_about_the_new_one() -> None:
    """The srun of a lost agent ends later than its successor begins."""
    drive = Drive().up()
    first = drive.every(LaunchAgents)[0].number
    drive(AgentLost((10, "n1")))
    drive(AgentLost((10, "n2")))
    drive(StepEnded(first, 137))
    assert drive.context.mode is Mode.RESTARTING
    assert not drive.exits()


def test_failures_without_progress_are_bounded_and_progress_resets_them() -> None:
    """Three failures in a row end the job with the worker's code; a newer checkpoint makes it a new row."""
    drive = Drive().up()
    for failure in range(5):
        if failure == 2:
            drive.say(drive.members()[0], "saved", step=100, samples=1, path="p")
        drive(WorkerExit(drive.members()[0], 3, raised=True))
        if drive.exits():
            break
        drive.die_when_killed()
        drive.ready([spawn.worker for spawn in drive.every(Spawn)[-4:]])
        drive.running(drive.context.generation)
    assert drive.exits() == [3]
    assert failure == 4


@pytest.mark.parametrize(
    ("errors", "steps", "ends_at"),
    [
        (("ValueError at t.py:3",) * 4, (10, 11, 12, 13), 2),
        (("ValueError at t.py:3",) * 4, (10, 15, 20, 25), None),
        (("ValueError at t.py:3", "ValueError at t.py:4") * 2, (10, 11, 12, 13), 3),
        (("",) * 4, (10, 11, 12, 13), 3),
        (("ValueError at t.py:3",) * 4, (10, 15, 16, 30), 3),
    ],
    ids=["the same", "with progress", "two in turn", "files that fail", "progress, then none"],
)
def test_the_same_error_twice_without_progress_ends_the_job(
    errors: tuple[str, ...], steps: tuple[int, ...], ends_at: int | None
) -> None:
    """A step or two that got into a checkpoint are no progress: such a job was started again for ever."""
    drive = Drive().up()
    for failure, (error, step) in enumerate(zip(errors, steps, strict=True), start=1):
        drive.say(drive.members()[0], "saved", step=step, samples=1, path="p")
        drive(WorkerExit(drive.members()[0], 3, raised=True, error=error))
        if drive.exits():
            assert (failure, drive.exits()) == (ends_at, [3])
            return
        drive.die_when_killed()
        drive.ready([spawn.worker for spawn in drive.every(Spawn)[-4:]])
        drive.running(drive.context.generation)
    assert ends_at is None


def test_a_step_is_progress_where_no_script_has_failed() -> None:
    """Of a slow training: companions that are lost, one after each step, end no job."""
    drive = Drive().up()
    for loss in range(1, 6):
        drive.grown(loss)
        drive.say(drive.members()[0], "saved", step=loss, samples=1, path="p")
        drive(AgentLost((11, "n3")))
        drive.die_when_killed()
        assert not drive.exits()
        drive.ready([spawn.worker for spawn in drive.every(Spawn)[-4:]])
        drive.running(drive.context.generation)
        assert drive.context.pieces == (BASE,)


def test_the_worker_that_only_noticed_does_not_hide_the_culprit() -> None:
    """Code 75 means that a world broke; the exit that broke it is waited for a moment."""
    drive = Drive().up()
    drive(WorkerExit("10.n1.0", 75))
    assert not drive.new(Kill)
    drive(WorkerExit("10.n2.0", 0, 11, tail=("segfault",)))
    said = " ".join(action.text for action in drive.new(Print))
    assert "10.n2.0 was killed by signal 11" in said
    assert "segfault" in said


def test_several_workers_that_only_noticed_are_no_end() -> None:
    """When one rank dies several others leave with code 75, before its own end is told: none of them ends the job."""
    drive = Drive().up()
    for worker in ("10.n1.0", "10.n1.1", "10.n2.1"):
        drive(WorkerExit(worker, 75))
        assert not drive.exits()
    drive(WorkerExit("10.n2.0", 0, 9))
    assert drive.context.mode is Mode.STARTING
    assert not drive.exits()


def test_a_broken_world_without_a_culprit_restarts() -> None:
    """If nobody else has died, the broken world is reason enough."""
    drive = Drive().up()
    drive(WorkerExit("10.n1.0", 75))
    drive.wait(2.0)
    assert drive.context.mode is Mode.RESTARTING


def test_script_error_before_any_training_is_final() -> None:
    """A typo is not tried three times; its code is the job's."""
    drive = Drive()
    workers = drive.agents_up(BASE)
    drive(WorkerExit(workers[2], 1, raised=True))
    assert drive.exits() == [1]


def test_what_the_shim_refuses_is_final() -> None:
    """It would be refused again; what failed on another rank may go well the next time."""
    drive = Drive().up()
    drive(WorkerExit("10.n1.0", 1, raised=True, error="TrainingError at job.py:7"))
    assert drive.exits() == [1]
    drive = Drive().up()
    drive(WorkerExit("10.n1.0", 1, raised=True, error="OtherRankFailed at once.py:7"))
    assert drive.context.mode is Mode.RESTARTING


def test_script_that_exits_on_purpose_is_final() -> None:
    """sys.exit(4) in the middle of the training is the script's decision."""
    drive = Drive().up()
    drive(WorkerExit("10.n1.0", 4))
    assert drive.exits() == [4]


def test_error_after_the_training_is_final() -> None:
    """What follows the loop would fail again: no restart."""
    drive = Drive().up()
    for worker in drive.members():
        drive.say(worker, "done", step=9, samples=9, epoch=1, finished=True)
    drive(WorkerExit("10.n1.0", 1, raised=True))
    assert drive.exits() == [1]


def test_worker_that_fails_and_does_not_end_is_killed() -> None:
    """The others wait for it in the first step of a new world, and see only that its process is gone; then the old
    world's nodes go on. One whose training is over has its time for exit handlers."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive.ready(drive.agents_up(COMPANION))
    drive.quiesce(drive.members())
    drive.say("10.n1.1", "failed", generation=2, error="OutOfMemoryError: 2 GiB")
    assert not drive.wait(drive.context.limits.kill_s - 1)
    drive.wait(2.0)
    assert Kill("10.n1.1", (10, "n1")) in drive.fresh
    drive(WorkerExit("10.n1.1", 0, signal=9))
    assert drive.context.mode is Mode.RESTARTING and drive.context.pieces == (BASE,)
    assert any("OutOfMemoryError: 2 GiB" in line.text for line in drive.every(Print))
    drive = Drive().up()
    drive.say("10.n1.1", "done", step=9, finished=True)
    drive.say("10.n1.1", "failed", generation=1, error="ValueError: later")
    drive.wait(drive.context.limits.kill_s + 1)
    assert not drive.every(Kill)


def test_worker_that_lost_its_line_is_killed() -> None:
    """A worker that can no longer be told anything would hang the next world."""
    drive = Drive().up()
    drive(WorkerLost("10.n2.0"))
    drive.wait(RunLimits().kill_s)
    assert [kill.worker for kill in drive.new(Kill)] == ["10.n2.0"]


def test_node_whose_workers_do_not_die_is_left() -> None:
    """A process in uninterruptible sleep must not hold the job for ever."""
    drive = Drive().up()
    drive(WorkerExit("10.n1.0", 0, 9))
    drive(WorkerExit("10.n1.1", 0, 9))
    drive(WorkerExit("10.n2.0", 0, 9))
    drive.wait(RunLimits().kill_s)
    assert QuitAgent((10, "n2")) in drive.fresh
    assert [spawn.agent for spawn in drive.new(Spawn)] == [(10, "n1"), (10, "n1")]
