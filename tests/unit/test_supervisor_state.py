"""The supervisor's decisions, without any process: what it does about everything that can happen to a job."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.trainer_shim import fleet as fleets
from slurm_elastic.trainer_shim.fleet import Mode
from slurm_elastic.trainer_shim.supervisor_events import (
    Action,
    AgentKey,
    AgentLost,
    AgentUp,
    CompanionGranted,
    CompanionRefused,
    DirectiveCame,
    DropCompanions,
    Event,
    Exit,
    Forward,
    Hurry,
    Kill,
    LaunchAgents,
    Notice,
    QuitAgent,
    Remember,
    Say,
    Send,
    Spawn,
    StepEnded,
    SubmitCompanion,
    Tell,
    WorkerExit,
    WorkerLost,
    WorkerMessage,
)
from slurm_elastic.trainer_shim.supervisor_state import Limits, Machine
from slurm_elastic.trainer_shim.wire import Directive, Piece, Shape

BASE = Piece(10, "base", ("n1", "n2"), 2)
COMPANION = Piece(11, "companion", ("n3",), 2)
SHAPE = Shape(1, 2)


class Drive:
    """A machine, its clock, and everything it has done; plays the cooperative rest of the world on request."""

    def __init__(self, *pieces: Piece, **options: Any) -> None:
        self.machine = Machine(pieces or (BASE,), options.pop("batch", 64), **options)
        self.now = 0.0
        self.done: list[Action] = []
        self.fresh: list[Action] = []
        self._take(self.machine.start(0.0))

    def _take(self, actions: list[Action]) -> list[Action]:
        self.fresh = actions
        self.done += actions
        return actions

    def __call__(self, event: Event) -> list[Action]:
        return self._take(self.machine.handle(event, self.now))

    def wait(self, seconds: float) -> list[Action]:
        self.now += seconds
        return self._take(self.machine.tick(self.now))

    def say(self, worker: str, kind: str, **fields: Any) -> list[Action]:
        return self(WorkerMessage(worker, {"type": kind, **fields}))

    def every(self, kind: type[Any]) -> list[Any]:
        return [action for action in self.done if isinstance(action, kind)]

    def new(self, kind: type[Any]) -> list[Any]:
        return [action for action in self.fresh if isinstance(action, kind)]

    def phases(self, directive: int) -> list[str]:
        return [action.phase.phase for action in self.every(Tell) if action.phase.directive == directive]

    def worlds(self, generation: int) -> dict[str, dict[str, Any]]:
        """worker -> its world message of that generation."""
        sent = [send for send in self.every(Send) if send.message["type"] == "world"]
        return {send.worker: send.message for send in sent if send.message["generation"] == generation}

    def members(self) -> tuple[str, ...]:
        assert self.machine.world is not None
        return self.machine.world.members

    def agents_up(self, piece: Piece) -> list[str]:
        """Agents of a piece connect; the workers then spawned on them."""
        spawned = []
        for node in piece.nodes:
            self(AgentUp((piece.slurm_job_id, node), tuple(str(gpu) for gpu in range(piece.gpus_per_node))))
            spawned += [spawn.worker for spawn in self.new(Spawn)]
        return spawned

    def ready(self, workers: list[str]) -> None:
        for worker in workers:
            self.say(worker, "ready")

    def running(self, generation: int, **fields: Any) -> None:
        """The new rank 0 opens its store, and does the first step."""
        [first] = [name for name, message in self.worlds(generation).items() if message["rank"] == 0]
        self.say(first, "store", generation=generation, host="h", port=1)
        self.say(first, "running", generation=generation, **fields)

    def up(self) -> Drive:
        """Everything started, the first world running."""
        for piece in self.machine.pieces:
            self.ready(self.agents_up(piece))
        self.running(1)
        assert self.machine.mode is Mode.RUNNING
        return self

    def order(self, id: int, keep: tuple[Piece, ...], add: tuple[Shape, ...] = (), batch: int = 0) -> Directive:
        gpus = sum(piece.gpus for piece in keep) + sum(shape.gpus for shape in add)
        directive = Directive(id, 10, keep, add, gpus, batch, "grow_idle", 30.0)
        self(DirectiveCame(directive))
        return directive

    def grown(self, id: int = 1) -> Drive:
        """A directive has added the companion; its world runs."""
        self.order(id, self.machine.pieces, (SHAPE,))
        self(CompanionGranted(id, 0, COMPANION))
        self.ready(self.agents_up(COMPANION))
        self.running(self.machine.generation, pause_s=0.1)
        assert self.phases(id)[-1] == "running"
        return self

    def quiesce(self, workers: tuple[str, ...]) -> None:
        for worker in workers:
            self.say(worker, "quiesced", generation=self.machine.generation, step=5, samples=50)

    def die_when_killed(self) -> None:
        """Whoever was killed is reported dead; so are those that this kills in turn."""
        told: set[str] = set()
        while killed := [kill for kill in self.every(Kill) if kill.worker not in told]:
            for kill in killed:
                told.add(kill.worker)
                if kill.worker in self.machine.fleet.workers:
                    self(WorkerExit(kill.worker, 0, 9))

    def settle(self) -> None:
        """From here on everybody cooperates: the dead are reported, agents come, workers warm up, worlds form."""
        machine = self.machine
        for _ in range(40):
            for worker in [w for w in machine.fleet.workers.values() if w.doomed]:
                self(WorkerExit(worker.name, 0, 9))
            for launch in self.every(LaunchAgents):
                for key in fleets.keys([launch.piece]):
                    if key not in machine.fleet.agents and machine.mode is not Mode.ENDED:
                        self(AgentUp(key, ("0", "1")))
            if machine.resizing.active is not None:
                self(CompanionRefused(machine.resizing.active.directive, 0, "no"))
            for worker in list(machine.fleet.workers.values()):
                if not worker.ready and not worker.doomed and not worker.exited:
                    self.say(worker.name, "ready")
            self.say(self.members()[0] if machine.world else "", "running", generation=machine.generation)
            self.wait(20.0)
            if machine.mode is Mode.FINISHING:
                for worker in [w for w in machine.fleet.workers.values() if not w.exited]:
                    self(WorkerExit(worker.name, 0))

    def exits(self) -> list[int]:
        return [action.code for action in self.every(Exit)]


# --- start ------------------------------------------------------------------------------------------------------


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


def test_generation_is_on_disk_before_any_worker_hears_of_it() -> None:
    """A supervisor that is started again can never use a generation twice."""
    drive = Drive(generation=7)
    drive.ready(drive.agents_up(BASE))
    kinds = [type(action) for action in drive.fresh]
    assert kinds.index(Remember) < kinds.index(Send)
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
    drive = Drive(checkpoint_step=40)
    drive.ready(drive.agents_up(BASE))
    assert {message["source"] for message in drive.worlds(1).values()} == {"checkpoint"}


def test_silent_node_is_left_out() -> None:
    """A node whose agent does not come in time is done without; training starts on the rest."""
    drive = Drive()
    drive.ready(drive.agents_up(Piece(10, "base", ("n1",), 2)))
    assert not drive.worlds(1)
    drive.wait(Limits().agents_s)
    assert set(drive.worlds(1)) == {"10.n1.0", "10.n1.1"}
    assert [piece.nodes for piece in drive.machine.pieces] == [("n1",)]


def test_batch_host_is_tried_again_a_bounded_number_of_times() -> None:
    """Without the batch host's agent there is no job: it is launched again, then the job fails."""
    drive = Drive()
    for _ in range(Limits().failures):
        drive(StepEnded(drive.every(LaunchAgents)[-1].number, 1))
    assert drive.exits() == [1]
    assert len(drive.every(LaunchAgents)) == Limits().failures


