"""What the workers of one job tell its supervisor: their own state is noted, what follows is emitted. And what it does
when they tell of no step any more. Pure.

Their reports become one report of the job: rank 0's, with what only all ranks together show. Limit: ranks report at
their own times, so what is compared are stretches that overlap, not the same steps.
"""

from slurm_elastic.protocol import bottleneck, codec
from slurm_elastic.protocol.bottleneck import Pace
from slurm_elastic.protocol.json_lines import Message

from ...allocation.pieces.actions import Print
from ...allocation.pieces.events import Registered
from ...allocation.pieces.holding import Handlers, Part, some
from ...numerics.patience import LONGEST_PATIENCE_S, patience
from .. import hang_detection as hangs
from . import events
from .actions import AskStacks, ForwardReport, Send
from .context import Mode, SupervisorContext, Worker, number
from .events import HangEndTimer, HangTimer, StacksTimer, StalledSaveTimer

ANSWER_S = 6.0
"""How long the agents' answers are awaited."""
TOO_LATE_S = 5.0
"""A timer that is so late says that this process was stopped itself."""
SHOWN_FRAMES = 5
STALLED_SAVE_S = 20.0
"""How long rank 0 of a world that is to be ended may write what it has."""
MOST_ENDS, ENDS_WITHIN_S = 3, 86400.0
"""So many worlds are ended for a hang in that time; after that it is only said."""


