"""How the supervisor brings a job's first world about, without any process."""

from __future__ import annotations

import pytest
from supervisor_harness import BASE, COMPANION, SHAPE, Drive

from slurm_elastic.protocol.messages import Piece
from slurm_elastic.trainer_shim.allocation.pieces.actions import LaunchAgents, QuitAgent
from slurm_elastic.trainer_shim.allocation.pieces.events import AgentLost, AgentUp, CompanionGranted, Event, StepEnded
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import RecordGeneration, Send
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode, RunLimits, Worker, ranked
from slurm_elastic.trainer_shim.supervisor.state_machine.events import WorkerExit, WorkerMessage


def test_first_world_forms_when_the_last_worker_is_ready() -> None:
    """Nobody gets a world before everybody is ready; ranks follow pieces, nodes and GPUs, rank 0 on the batch host."""
    drive = Drive()
    workers = drive.agents_up(BASE)
    drive.ready(workers[:3])
    assert not drive.worlds(1)
    drive.ready(workers[3:])
    worlds = drive.worlds(1)
    assert [worlds[name]["rank"] for name in ("10.n1.0", "10.n1.1", "10.n2.0", "10.n2.1")] == [0, 1, 2, 3]
    assert {message["source"] for message in worlds.values()} == {"fresh"}
    assert {message["size"] for message in worlds.values()} == {4}


def test_a_world_knows_whether_it_is_on_one_host() -> None:
    """Only then its listeners can be on the loopback."""
    for nodes in (["n1"], ["n1", "n2"]):
        base = Piece(10, "base", tuple(nodes), 2)
        drive = Drive(base)
        drive.ready(drive.agents_up(base))
        assert {message["one_host"] for message in drive.worlds(1).values()} == {len(nodes) == 1}


def test_generation_is_on_disk_before_any_worker_hears_of_it() -> None:
    """A supervisor that is started again can never use a generation twice."""
    drive = Drive(generation=7)
    drive.ready(drive.agents_up(BASE))
    kinds = [type(action) for action in drive.fresh]
    assert kinds.index(RecordGeneration) < kinds.index(Send)
    assert set(drive.worlds(8)) == set(drive.members())


def test_store_is_relayed_from_rank_0_only() -> None:
    """A store message of anybody but the coming rank 0, or for another generation, goes nowhere."""
    drive = Drive()
    drive.ready(drive.agents_up(BASE))
    assert not drive.say("10.n2.0", "store", generation=1, host="h", port=1)
    assert not drive.say("10.n1.0", "store", generation=2, host="h", port=1)
    assert len([send for send in drive.say("10.n1.0", "store", generation=1, host="h", port=1)]) == 4


def test_resumes_from_a_checkpoint() -> None:
    """With a checkpoint in the job directory the first world starts from it."""
    drive = Drive(saved_step=40)
    drive.ready(drive.agents_up(BASE))
    assert {message["source"] for message in drive.worlds(1).values()} == {"checkpoint"}


def test_silent_node_is_left_out() -> None:
    """A node whose agent does not come in time is done without; training starts on the rest."""
    drive = Drive()
    drive.ready(drive.agents_up(Piece(10, "base", ("n1",), 2)))
    assert not drive.worlds(1)
    drive.wait(RunLimits().agents_s)
    assert set(drive.worlds(1)) == {"10.n1.0", "10.n1.1"}
    assert [piece.nodes for piece in drive.context.pieces] == [("n1",)]


def test_batch_host_is_tried_again_a_bounded_number_of_times() -> None:
    """Without the batch host's agent there is no job: it is launched again, then the job fails."""
    drive = Drive()
    for _ in range(RunLimits().failures):
        drive(StepEnded(drive.every(LaunchAgents)[-1].number, 1))
    assert drive.exits() == [1]
    assert len(drive.every(LaunchAgents)) == RunLimits().failures


BUSY = ("srun: error: Unable to create step for job 10: Requested nodes are busy",)