def test_agent_nobody_waits_for_is_sent_away() -> None:
    """An agent that was given up, or is none of ours, is told to quit: it must not hold nodes."""
    drive = Drive().up()
    assert drive(AgentUp((99, "n9"), ("0",))) == [QuitAgent((99, "n9"))]


# --- resizes ----------------------------------------------------------------------------------------------------


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
    assert drive.machine.pieces == (BASE,)
    drive.running(2, pause_s=0.2, step=9, samples=90)
    assert drive.phases(1) == ["accepted", "submitted", "granted", "ready", "running"]
    last = drive.every(Tell)[-1].phase
    assert (last.pieces, last.batch, last.pause_s, last.step) == ((BASE, COMPANION), 96, 0.2, 9)


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
    assert drive.machine.pieces == (left,)
    drive(AgentLost((10, "n2")))
    assert drive.machine.mode is Mode.RUNNING


def test_leaver_whose_exit_is_seen_first_is_no_accident() -> None:
    """The agent may report a leaver's exit before its own last message is read."""
    drive = Drive().up()
    drive.order(1, (Piece(10, "base", ("n1",), 2),))
    drive(WorkerExit("10.n2.0", 0))
    assert drive.machine.mode is Mode.RUNNING
    drive.running(2)
    assert drive.phases(1)[-1] == "running"


