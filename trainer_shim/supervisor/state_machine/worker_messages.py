"""What the workers of one job tell its supervisor, and what follows from it. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .events import Message, Say, Send
from .workers import Mode, Worker, World

if TYPE_CHECKING:
    from .machine import Machine


class Heard:
    """The part of the machine that listens to workers."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine

    def take(self, worker: Worker, message: Message) -> None:
        """One message; of a kind that is not known nothing follows."""
        machine, kind = self._machine, message.get("type")
        generation = int(number(message.get("generation")))
        if kind == "ready":
            worker.ready = True
            worker.config = message
            if machine.resizing.owns(worker):
                machine.resizing.warming.ready()
            else:
                machine.lives.form_if_ready()
        elif kind == "store":
            self._relay(worker, generation, message)
        elif kind == "quiesced":
            worker.quiesced = True
            machine.resizing.quiesced(worker, generation)
        elif kind == "running":
            self._running(generation, message)
        elif kind == "saved":
            self._saved(int(number(message.get("step"))))
        elif kind == "failed":
            worker.error = str(message.get("error", ""))
            if message.get("survived"):
                worker.quiesced = False
                machine.resizing.returning.survived(generation, worker.error)
        elif kind == "done":
            worker.done, worker.finished = True, bool(message.get("finished"))
            machine.lives.training_over(message)
        elif kind == "report":
            self._report(worker, message)
        elif kind == "pace":
            machine.reporting.pace(worker, message)

    def _relay(self, worker: Worker, generation: int, message: Message) -> None:
        """Only rank 0 of a world that is coming opens a store."""
        machine, world = self._machine, self._machine.world
        participants: tuple[str, ...] = ()
        if machine.mode is Mode.FORMING and world is not None and world.generation == generation:
            participants = world.members
        elif coming := machine.resizing.coming(generation):
            participants = (*coming.members, *(world.members if world is not None else ()))
        if participants and participants[0] == worker.name:
            for name in dict.fromkeys(participants):
                if name in machine.fleet.workers:
                    machine.do(Send(name, message))

    def _running(self, generation: int, message: Message) -> None:
        machine, world = self._machine, self._machine.world
        if batch := int(number(message.get("batch"))):
            machine.batch = batch
        if machine.mode is not Mode.FORMING or world is None or generation != world.generation:
            machine.resizing.running(generation, message)
            return
        machine.enter(world, machine.pieces)
        for worker in machine.members():
            worker.quiesced = False
        machine.tell(0, "running", "", message)
        self._say_world(world)
        machine.resizing.next()

    def _say_world(self, world: World) -> None:
        pieces = self._machine.pieces
        where = ", ".join(f"{len(piece.nodes)} x {piece.gpus_per_node} of {piece.kind}" for piece in pieces)
        text = f"generation {world.generation}: {len(world.members)} workers ({where}), from {world.source}"
        self._machine.do(Say(text))

    def _saved(self, step: int) -> None:
        machine = self._machine
        machine.saved_step = max(machine.saved_step or 0, step)
        machine.timers["checkpoint"] = machine.now + machine.limits.checkpoint_s
        machine.saving.saved(step)
        machine.lives.saved()

    def _report(self, worker: Worker, message: Message) -> None:
        machine = self._machine
        if machine.mode in (Mode.RUNNING, Mode.FINISHING) and (batch := int(number(message.get("batch")))):
            machine.batch = batch
        machine.reporting.report(worker, message)


def number(value: object) -> float:
    """A number from a worker's message; anything else counts as 0."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and value == value and value >= 0:
        return float(value)
    return 0.0
