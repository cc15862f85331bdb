"""A supervisor's state machine under test, with its clock and a rest of the world that cooperates on request."""

from __future__ import annotations

from typing import Any

from slurm_elastic.protocol.messages import Happening, Piece, Resize, Shape
from slurm_elastic.trainer_shim.allocation.pieces.actions import Action, Exit, LaunchAgents, Tell
from slurm_elastic.trainer_shim.allocation.pieces.events import (
    AgentUp,
    CompanionGranted,
    CompanionRefused,
    Event,
    ResizeCame,
)
from slurm_elastic.trainer_shim.allocation.pieces.machine import Machine
from slurm_elastic.trainer_shim.allocation.pieces.table import nodes_of
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import Kill, Send, Spawn
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode, SupervisorContext
from slurm_elastic.trainer_shim.supervisor.state_machine.events import WorkerExit, WorkerMessage
from slurm_elastic.trainer_shim.supervisor.state_machine.parts import PARTS

BASE = Piece(10, "base", ("n1", "n2"), 2)
COMPANION = Piece(11, "companion", ("n3",), 2)
SHAPE = Shape(1, 2)


class Drive:
    """A machine, its clock, and everything it has done; plays the cooperative rest of the world on request."""

    def __init__(self, *pieces: Piece, **options: Any) -> None:
        self.machine = Machine(SupervisorContext(pieces or (BASE,), options.pop("batch", 64), **options), PARTS)
        self.context = self.machine.context
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

    def phases(self, resize_id: int) -> list[str]:
        said = [action.said for action in self.every(Tell)]
        return [one.what for one in said if isinstance(one, Happening) and one.resize == resize_id]

    def worlds(self, generation: int) -> dict[str, dict[str, Any]]:
        """worker -> its world message of that generation."""
        sent = [send for send in self.every(Send) if send.message["type"] == "world"]
        return {send.worker: send.message for send in sent if send.message["generation"] == generation}

    def members(self) -> tuple[str, ...]:
        assert self.context.world is not None
        return self.context.world.members

    def agents_up(self, piece: Piece) -> list[str]:
        """Agents of a piece connect; the workers then spawned on them."""
        spawned = []
        for node in piece.nodes:
            self(AgentUp((piece.slurm_job_id, node), tuple(str(gpu) for gpu in range(piece.gpus_per_node))))
            spawned += [spawn.worker for spawn in self.new(Spawn)]
        return spawned

    def ready(self, workers: list[str], **about: Any) -> None:
        for worker in workers:
            self.say(worker, "ready", **about)

    def running(self, generation: int, **fields: Any) -> None:
        """The new rank 0 opens its store, and does the first step."""
        [first] = [name for name, message in self.worlds(generation).items() if message["rank"] == 0]
        self.say(first, "store", generation=generation, host="h", port=1)
        self.say(first, "running", generation=generation, **fields)

    def up(self, **about: Any) -> Drive:
        """Everything started, the first world running; about: what its workers say of the script."""
        for piece in self.context.pieces:
            self.ready(self.agents_up(piece), **about)
        self.running(1)
        assert self.context.mode is Mode.RUNNING
        return self

    def order(self, id: int, keep: tuple[Piece, ...], add: tuple[Shape, ...] = (), batch: int = 0) -> Resize:
        gpus = sum(piece.gpus for piece in keep) + sum(shape.gpus for shape in add)
        resize = Resize(id, 10, keep, add, gpus, batch, "grow_idle", 30.0)
        self(ResizeCame(resize))
        return resize

    def grown(self, id: int = 1) -> Drive:
        """A resize has added the companion; its world runs."""
        self.order(id, self.context.pieces, (SHAPE,))
        self(CompanionGranted(id, 0, COMPANION))
        self.ready(self.agents_up(COMPANION))
        self.running(self.context.generation, pause_s=0.1)
        assert self.phases(id)[-1] == "running"
        return self

    def quiesce(self, workers: tuple[str, ...]) -> None:
        for worker in workers:
            self.say(worker, "quiesced", generation=self.context.generation, step=5, samples=50)

    def die_when_killed(self) -> None:
        """Whoever was killed is reported dead; so are those that this kills in turn."""
        told: set[str] = set()
        while killed := [kill for kill in self.every(Kill) if kill.worker not in told]:
            for kill in killed:
                told.add(kill.worker)
                if kill.worker in self.context.workers:
                    self(WorkerExit(kill.worker, 0, 9))

    def settle(self) -> None:
        """From here on everybody cooperates: the dead are reported, agents come, workers warm up, worlds form."""
        context = self.context
        for _ in range(40):
            for worker in [w for w in context.workers.values() if w.ending]:
                self(WorkerExit(worker.name, 0, 9))
            for launch in self.every(LaunchAgents):
                for key in nodes_of([launch.piece]):
                    if not context.available(key) and context.mode is not Mode.ENDED:
                        self(AgentUp(key, ("0", "1")))
            if context.change is not None:
                self(CompanionRefused(context.change.id, 0, "no"))
            for worker in list(context.workers.values()):
                if not worker.ready and not worker.ending and not worker.exited:
                    self.say(worker.name, "ready")
            self.say(self.members()[0] if context.world else "", "running", generation=context.generation)
            self.wait(20.0)
            if context.mode is Mode.FINISHING:
                for worker in [w for w in context.workers.values() if not w.exited]:
                    self(WorkerExit(worker.name, 0))

    def exits(self) -> list[int]:
        return [action.code for action in self.every(Exit)]