def test_batch_only() -> None:
    """The same workers, another global batch."""
    drive = Drive().up()
    drive.order(1, (BASE,), batch=128)
    assert {message["batch"] for message in drive.worlds(2).values()} == {128}
    drive.running(2)
    assert (drive.machine.batch, drive.machine.pieces) == (128, (BASE,))
    assert not drive.every(QuitAgent)


def test_the_same_directive_twice_is_one_resize() -> None:
    """Ids are idempotent: seen ones change nothing, before and after the resize."""
    drive = Drive().up()
    directive = drive.order(1, (BASE,), batch=128)
    assert not drive(DirectiveCame(directive))
    drive.running(2)
    assert not drive(DirectiveCame(directive))


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
def test_directive_that_does_not_fit_fails(keep: tuple[Piece, ...], reason: str) -> None:
    """What cannot be done is refused with its reason, and nothing moves."""
    drive = Drive().up()
    drive.order(1, keep)
    assert drive.phases(1) == ["failed"]
    assert reason in drive.every(Tell)[-1].phase.detail
    assert drive.machine.mode is Mode.RUNNING


def test_directive_whose_numbers_disagree_fails() -> None:
    """A directive has to say how many GPUs its pieces make."""
    drive = Drive().up()
    drive(DirectiveCame(Directive(1, 10, (BASE,), (), 3, 64, "batch", 10.0)))
    assert "add up to 4 GPUs, not 3" in drive.every(Tell)[-1].phase.detail


def test_withdrawn_while_waiting_for_a_companion() -> None:
    """The request to Slurm is taken back; a grant that comes all the same is given back."""
    drive = Drive().up()
    directive = drive.order(1, (BASE,), (SHAPE,))
    drive(DirectiveCame(Directive(**{**_fields(directive), "withdrawn": True})))
    assert drive.new(DropCompanions) == [DropCompanions(1)]
    assert drive.phases(1)[-1] == "withdrawn"
    assert drive(CompanionGranted(1, 0, COMPANION)) == [DropCompanions(1)]


def test_withdrawn_before_the_agreement() -> None:
    """A world that is only coming is called off: survivors are told, joiners killed, companions given back."""
    drive = Drive().up()
    directive = drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    joiners = drive.agents_up(COMPANION)
    drive.ready(joiners)
    drive(DirectiveCame(Directive(**{**_fields(directive), "withdrawn": True})))
    assert {send.worker for send in drive.new(Send) if send.message["type"] == "abort"} == set(drive.members())
    assert {kill.worker for kill in drive.new(Kill)} == set(joiners)
    assert drive.new(QuitAgent) == [QuitAgent((11, "n3"))]
    drive.die_when_killed()
    drive(AgentLost((11, "n3")))
    assert (drive.machine.mode, drive.machine.pieces) == (Mode.RUNNING, (BASE,))


