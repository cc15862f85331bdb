"""One resize at a time: companions asked for and warmed up (warm_up), a new world agreed on. Pure.

Until the new world's first step everything can be undone, and is: companions are dropped, their workers killed, the
old world goes on. After the agreement on a step that takes all of its members, who go back to it by themselves
(roll_back); whoever leaves stays till then, and is dismissed with that step. What a directive drops is only
left here; giving it back to Slurm is selasticd's work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_elastic.protocol.messages import Directive

from . import workers as fleets
from .events import DropCompanions, Message, Say, Send, SubmitCompanion
from .resize_stage import Resize, Stage
from .roll_back import Returning
from .warm_up import Warming
from .workers import Mode, Worker, World

if TYPE_CHECKING:
    from .machine import Machine


class Resizing:
    """The part of the machine that changes the world on purpose."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.active: Resize | None = None
        self._waiting: Directive | None = None
        self._last_id = 0
        self._aborted: dict[int, Resize] = {}
        self.warming = Warming(machine, self)
        self.returning = Returning(machine, self)

    # --- questions of the machine -----------------------------------------------------------------------------

    def owns(self, worker: Worker) -> bool:
        """Whether this worker is a joiner, not yet part of the world."""
        return self.warming.expects(worker.agent)

    def leaves(self, worker: Worker) -> bool:
        """Whether this worker's world goes on without it."""
        world = self.active.world if self.active else None
        return world is not None and worker.name not in world.members

    def coming(self, generation: int) -> World | None:
        world = self.active.world if self.active else None
        return world if world is not None and world.generation == generation else None

    # --- beginning --------------------------------------------------------------------------------------------

    def directive(self, directive: Directive) -> None:
        """Take a directive, or the withdrawal of one; one already seen changes nothing."""
        if directive.withdrawn:
            self._withdrawn(directive.id)
        elif directive.id > self._last_id:
            self._last_id = directive.id
            self._waiting = directive
            if self.active is not None and not self.active.agreed:
                self.fail(f"directive {directive.id} came instead", phase="withdrawn")
            self.next()

    def next(self) -> None:
        """Begin with the directive that waits, when the world is up and nothing else is under way."""
        machine = self._machine
        if self._waiting is None or self.active is not None:
            return
        if machine.ending or machine.mode in (Mode.FINISHING, Mode.ENDED):
            directive, self._waiting = self._waiting, None
            machine.tell(directive.id, "withdrawn", "the job is ending")
        elif machine.mode is Mode.RUNNING:
            directive, self._waiting = self._waiting, None
            self._begin(directive)

    def without(self, job_ids: set[int], reason: str) -> None:
        """Go on without these pieces while their workers can still take part in the agreement."""
        machine = self._machine
        if self.active is not None and any(piece.slurm_job_id in job_ids for piece in self.active.added.values()):
            self.returning.joiner_lost(reason)
        keep = tuple(piece for piece in machine.pieces if piece.slurm_job_id not in job_ids)
        if machine.mode is not Mode.RUNNING or len(keep) == len(machine.pieces):
            return
        if self.active is not None:
            if self.active.agreed or self.active.keep == keep:
                return
            self.fail(reason)
        machine.do(Say(f"{reason}: going on without it"))
        self.active = Resize(0, keep, machine.batch, 0.0, reason)
        self.agree()

    def _begin(self, directive: Directive) -> None:
        machine = self._machine
        if directive.requeues and directive.add:
            machine.saving.begin(directive)
            return
        machine.saving.forget()
        try:
            keep = fleets.kept(machine.pieces, directive.keep)
            gpus = sum(piece.gpus for piece in keep) + sum(shape.gpus for shape in directive.add)
            if gpus != directive.gpus:
                raise ValueError(f"its pieces add up to {gpus} GPUs, not {directive.gpus}")
        except ValueError as error:
            machine.tell(directive.id, "failed", str(error))
            return
        machine.tell(directive.id, "accepted")
        batch = directive.batch or machine.batch
        self.active = Resize(directive.id, keep, batch, directive.wait_s, directive.reason, awaited=len(directive.add))
        if not directive.add:
            self.agree()
            return
        # One time for both: a companion that waits long leaves its workers little to warm up in.
        machine.timers["resize"] = machine.now + max(directive.wait_s, 1.0)
        for index, shape in enumerate(directive.add):
            machine.do(SubmitCompanion(directive.id, index, shape, directive.wait_s))
        machine.tell(directive.id, "submitted")

    # --- the change -------------------------------------------------------------------------------------------

    def agree(self) -> None:
        """Tell everyone the coming world; they agree on the step among themselves."""
        active, machine = self.active, self._machine
        if active is None:
            return
        active.stage = Stage.AGREEING
        old = machine.members()
        for worker in old:
            worker.quiesced = False
        inside = [*old, *machine.fleet.on(active.agents)]
        names = fleets.ranked(inside, active.pieces)
        if not names:
            self.fail(f"{len(inside)} workers are fewer than the {inside[0].unit} that one replica needs")
            return
        machine.kill([worker for worker in inside if worker.name not in (*names, *(member.name for member in old))])
        world = World(machine.next_generation(), names, active.batch, "survivor")
        active.world = world
        machine.send_world(world, [worker for worker in old if worker.name not in names])

    def quiesced(self, worker: Worker, generation: int) -> None:
        """Someone has stopped at the agreed step: from here on the new world comes, or a restart does."""
        if self.coming(generation) is not None and self.active is not None:
            self.active.agreed = True
            return
        aborted = self._aborted.pop(generation, None)
        if aborted is None:
            return
        if aborted.agents:  # killed by now: it cannot come
            self.returning.begin(generation)
        elif self.active is None or not self.active.agreed:
            self.fail(f"generation {generation} was agreed on first", phase="withdrawn")
            self.active, aborted.agreed = aborted, True

    def over(self) -> None:
        """The training loop has ended: a world already agreed on is the last one, any other comes too late."""
        if self.active is not None and self.active.agreed and self.active.world is not None:
            self.running(self.active.world.generation, {})
        else:
            self.fail("the training is over", phase="withdrawn")

    def running(self, generation: int, message: Message) -> None:
        """The new world's first step is done: it is what trains now."""
        active, machine = self.active, self._machine
        world = self.coming(generation)
        if active is None or world is None:
            return
        self.active = None
        self.returning.ended(0)
        machine.timers.pop("resize", None)
        dropped = set(fleets.keys(machine.pieces)) - set(fleets.keys(active.pieces))
        before, batch_before = sum(piece.gpus for piece in machine.pieces), machine.batch
        left = [worker for worker in machine.members() if worker.name not in world.members]
        machine.enter(world, active.pieces)
        for worker in [*machine.fleet.on(dropped), *(worker for worker in left if worker.agent not in dropped)]:
            worker.doomed = True
            machine.do(Send(worker.name, {"type": "dismiss", "generation": generation}))
            if worker.exited:
                del machine.fleet.workers[worker.name]
        for worker in machine.members():
            worker.quiesced = False
        machine.nodes.quit(sorted(dropped))
        machine.tell(active.directive, "running", active.reason, message)
        pause = message.get("pause_s")
        text = f"generation {generation}: {before} -> {len(world.members)} workers"
        if batch_before != machine.batch:
            text += f", batch {batch_before} -> {machine.batch}"
        machine.do(Say(text + (f", pause {pause:.2f} s" if isinstance(pause, float) else "")))
        if active.doubt:
            machine.lives.restart(active.doubt, 1)
        self.next()

    # --- undoing ----------------------------------------------------------------------------------------------

    def _withdrawn(self, directive: int) -> None:
        if self._waiting is not None and self._waiting.id == directive:
            self._waiting = None
            self._machine.tell(directive, "withdrawn", "before it began")
        elif self.active is not None and self.active.directive == directive and not self.active.agreed:
            self.fail("selasticd took it back", phase="withdrawn")
        self._machine.saving.forget(directive)
        self._last_id = max(self._last_id, directive)

    def call_off(self, active: Resize) -> None:
        """Tell the members of the old world that the new one is not wanted any more."""
        if active.world is not None:
            for worker in self._machine.members():
                self._machine.do(Send(worker.name, {"type": "abort", "generation": active.world.generation}))

    def forget(self, generation: int) -> None:
        """Nobody is in that world any more, nor comes from it."""
        self._aborted.pop(generation, None)

    def fail(self, detail: str, phase: str = "failed") -> None:
        """Undo the resize under way, if there is one: the old pieces are what the job goes on with."""
        active, machine = self.active, self._machine
        if active is None:
            return
        self.active = None
        self.returning.ended(0)
        machine.timers.pop("resize", None)
        if active.world is not None:
            self._aborted[active.world.generation] = active
        self.call_off(active)
        machine.kill(machine.fleet.on(active.agents))
        machine.nodes.quit(sorted(active.agents))
        if active.awaited:
            machine.do(DropCompanions(active.directive))
        if active.directive:
            machine.tell(active.directive, phase, detail)
            machine.do(Say(f"directive {active.directive} {phase}: {detail}"))
        if active.world is not None and active.agreed:
            machine.lives.restart(detail, 1)