class WorkerMessages(Part[SupervisorContext]):
    """The part of the machine that listens to workers, and reports what they say to selasticd."""

    def handlers(self) -> Handlers:
        return {
            events.WorkerMessage: self._take,
            Registered: self._registered,
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
            cost = (number(message.get(name)) for name in ("pause_s", "write_s", "megabytes"))
            context.emit(events.CheckpointSaved(int(number(message.get("step"))), *cost))
        elif kind == "unsaved":
            context.emit(events.CheckpointFailed(str(message.get("error", ""))))
        elif kind == "called_off":
            context.emit(events.WorldCalledOff(generation))
        elif kind == "failed":
            worker.error = str(message.get("error", "")) + self._who_is_missing(generation, message.get("missing"))
            if message.get("survived"):
                worker.quiesced = False
                context.emit(events.WorldRolledBack(generation, worker.error))
            elif message.get("differs"):
                context.emit(events.ReplicasDiffer(worker.error))
            else:
                context.emit(events.WorkerFailed(event.worker))
        elif kind == "no_room":
            worker.error = str(message.get("error", ""))
            context.emit(events.NoRoom(generation, worker.error, bool(message.get("again"))))
        elif kind == "done":
            worker.done, worker.finished = True, bool(message.get("finished"))
            context.emit(events.TrainingOver(message))
        elif kind == "report":
            self._reported(worker, message)
        elif kind == "pace":
            self._note_pace(worker, message)
        elif kind == "beat":
            step, usual_s = int(number(message.get("step"))), number(message.get("usual_s"))
            context.emit(events.StepsDone(generation, step, usual_s, bool(message.get("away"))))

    def _who_is_missing(self, generation: int, ranks: object) -> str:
        """The workers that a world waited for in vain: nobody has lost one that is there and stands still."""
        context, world = self._context, self._context.world
        members = world.members if world is not None else ()
        coming = context.coming(generation)
        awaited = coming.members if coming is not None else members if world and world.generation == generation else ()
        given = [rank for rank in ranks if isinstance(rank, int)] if isinstance(ranks, list) else []
        names = [awaited[rank] for rank in given if 0 <= rank < len(awaited)]
        names = [name for name in names if coming is None or name not in members] or names  # survivors come last
        return f": {some(names)} did not come" if names else ""

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

    def _registered(self, event: Registered) -> None:
        """selasticd has said how often it wants a report."""
        context, every_s = self._context, event.grant.report_interval_s
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
        shares = bottleneck.exposed_communication(paces), bottleneck.input_wait(paces)
        compared: Message = {"comm_share": shares[0], "input_wait_share": shares[1]}
        found = bottleneck.find(paces)
        if found is None:
            return compared
        node = next((worker.agent[1] for worker in members if worker.pace and worker.pace.rank == found.rank), "")
        named = {"bottleneck": found.kind, "bottleneck_share": found.share}
        where = {"bottleneck_rank": found.rank, "bottleneck_node": node}
        return compared | named | ({} if found.kind == bottleneck.COMMUNICATION else where)


APART = (
    "ranks that wait for each other at other lines never go on: what leaves a loop, or skips a step, has to be the "
    "same on each rank: job.global_step, or what they have made together (torch.distributed.all_reduce)"
)
APART_TIMES = 4
"""Of the time after which it is told, until such a job ends: 20 minutes, as the setting is. By then a connection that
carries nothing has ended by itself, and one that a network has lost for a while has come back."""


class Hangs(Part[SupervisorContext]):
    """The part of the machine that notices when no step is done any more, and asks the ranks where they are, once."""

    def __init__(self, context: SupervisorContext) -> None:
        super().__init__(context)
        self._generation, self._step = 0, -1
        self._usual_s = self._longest_s = 0.0
        self._since = self._due = 0.0
        self._away = False
        """Rank 0 is in job.once()."""
        self._longest_away_s = 0.0
        self._asked: dict[str, events.StackSeen | None] = {}
        """Workers that were asked, with their answers."""
        self._ended: list[float] = []
        """When worlds were ended for a hang."""
        self._why = ""
        """Why this one is, while what it has is written."""
        self._apart = False
        """Ranks were seen to wait for each other at several lines, and the user has no such world ended."""

    def handlers(self) -> Handlers:
        return {
            events.StepsDone: self._steps_done,
            events.StackSeen: self._stack_seen,
            events.Restarting: lambda event: self._forget(),
            events.TrainingOver: lambda event: self._over(),
            events.EndStalled: self._save_and_end,
            events.CheckpointSaved: lambda event: self._end_now(),
            HangTimer: self._no_step,
            StacksTimer: lambda event: self._tell(),
            HangEndTimer: lambda event: self._end_world(),
            StalledSaveTimer: lambda event: self._end_now(),
        }

    def _steps_done(self, event: events.StepsDone) -> None:
        """Rank 0 of a world says how far it is."""
        context = self._context
        if context.mode is Mode.FINISHING:
            return
        took = context.now - self._since
        if self._away and not event.away:
            self._longest_away_s = max(self._longest_away_s, took)
        if event.generation > self._generation:
            self._forget()
            self._generation, self._step, self._since = event.generation, event.step, context.now
        elif event.step > self._step:
            if self._usual_s:
                self._longest_s = max(self._longest_s, took)
            if context.stalled:
                context.stalled = False
                context.timers.cancel(HangEndTimer())
                said = f"training goes on, after {took:.0f} s without a step"
                context.do(Print(said))
                context.tell(0, "steps_again", said)
            self._step, self._since = event.step, context.now
            self._stop_asking()
        elif context.stalled and not event.away:
            return
        else:
            self._since = context.now  # it goes to job.once(), or comes back
        self._usual_s, self._away = event.usual_s, event.away
        self._wait()

    def _wait(self) -> None:
        usual_s = 0.0 if self._context.agreed() else self._usual_s
        longest_s = self._longest_away_s if self._away else self._longest_s
        self._wait_for(patience(self._context.limits.hang_s, usual_s, longest_s))

    def _wait_for(self, seconds: float) -> None:
        self._due = self._context.now + seconds
        self._context.timers.set(HangTimer(), self._due)

    def _over(self) -> None:
        """No step is to come; what the script does behind its loop may take long, and not for ever."""
        self._forget()
        self._since = self._context.now
        self._wait_for(LONGEST_PATIENCE_S)

    def _no_step(self, event: HangTimer) -> None:
        context = self._context
        waits = context.mode in (Mode.RUNNING, Mode.FORMING, Mode.FINISHING)
        if not waits or context.stop_code is not None:
            return
        if context.now - self._due > TOO_LATE_S or (context.agreed() and self._usual_s):
            self._usual_s = 0.0
            self._wait()
            return
        members = [worker for worker in context.members() if not worker.exited]
        self._asked = {worker.name: None for worker in members}
        for agent in dict.fromkeys(worker.agent for worker in members):
            names = tuple(worker.name for worker in members if worker.agent == agent)
            context.do(AskStacks(agent, names))
        context.timers.set(StacksTimer(), context.now + ANSWER_S)

    def _stack_seen(self, event: events.StackSeen) -> None:
        if event.worker in self._asked:
            self._asked[event.worker] = event
            if all(self._asked.values()):
                self._tell()

    def _tell(self) -> None:
        context, world, asked = self._context, self._context.world, self._asked
        self._stop_asking()
        if world is None or not asked:
            return
        for_s, together = context.now - self._since, all(seen and hangs.in_once(seen.frames) for seen in asked.values())
        if self._away and together and for_s < LONGEST_PATIENCE_S:
            self._wait_for(LONGEST_PATIENCE_S - for_s)
            return
        ranks = {name: rank for rank, name in enumerate(world.members) if name in asked}
        answers = {rank: asked[name] for name, rank in ranks.items()}
        places = {
            rank: hangs.place(seen.frames, seen.problem) if seen else hangs.place(()) for rank, seen in answers.items()
        }
        nodes = {rank: context.workers[name].agent[1] for name, rank in ranks.items() if name in context.workers}
        over = context.mode is Mode.FINISHING
        said = hangs.sentence(for_s, self._usual_s, places, nodes, over)
        limits = context.limits
        ends_s = 0.0 if over else limits.hang_end_s
        self._apart = not over and not ends_s and hangs.never_goes_on(places)
        then = f"the world is ended after {ends_s:.0f} s" if ends_s else "nothing was ended"
        if self._apart:
            ends_s = APART_TIMES * limits.hang_s
            then = f"the job ends after {ends_s:.0f} s: {APART}"
        context.do(Print(f"{said}; the whole stacks are in the logs of the ranks, and {then}"))
        for _, same in hangs.groups(places)[: hangs.SHOWN_GROUPS]:
            seen = answers[same[0]]
            frames = [frame for frame in (seen.frames if seen else ()) if not hangs.is_own(frame)]
            for frame in frames[:SHOWN_FRAMES]:
                context.do(Print(f"  rank {same[0]}| {frame}"))
        context.tell(0, "stalled", said[:1000], pause_s=for_s)
        context.stalled = not over
        if ends_s:
            context.timers.set(HangEndTimer(), max(context.now, self._since + ends_s))

    def _end_world(self) -> None:
        """It has done no step for as long as the user bears it."""
        context = self._context
        if self._apart:
            context.do(Print(f"the job ends, after {context.now - self._since:.0f} s without a step: {APART}"))
            context.end(1)
            return
        self._ended = [at for at in self._ended if context.now - at < ENDS_WITHIN_S]
        if len(self._ended) >= MOST_ENDS:
            context.do(Print(f"the world is not ended: {MOST_ENDS} were within a day (--hang-end)"))
            return
        self._ended.append(context.now)
        self._save_and_end(events.EndStalled(f"no step for {context.now - self._since:.0f} s (--hang-end)"))

    def _save_and_end(self, event: events.EndStalled) -> None:
        context, self._why = self._context, event.why
        if context.world is not None:
            context.do(Send(context.world.members[0], {"type": "stalled"}))
        context.timers.set(StalledSaveTimer(), context.now + STALLED_SAVE_S)

    def _end_now(self) -> None:
        """What rank 0 has is written, or is not in time."""
        if self._why:
            self._context.emit(events.Restart(self._why, 1))

    def _stop_asking(self) -> None:
        self._asked = {}
        self._context.timers.cancel(StacksTimer())

    def _forget(self) -> None:
        """Another world, or none: what was noted does not describe it."""
        self._stop_asking()
        for timer in (HangTimer(), HangEndTimer(), StalledSaveTimer()):
            self._context.timers.cancel(timer)
        self._usual_s = self._longest_s = self._longest_away_s = 0.0
        self._context.stalled = self._away = self._apart = False
        self._why = ""


def _pace(value: object) -> Pace | None:
    """A worker's message is not trusted to have its form: a report is no reason to stop a job."""
    try:
        return codec.decode(Pace, value)
    except codec.WireError:
        return None