def test_withdrawn_after_the_agreement_comes_too_late() -> None:
    """Once somebody has stopped for the new world it is carried through and reported as it is."""
    drive = Drive().up()
    directive = drive.order(1, (BASE,), batch=128)
    drive.quiesce(("10.n1.0",))
    drive(DirectiveCame(Directive(**{**_fields(directive), "withdrawn": True})))
    drive.running(2)
    assert drive.phases(1)[-1] == "running"
    assert drive.machine.batch == 128


def test_withdrawal_crossing_the_agreement_of_a_shrink() -> None:
    """Called off and agreed on at the same moment: without joiners the new world is whole, and is taken."""
    drive = Drive().up()
    directive = drive.order(1, (Piece(10, "base", ("n1",), 2),))
    drive(DirectiveCame(Directive(**{**_fields(directive), "withdrawn": True})))
    drive.quiesce(("10.n1.0", "10.n2.0"))
    drive(WorkerExit("10.n2.0", 0))
    drive.running(2)
    assert drive.machine.pieces == (Piece(10, "base", ("n1",), 2),)
    assert drive.machine.mode is Mode.RUNNING


def test_withdrawal_crossing_the_agreement_of_a_grow() -> None:
    """The joiners are dead by then: the only safe way is back to the checkpoint."""
    drive = Drive().up()
    directive = drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive.ready(drive.agents_up(COMPANION))
    drive(DirectiveCame(Directive(**{**_fields(directive), "withdrawn": True})))
    drive.quiesce(("10.n1.0",))
    assert drive.machine.mode is Mode.RESTARTING


def test_newer_directive_replaces_an_unfinished_one() -> None:
    """The daemon's last word counts."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive.order(2, (BASE,), batch=128)
    assert drive.phases(1)[-1] == "withdrawn"
    drive.running(drive.machine.generation)
    assert drive.phases(2) == ["accepted", "running"]


def test_newer_directive_waits_for_an_agreed_one() -> None:
    """A change that is past its point of no return is finished first."""
    drive = Drive().up()
    drive.order(1, (BASE,), batch=128)
    drive.quiesce(("10.n1.0",))
    drive.order(2, (BASE,), batch=32)
    assert not drive.phases(2)
    drive.running(2)
    drive.running(3)
    assert (drive.phases(1)[-1], drive.phases(2)[-1], drive.machine.batch) == ("running", "running", 32)


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
    drive.wait(30.0)
    assert drive.phases(1)[-1] == "failed"
    assert drive.machine.mode is Mode.RUNNING
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
    assert "shows 1 GPUs instead of 2" in drive.every(Tell)[-1].phase.detail


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
    assert drive.machine.mode is Mode.RUNNING
    assert bool([send for send in drive.new(Send) if send.message["type"] == "abort"]) is ready


def test_joiner_dies_after_the_agreement() -> None:
    """The old world is gone and the new one cannot come: everybody starts again, on the old pieces and batch."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,), batch=96)
    drive(CompanionGranted(1, 0, COMPANION))
    joiners = drive.agents_up(COMPANION)
    drive.ready(joiners)
    drive.quiesce(("10.n1.0",))
    drive.say("10.n1.0", "saved", step=5, samples=50, path="p")
    drive(WorkerExit(joiners[0], 0, 9))
    assert drive.phases(1)[-1] == "failed"
    drive.die_when_killed()
    drive.ready([spawn.worker for spawn in drive.every(Spawn)[-4:]])
    worlds = drive.worlds(3)
    assert {(m["size"], m["batch"], m["source"]) for m in worlds.values()} == {(4, 64, "checkpoint")}


def test_world_that_survivors_gave_up() -> None:
    """The coming world was incomplete and the old one goes on: the resize failed, the training did not."""
    drive = Drive().up()
    drive.order(1, (BASE,), batch=96)
    drive.say("10.n1.0", "failed", generation=2, error="3 of 4 arrived", survived=True)
    assert drive.phases(1)[-1] == "failed"
    assert (drive.machine.mode, drive.machine.batch) == (Mode.RUNNING, 64)


