"""What the workers of one job tell its supervisor: their own state is noted, what follows is emitted. Pure."""

from __future__ import annotations

from . import events
from .actions import Send
from .context import Handlers, Mode, Part, number
from .workers import Worker


class WorkerMessages(Part):
    """The part of the machine that listens to workers."""

    def handlers(self) -> Handlers:
        return {events.WorkerMessage: self._take}

    def _take(self, event: events.WorkerMessage) -> None:
        """One message; a kind that is not known has no effect, nor has anything from a worker that was killed."""
        context, message, kind = self._context, event.message, event.message.get("type")
        worker = context.workers.get(event.worker)
        if worker is None or worker.ending:
            return
        generation = int(number(message.get("generation")))
        if kind == "ready":
            worker.ready, worker.config = True, message
            context.emit(events.WorkerReady())
        elif kind == "store":
            self._relay(worker, generation, message)
        elif kind == "quiesced":
            worker.quiesced = True
            context.emit(events.WorkerQuiesced(generation))
        elif kind == "running":
            context.batch = int(number(message.get("batch"))) or context.batch
            context.emit(events.FirstStepDone(generation, message))
        elif kind == "saved":
            context.emit(events.CheckpointSaved(int(number(message.get("step")))))
        elif kind == "failed":
            worker.error = str(message.get("error", ""))
            if message.get("survived"):
                worker.quiesced = False
                context.emit(events.WorldRolledBack(generation, worker.error))
        elif kind == "done":
            worker.done, worker.finished = True, bool(message.get("finished"))
            context.emit(events.TrainingOver(message))
        elif kind in ("report", "pace"):
            context.emit(events.WorkerReported(worker.name, message))

    def _relay(self, worker: Worker, generation: int, message: events.Message) -> None:
        """Only rank 0 of a world that is coming opens a store."""
        context, world = self._context, self._context.world
        participants: tuple[str, ...] = ()
        if context.mode is Mode.FORMING and world is not None and world.generation == generation:
            participants = world.members
        elif coming := context.coming(generation):
            participants = (*coming.members, *(world.members if world is not None else ()))
        if participants and participants[0] == worker.name:
            for name in dict.fromkeys(participants):
                if name in context.workers:
                    context.do(Send(name, message))
