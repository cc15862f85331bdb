"""One resize at a time: companions asked for, their workers warmed up, a new world agreed on. Pure, like the machine.

Until the new world's first step everything can be undone, and is: companions are dropped, their workers killed, the
old world goes on. After the agreement on a step that takes all of its members, who go back to it by themselves
(supervisor_return); whoever leaves stays till then, and is dismissed with that step. What a directive drops is only
left here; giving it back to Slurm is selasticd's work.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from . import fleet as fleets
from .fleet import Mode, Worker, World
from .supervisor_events import (
    AgentKey,
    CompanionGranted,
    CompanionRefused,
    DropCompanions,
    Message,
    Say,
    Send,
    SubmitCompanion,
)
from .supervisor_return import Returning
from .wire import Directive, Piece

if TYPE_CHECKING:
    from .supervisor_state import Machine


class Stage(Enum):
    """WAITING for Slurm to grant; WARMING up; AGREEING on the step at which to change worlds."""

    WAITING = "waiting"
    WARMING = "warming"
    AGREEING = "agreeing"


@dataclass(slots=True)
class Resize:
    """A change under way. `directive` is 0 for one that the supervisor itself wants."""

    directive: int
    keep: tuple[Piece, ...]
    batch: int
    wait_s: float
    reason: str
    stage: Stage = Stage.WAITING
    added: dict[int, Piece] = field(default_factory=dict)
    awaited: int = 0
    agents: set[AgentKey] = field(default_factory=set)
    world: World | None = None
    agreed: bool = False
    doubt: str = ""
    """Why the new world cannot come any more; its members are to go back, and have not said so yet."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.keep + tuple(self.added[index] for index in sorted(self.added))


class Resizing:
    """The part of the machine that changes the world on purpose."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.active: Resize | None = None
        self._waiting: Directive | None = None
        self._last_id = 0
        self._aborted: dict[int, Resize] = {}
        self.returning = Returning(machine, self)

    # --- questions of the machine -----------------------------------------------------------------------------

    def expects(self, key: AgentKey) -> bool:
        """Whether this agent belongs to a companion that is being warmed up."""
        return self.active is not None and key in fleets.keys(self.active.added.values())

    def expects_any(self, agents: set[AgentKey]) -> bool:
        """Whether one of these agents is still awaited."""
        return self.active is not None and any(self.expects(key) and key not in self.active.agents for key in agents)

    def owns_agent(self, key: AgentKey) -> bool:
        return self.expects(key)

    def owns(self, worker: Worker) -> bool:
        """Whether this worker is a joiner, not yet part of the world."""
        return self.expects(worker.agent)

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
            self.joiner_lost(reason)
        keep = tuple(piece for piece in machine.pieces if piece.slurm_job_id not in job_ids)
        if machine.mode is not Mode.RUNNING or len(keep) == len(machine.pieces):
            return
        if self.active is not None:
            if self.active.agreed or self.active.keep == keep:
                return
            self.fail(reason)
        machine.do(Say(f"{reason}: going on without it"))
        self.active = Resize(0, keep, machine.batch, 0.0, reason)
        self._agree()

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
            self._agree()
            return
        # One time for both: a companion that waits long leaves its workers little to warm up in.
        machine.timers["resize"] = machine.now + max(directive.wait_s, 1.0)
        for index, shape in enumerate(directive.add):
            machine.do(SubmitCompanion(directive.id, index, shape, directive.wait_s))
        machine.tell(directive.id, "submitted")

    # --- companions -------------------------------------------------------------------------------------------

    def granted(self, event: CompanionGranted) -> None:
        """A companion has its nodes; with the last one their agents are started."""
        active, machine = self.active, self._machine
        if active is None or active.directive != event.directive or active.stage is not Stage.WAITING:
            machine.do(DropCompanions(event.directive))
            return
        active.added[event.index] = event.piece
        if len(active.added) < active.awaited:
            return
        active.stage = Stage.WARMING
        machine.tell(active.directive, "granted")
        for piece in active.added.values():
            machine.nodes.launch(piece)

    def refused(self, event: CompanionRefused) -> None:
        if self.active is not None and self.active.directive == event.directive:
            self.fail(event.detail, phase="withdrawn")

    def agent_up(self, key: AgentKey) -> None:
        """An agent of a companion is there: start its workers."""
        active = self.active
        if active is None:
            return
        active.agents.add(key)
        piece = next(piece for piece in active.added.values() if piece.slurm_job_id == key[0])
        found = len(self._machine.fleet.agents[key].gpus)
        if found != piece.gpus_per_node:
            self.fail(f"node {key[1]} of companion {key[0]} shows {found} GPUs instead of {piece.gpus_per_node}")
            return
        self._machine.spawn_on([key])

    def joiner_ready(self) -> None:
        """With the last joiner warm the worlds can change."""
        active, machine = self.active, self._machine
        if active is None or active.stage is not Stage.WARMING:
            return
        joiners = machine.fleet.on(active.agents)
        if len(joiners) == sum(piece.gpus for piece in active.added.values()) and all(j.ready for j in joiners):
            machine.timers.pop("resize", None)
            machine.tell(active.directive, "ready")
            self._agree()

    def timed_out(self) -> None:
        """The joiners have not become ready in the time that the directive allows."""
        if self.active is None:
            return
        if self.active.stage is Stage.WARMING:
            self.fail(f"the companion's workers were not ready within {self.active.wait_s:.0f} s")
        elif self.active.stage is Stage.WAITING:
            self.fail(f"Slurm granted no companion within {self.active.wait_s:.0f} s", phase="withdrawn")

    # --- the change -------------------------------------------------------------------------------------------

    def _agree(self) -> None:
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

    def survived(self, generation: int, error: str) -> None:
        """The coming world did not come about; the old one, whole, goes on."""
        active = self.active
        self.returning.ended(generation)
        if active is not None and self.coming(generation) is not None:
            active.agreed = False
            self.fail(active.doubt or error)
            del self._aborted[generation]
            self.next()

    def joiner_lost(self, detail: str) -> None:
        """A worker, or the whole of a companion, was lost before the new world's first step."""
        active, machine = self.active, self._machine
        if active is None or not active.agreed or not self._whole():
            self.fail(detail)
        elif not active.doubt:
            active.doubt = detail
            machine.do(Say(f"{detail}: waiting for the old world to go on"))
            self._call_off(active)
            machine.kill(machine.fleet.on(active.agents))  # the rest of them would only be waited for
            self.returning.begin(0)

    def left(self, worker: Worker) -> None:
        """A worker that the new world does without has gone: there is no way back any more."""
        worker.exited = worker.quiesced = True
        if self.active is not None:
            self.active.agreed = True
            if self.active.doubt:
                self.fail(self.active.doubt)

    def _whole(self) -> bool:
        """Whether the old world could form again."""
        world, members = self._machine.world, self._machine.members()
        return world is not None and len(members) == len(world.members) and not any(one.exited for one in members)

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

    def _call_off(self, active: Resize) -> None:
        if active.world is not None:
            for worker in self._machine.members():
                self._machine.do(Send(worker.name, {"type": "abort", "generation": active.world.generation}))

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
        self._call_off(active)
        machine.kill(machine.fleet.on(active.agents))
        machine.nodes.quit(sorted(active.agents))
        if active.awaited:
            machine.do(DropCompanions(active.directive))
        if active.directive:
            machine.tell(active.directive, phase, detail)
            machine.do(Say(f"directive {active.directive} {phase}: {detail}"))
        if active.world is not None and active.agreed:
            machine.lives.restart(detail, 1)