def test_companion_taken_away_with_notice() -> None:
    """Slurm's SIGTERM on a companion: the others agree on going on without it, before it is killed."""
    drive = Drive().up().grown()
    drive(Notice((11, "n3")))
    worlds = drive.worlds(3)
    assert {name for name, message in worlds.items() if message["leave"]} == {"11.n3.0", "11.n3.1"}
    drive.running(3)
    assert drive.machine.pieces == (BASE,)
    assert drive.phases(0)[-1] == "running"


# --- accidents --------------------------------------------------------------------------------------------------


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


def test_lost_companion_without_notice() -> None:
    """Its workers are gone with it: a new generation on what is left."""
    drive = Drive().up().grown()
    drive(AgentLost((11, "n3")))
    assert drive.machine.mode is Mode.RESTARTING
    drive.die_when_killed()
    drive.ready([spawn.worker for spawn in drive.every(Spawn)[-4:]])
    assert drive.machine.pieces == (BASE,)
    drive.running(3)
    assert drive.every(Tell)[-1].phase.pieces == (BASE,)


def test_lost_agent_of_the_batch_host_is_launched_again() -> None:
    """The batch host is what a job never gives up."""
    drive = Drive().up()
    drive(AgentLost((10, "n1")))
    assert [launch.piece.nodes for launch in drive.new(LaunchAgents)] == [("n1",)]
    drive.die_when_killed()
    assert drive.machine.mode is Mode.RESTARTING
    drive(AgentUp((10, "n1"), ("0", "1")))
    assert len(drive.new(Spawn)) == 4


def test_the_end_of_an_old_launch_says_nothing_about_the_new_one() -> None:
    """The srun of a lost agent ends later than its successor begins."""
    drive = Drive().up()
    first = drive.every(LaunchAgents)[0].number
    drive(AgentLost((10, "n1")))
    drive(AgentLost((10, "n2")))
    drive(StepEnded(first, 137))
    assert drive.machine.mode is Mode.RESTARTING
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
        drive.running(drive.machine.generation)
    assert drive.exits() == [3]
    assert failure == 4


def test_the_worker_that_only_noticed_does_not_hide_the_culprit() -> None:
    """Code 75 means that a world broke; the exit that broke it is waited for a moment."""
    drive = Drive().up()
    drive(WorkerExit("10.n1.0", 75))
    assert not drive.new(Kill)
    drive(WorkerExit("10.n2.0", 0, 11, tail=("segfault",)))
    said = " ".join(action.text for action in drive.new(Say))
    assert "10.n2.0 was killed by signal 11" in said
    assert "segfault" in said


def test_a_broken_world_without_a_culprit_restarts() -> None:
    """If nobody else has died, the broken world is reason enough."""
    drive = Drive().up()
    drive(WorkerExit("10.n1.0", 75))
    drive.wait(2.0)
    assert drive.machine.mode is Mode.RESTARTING


def test_script_error_before_any_training_is_final() -> None:
    """A typo is not tried three times; its code is the job's."""
    drive = Drive()
    workers = drive.agents_up(BASE)
    drive(WorkerExit(workers[2], 1, raised=True))
    assert drive.exits() == [1]


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


def test_worker_that_lost_its_line_is_killed() -> None:
    """A worker that can no longer be told anything would hang the next world."""
    drive = Drive().up()
    drive(WorkerLost("10.n2.0"))
    drive.wait(Limits().kill_s)
    assert [kill.worker for kill in drive.new(Kill)] == ["10.n2.0"]


def test_node_whose_workers_do_not_die_is_left() -> None:
    """A process in uninterruptible sleep must not hold the job for ever."""
    drive = Drive().up()
    drive(WorkerExit("10.n1.0", 0, 9))
    drive(WorkerExit("10.n1.1", 0, 9))
    drive(WorkerExit("10.n2.0", 0, 9))
    drive.wait(Limits().kill_s)
    assert QuitAgent((10, "n2")) in drive.fresh
    assert [spawn.agent for spawn in drive.new(Spawn)] == [(10, "n1"), (10, "n1")]


