"""What the workers of one job tell its supervisor: their own state is noted, what follows is emitted. Pure.

Their reports become one report of the job: rank 0's, with what only all ranks together show. Limit: ranks report at
their own times, so what is compared are stretches that overlap, not the same steps.
"""

from __future__ import annotations

from slurm_elastic.protocol import bottleneck, codec
from slurm_elastic.protocol.bottleneck import Pace
from slurm_elastic.protocol.json_lines import Message

from . import events
from .actions import ForwardReport, Send
from .context import Handlers, Mode, Part, number
from .workers import Worker


class WorkerMessages(Part):
    """The part of the machine that listens to workers, and reports what they say to selasticd."""

    def handlers(self) -> Handlers:
        return {
            events.WorkerMessage: self._take,
            events.Registered: self._registered,
            events.WorldRuns: self._world_runs,
        }

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
        elif kind == "unsaved":
            context.emit(events.CheckpointFailed(str(message.get("error", ""))))
        elif kind == "called_off":
            context.emit(events.WorldCalledOff(generation))
        elif kind == "failed":
            worker.error = str(message.get("error", ""))
            if message.get("survived"):
                worker.quiesced = False
                context.emit(events.WorldRolledBack(generation, worker.error))
        elif kind == "done":
            worker.done, worker.finished = True, bool(message.get("finished"))
            context.emit(events.TrainingOver(message))
        elif kind == "report":
            self._reported(worker, message)
        elif kind == "pace":
            self._note_pace(worker, message)

    def _relay(self, worker: Worker, generation: int, message: Message) -> None:
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

    # --- reports ----------------------------------------------------------------------------------------------

    def _registered(self, event: events.Registered) -> None:
        """selasticd has said how often it wants a report."""
        context, every_s = self._context, event.report_interval_s
        if every_s == context.report_every_s:
            return
        context.report_every_s = every_s
        for name in context.workers:
            context.do(Send(name, {"type": "report_every", "seconds": every_s}))

    def _world_runs(self, event: events.WorldRuns) -> None:
        """What was measured in the world before does not describe this one."""
        for worker in self._context.workers.values():
            worker.pace = None

    def _reported(self, worker: Worker, message: Message) -> None:
        """Rank 0's report is forwarded as the job's."""
        context = self._context
        if context.mode in (Mode.RUNNING, Mode.FINISHING) and context.world is not None:
            context.batch = int(number(message.get("batch"))) or context.batch
            self._note_pace(worker, message)
            self._forward(message)

    def _note_pace(self, worker: Worker, message: Message) -> None:
        world = self._context.world
        if world is not None and message.get("generation") == world.generation:
            worker.pace = _pace(message.get("pace"))

    def _forward(self, message: Message) -> None:
        context, world, step = self._context, self._context.world, message.get("step")
        context.reported_step = step if isinstance(step, int) else 0
        report = {name: value for name, value in message.items() if name not in ("type", "pace")}
        nodes = len({node for piece in context.pieces for node in piece.nodes})
        context.do(ForwardReport(report | self._compared(), len(world.members) if world else 0, nodes))

    def _compared(self) -> Message:
        """What holds the steps back; nothing until every rank has reported its pace."""
        members = self._context.members()
        paces = [worker.pace for worker in members if worker.pace is not None]
        world = self._context.world
        if world is None or not paces or len(paces) < len(world.members):
            return {}
        compared: Message = {"comm_share": bottleneck.exposed_communication(paces)}
        found = bottleneck.find(paces)
        if found is None:
            return compared
        node = next((worker.agent[1] for worker in members if worker.pace and worker.pace.rank == found.rank), "")
        named = {"bottleneck": found.kind, "bottleneck_share": found.share}
        where = {"bottleneck_rank": found.rank, "bottleneck_node": node}
        return compared | named | ({} if found.kind == bottleneck.COMMUNICATION else where)


def _pace(value: object) -> Pace | None:
    """A worker's message is not trusted to have its form: a report is no reason to stop a job."""
    try:
        return codec.decode(Pace, value)
    except codec.WireError:
        return None