def test_a_step_that_slurm_could_not_create_is_asked_for_again() -> None:
    """While slurmctld comes back it has no step to give: that is no failure of the job, and is tried again, for the
    nodes that are still missing, until the time for their agents is over."""
    drive = Drive()
    drive.agents_up(Piece(10, "base", ("n1",), 2))
    for _ in range(2 * RunLimits().failures):
        number = drive.every(LaunchAgents)[-1].number
        assert not [a for a in drive(StepEnded(number, 1, BUSY)) if isinstance(a, LaunchAgents)]  # not in a hurry
        drive.wait(3.0)
        assert [(a.piece.nodes, a.number) for a in drive.new(LaunchAgents)] == [(("n2",), number + 1)]
    drive.ready([*drive.agents_up(Piece(10, "base", ("n2",), 2)), "10.n1.0", "10.n1.1"])
    assert len(drive.worlds(1)) == 4 and drive.exits() == []


def test_a_step_that_slurm_never_creates_ends_the_waiting() -> None:
    """Trying again does not prolong the time after which a job without agents is given up."""
    drive = Drive()
    seconds = 0.0
    while not drive.exits() and seconds < 10 * RunLimits().agents_s:
        drive(StepEnded(drive.every(LaunchAgents)[-1].number, 1, BUSY))
        drive.wait(5.0)
        seconds += 5.0
    assert drive.exits() == [1] and seconds <= RunLimits().failures * (RunLimits().agents_s + 10.0)


def test_a_companions_step_is_asked_for_again() -> None:
    """The same for a resize: it is not given up over one answer, and its own time bounds it."""
    drive = Drive().up()
    drive.order(1, drive.context.pieces, (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive(StepEnded(drive.new(LaunchAgents)[0].number, 1, BUSY))
    drive.wait(3.0)
    assert [launch.piece for launch in drive.new(LaunchAgents)] == [COMPANION]
    drive.ready(drive.agents_up(COMPANION))
    drive.running(drive.context.generation)
    assert drive.phases(1)[-1] == "running"


def test_agent_nobody_waits_for_is_sent_away() -> None:
    """An agent that was given up, or is none of ours, is told to quit: it must not hold nodes."""
    drive = Drive().up()
    assert drive(AgentUp((99, "n9"), ("0",))) == [QuitAgent((99, "n9"))]


def test_silence_ends_the_job() -> None:
    """A job none of whose agents ever comes does not hold its nodes until its time limit."""
    drive = Drive()
    for _ in range(20):
        drive.wait(RunLimits().agents_s)
    assert drive.exits() == [1]


def test_rank_order_is_stable() -> None:
    """Ranks follow the pieces' order whatever order the workers are in."""
    workers = [
        Worker(f"{key[0]}.{key[1]}.{index}", key, index)
        for key in ((11, "n3"), (10, "n2"), (10, "n1"))
        for index in (1, 0)
    ]
    names = ranked(workers, (BASE, COMPANION))
    assert names == ("10.n1.0", "10.n1.1", "10.n2.0", "10.n2.1", "11.n3.0", "11.n3.1")


GONE, READY = AgentLost((11, "n3")), WorkerMessage("10.n2.1.2", {"type": "ready"})


@pytest.mark.parametrize("then", [GONE, READY], ids=["a node goes", "a worker is ready"])
def test_nothing_is_formed_or_ended_while_a_workers_end_is_unexplained(then: Event) -> None:
    """One that lost its connection while the others warmed up: a restart follows, also when a node that was sent away
    goes, or another worker gets ready, in the meantime."""
    drive = Drive().up().grown()
    drive.order(2, (BASE,))
    drive.running(drive.context.generation)  # the companion's agent is told to quit, and takes its time
    drive(WorkerExit("10.n2.1", 0, 9))
    drive.die_when_killed()
    drive.ready(["10.n1.1.2", "10.n2.0.2", *(["10.n2.1.2"] if then is GONE else [])])
    drive(WorkerExit("10.n1.0.2", 75))
    assert drive(then) == [] and drive.exits() == []
    drive.wait(1.0)
    assert drive.context.mode is Mode.RESTARTING