# --- the end ----------------------------------------------------------------------------------------------------


def test_all_done_is_zero() -> None:
    """The job ends when every worker of the last world has exited by itself."""
    drive = Drive().up()
    for worker in drive.members():
        drive.say(worker, "done", step=9, samples=9, epoch=1)
        assert not drive.exits()
        drive(WorkerExit(worker, 0))
    assert drive.exits() == [0]
    assert drive.phases(0)[-1] == "finished"


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
    """The training ends first: the resize is withdrawn, and a later directive too."""
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
    drive(Hurry(25.0, stop=True, code=143))
    assert {send.worker for send in drive.new(Send)} == set(drive.members())
    assert not drive.exits()
    drive.say("10.n1.0", "saved", step=7, samples=70, path="p")
    assert drive.exits() == [143]
    assert [tell.phase.exit_code for tell in drive.new(Tell) if tell.phase.phase == "finished"] == [143]


@pytest.mark.parametrize("twice", [False, True])
def test_hurry_does_not_wait_for_ever(twice: bool) -> None:
    """No checkpoint in time, or a second Ctrl-C: the job ends all the same."""
    drive = Drive().up()
    drive(Hurry(25.0, stop=True, code=130))
    if twice:
        drive(Hurry(25.0, stop=True, code=130))
    else:
        drive.wait(25.0)
    assert drive.exits() == [130]


def test_hurry_before_any_world_ends_at_once() -> None:
    """There is nothing to save yet."""
    drive = Drive()
    drive(Hurry(25.0, stop=True, code=143))
    assert drive.exits() == [143]


def test_hurry_without_stop_trains_on() -> None:
    """SIGUSR1: a checkpoint, no more resizes, and Slurm ends the job when it does."""
    drive = Drive().up()
    drive(Hurry(60.0, stop=False))
    drive.say("10.n1.0", "saved", step=7, samples=70, path="p")
    assert drive.machine.mode is Mode.RUNNING
    drive.order(1, (BASE,), batch=32)
    assert drive.phases(1) == ["withdrawn"]


def test_checkpoints_are_asked_for_in_time() -> None:
    """Rank 0 is asked when the last checkpoint is too old, and only then."""
    drive = Drive(limits=Limits(checkpoint_s=100.0)).up()
    drive.wait(60.0)
    drive.say("10.n1.0", "saved", step=7, samples=70, path="p")
    assert not drive.wait(60.0)
    assert drive.wait(60.0) == [Send("10.n1.0", {"type": "checkpoint"})]


def test_reports_are_forwarded_with_the_size_of_the_world() -> None:
    """The worker knows its steps, the supervisor knows how many GPUs and nodes did them."""
    drive = Drive().up().grown()
    drive.say("10.n1.0", "report", generation=2, batch=64)
    [report] = drive.new(Forward)
    assert (report.gpus, report.nodes) == (6, 3)


# --- whatever happens -------------------------------------------------------------------------------------------

KEYS: list[AgentKey] = [(10, "n1"), (10, "n2"), (11, "n3")]
KINDS = ["ready", "ready", "ready", "store", "quiesced", "running", "running", "saved", "done", "failed", "report"]


@dataclasses.dataclass(frozen=True)
class FromWorker:
    """Something that one of the workers then there does: a message, a lost line, or its end."""

    which: int
    what: str
    late: int
    code: int = 0
    signal: int = 0

    def event(self, machine: Machine) -> Event:
        names = sorted(machine.fleet.workers) or ["10.n1.0"]
        name = names[self.which % len(names)]
        if self.what == "exit":
            return WorkerExit(name, self.code, self.signal)
        if self.what == "lost":
            return WorkerLost(name)
        fields = {"generation": machine.generation - self.late, "step": self.which, "survived": self.late == 0}
        return WorkerMessage(name, {"type": self.what, **fields})


EVENTS = st.one_of(
    st.builds(AgentUp, st.sampled_from(KEYS), st.just(("0", "1"))),
    st.builds(AgentLost, st.sampled_from(KEYS)),
    st.builds(StepEnded, st.integers(1, 4), st.integers(0, 1)),
    st.builds(Notice, st.sampled_from(KEYS)),
    st.builds(FromWorker, st.integers(0, 9), st.sampled_from(KINDS), st.sampled_from([0, 0, 0, 1])),
    st.builds(
        FromWorker,
        st.integers(0, 9),
        st.sampled_from(["exit", "exit", "lost"]),
        st.just(0),
        st.sampled_from([0, 1, 75]),
        st.sampled_from([0, 9]),
    ),
    st.builds(
        DirectiveCame,
        st.builds(
            Directive,
            st.integers(1, 4),
            st.just(10),
            st.sampled_from([(BASE,), (Piece(10, "base", ("n1",), 2),), (BASE, COMPANION)]),
            st.sampled_from([(), (SHAPE,)]),
            st.sampled_from([2, 4, 6]),
            st.sampled_from([0, 32]),
            st.just("batch"),
            st.just(5.0),
            st.booleans(),
        ),
    ),
    st.builds(CompanionGranted, st.integers(1, 4), st.just(0), st.just(COMPANION)),
    st.builds(CompanionRefused, st.integers(1, 4), st.just(0), st.just("no")),
    st.builds(Hurry, st.just(5.0), st.booleans()),
)


@settings(max_examples=300, deadline=None)
@given(st.booleans(), st.lists(st.one_of(EVENTS, st.floats(0.1, 50.0)), max_size=60))
def test_no_order_of_events_confuses_it(started: bool, events: list[Event | FromWorker | float]) -> None:
    """Whatever comes in whatever order: one exit at most, generations only grow, never two workers on one GPU."""
    drive = Drive()
    if started:
        drive.up()
    generations = [remember.generation for remember in drive.every(Remember)]
    for event in events:
        if isinstance(event, float):
            drive.wait(event)
        else:
            drive(event.event(drive.machine) if isinstance(event, FromWorker) else event)
        alive = [w for w in drive.machine.fleet.workers.values() if not w.exited]
        assert len({(worker.agent, worker.index) for worker in alive}) == len(alive)
        generations += [remember.generation for remember in drive.new(Remember)]
        assert drive.machine.pieces[0].nodes[0] == "n1"
        assert (drive.machine.mode is Mode.ENDED) == bool(drive.exits())
    assert generations == sorted(set(generations))
    assert len(drive.exits()) <= 1
    names = [spawn.worker for spawn in drive.every(Spawn)]
    assert len(names) == len(set(names))
    drive.settle()
    assert drive.machine.mode in (Mode.RUNNING, Mode.ENDED)
    alive = [w for w in drive.machine.fleet.workers.values() if not w.exited]
    assert drive.machine.mode is Mode.ENDED or {w.name for w in alive} == set(drive.members())


def test_silence_ends_the_job() -> None:
    """A job none of whose agents ever comes does not hold its nodes until its time limit."""
    drive = Drive()
    for _ in range(20):
        drive.wait(Limits().agents_s)
    assert drive.exits() == [1]


def _fields(directive: Directive) -> dict[str, Any]:
    return {name: getattr(directive, name) for name in Directive.__dataclass_fields__}


def test_rank_order_is_stable() -> None:
    """Ranks follow the pieces' order whatever order the workers are in."""
    fleet = fleets.Fleet()
    for key in ((11, "n3"), (10, "n2"), (10, "n1")):
        fleet.agents[key] = fleets.Agent(("0", "1"))
        for index in (1, 0):
            fleet.new_worker(key, index)
    names = fleets.ranked(list(fleet.workers.values()), (BASE, COMPANION))
    assert names == ("10.n1.0", "10.n1.1", "10.n2.0", "10.n2.1", "11.n3.0", "11.n3.1")
