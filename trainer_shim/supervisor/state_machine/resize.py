"""One resize at a time: companions asked for and warmed up (warm_up), a new world agreed on. Pure.

Until the new world's first step everything can be undone, and is: companions are dropped, their workers killed, the
old world goes on. After the agreement on a step that takes all of its members, who go back to it by themselves
(roll_back); workers that leave stay until then, and are dismissed with that step. Nodes that a resize drops are only
left here; selasticd gives them back to Slurm.
"""

from __future__ import annotations

from slurm_elastic.protocol.json_lines import Message
from slurm_elastic.protocol.messages import ENDING, Piece, Resize, Unreached

from ...allocation.pieces.events import JobTerminating, ResizeCame
from . import events
from .actions import CancelCompanion, DropCompanions, Print, Send, SubmitCompanion
from .context import Handlers, Mode, Part, RunningResize, Stage, SupervisorContext, number
from .timers import CompanionTimer, RollBackTimer
from .workers import agents_of, kept, ranked, taken_back, without


class Resizes(Part):
    """The part of the machine that changes the world on purpose."""

    def __init__(self, context: SupervisorContext) -> None:
        super().__init__(context)
        self._waiting: Resize | None = None
        self._last_id = 0
        self._called_off: dict[int, RunningResize] = {}
        """By generation: their members may agree on it all the same."""

    def handlers(self) -> Handlers:
        return {
            ResizeCame: self._came,
            events.BeginWaitingResize: lambda event: self._begin_waiting(),
            events.JobPreempted: self._go_on_without,
            events.JoinersReady: lambda event: self._agree(),
            events.WorkerQuiesced: self._quiesced,
            events.WorldCalledOff: self._world_called_off,
            events.FirstStepDone: lambda event: self._running(event.generation, event.message),
            events.TrainingOver: self._training_over,
            JobTerminating: self._job_terminating,
            events.UndoResize: lambda event: self._undo(event.detail, event.phase, event.unreached),
            events.ResizeRolledBack: self._rolled_back,
            events.Restarting: lambda event: self._restarting(),
            events.EndJob: lambda event: self._undo("the job is ending", "withdrawn"),
        }

    # --- beginning --------------------------------------------------------------------------------------------

    def _came(self, event: ResizeCame) -> None:
        """Take a resize, or the withdrawal of one; one already seen changes nothing."""
        resize, running = event.resize, self._context.resize
        if resize.withdrawn:
            self._withdrawn(resize.id)
        elif resize.id > self._last_id:
            self._last_id = resize.id
            self._waiting = resize
            if running is not None and not running.agreed:
                self._recall(running, f"resize {resize.id} came instead")
            self._begin_waiting()

    def _withdrawn(self, resize_id: int) -> None:
        running = self._context.resize
        if self._waiting is not None and self._waiting.id == resize_id:
            self._waiting = None
            self._context.report_phase(resize_id, "withdrawn", "before it began")
        elif running is not None and running.id == resize_id and not running.agreed:
            self._recall(running, "selasticd took it back")
        elif self._context.requeue_id == resize_id:
            self._context.requeue_id = 0
        self._last_id = max(self._last_id, resize_id)

    def _begin_waiting(self) -> None:
        """Begin with the resize that waits, when the world is up and nothing else is under way."""
        context, resize = self._context, self._waiting
        if resize is None or context.resize is not None:
            return
        if (context.ending and not self._only_gives(resize)) or context.mode in (Mode.FINISHING, Mode.ENDED):
            self._waiting = None
            context.report_phase(resize.id, "withdrawn", "the job is ending")
        elif context.mode is Mode.RUNNING:
            self._waiting = None
            self._begin(resize)

    def _only_gives(self, resize: Resize) -> bool:
        """Whether it is carried out though Slurm will end the job: who it is ended for may need no more than that."""
        held = sum(piece.gpus for piece in self._context.pieces)
        return self._context.stop_code is None and not resize.add and resize.gpus < held

    def _begin(self, resize: Resize) -> None:
        context = self._context
        if resize.requeues and resize.add:
            self._save_for_requeue(resize)
            return
        context.requeue_id = 0
        try:
            again = () if resize.add else taken_back(context.pieces, resize.keep, context.had())
            keep = kept(context.pieces, without(resize.keep, again))
            gpus = sum(piece.gpus for piece in [*keep, *again]) + sum(shape.gpus for shape in resize.add)
            if gpus != resize.gpus:
                raise ValueError(f"its pieces add up to {gpus} GPUs, not {resize.gpus}")
        except ValueError as error:
            context.report_phase(resize.id, "failed", str(error))
            return
        context.report_phase(resize.id, "accepted")
        if context.stalled and not (again or resize.add):
            self._restart_with(resize, keep)
            return
        batch, wait_s = resize.batch or context.batch, resize.wait_s
        context.resize = RunningResize(resize.id, keep, batch, wait_s, resize.reason, awaited=len(resize.add))
        if again:
            self._take_back(again)
            return
        if not resize.add:
            self._agree()
            return
        context.timers.set(CompanionTimer(), context.now + max(wait_s, 1.0))
        for index, shape in enumerate(resize.add):
            context.do(SubmitCompanion(resize.id, index, shape, wait_s))
        context.report_phase(resize.id, "submitted")

    def _take_back(self, pieces: tuple[Piece, ...]) -> None:
        """Start agents again on nodes that the training has left and that Slurm did not take."""
        context, resize = self._context, self._context.resize
        assert resize is not None
        context.timers.set(CompanionTimer(), context.now + context.limits.warm_up_s)
        resize.stage, resize.added = Stage.WARMING, dict(enumerate(pieces))
        context.report_phase(resize.id, "granted")
        for piece in pieces:
            context.emit(events.StartAgents(piece))

    def _restart_with(self, resize: Resize, keep: tuple[Piece, ...]) -> None:
        """A world that does no step agrees on nothing: it is ended, and begins again on what is kept."""
        context = self._context
        context.pieces, context.batch, context.restart_id = keep, resize.batch or context.batch, resize.id
        context.emit(events.EndStalled(f"resize {resize.id} of a training that does no step"))

    def _restarting(self) -> None:
        self._called_off.clear()
        self._context.quit_agents(sorted(set(self._context.agents) - set(agents_of(self._context.pieces))))

    def _save_for_requeue(self, resize: Resize) -> None:
        context = self._context
        context.report_phase(resize.id, "accepted")
        context.do(Print(f"resize {resize.id}: writing a checkpoint, to start again on {resize.gpus} GPUs"))
        context.requeue_id, context.requeue_from_step = resize.id, context.reported_step
        context.ask_for_checkpoint()

    def _go_on_without(self, event: events.JobPreempted) -> None:
        """Leave a companion that Slurm takes away while its workers can still take part in the agreement."""
        context, running = self._context, self._context.resize
        keep = tuple(piece for piece in context.pieces if piece.slurm_job_id != event.slurm_job_id)
        ends = context.stop_code is not None
        if context.mode is not Mode.RUNNING or ends or len(keep) == len(context.pieces):
            return
        if running is not None:
            if running.agreed or (running.keep == keep and running.stage is Stage.AGREEING):
                return
            self._undo(event.reason)
        context.do(Print(f"{event.reason}: going on without it"))
        context.resize = RunningResize(0, keep, context.batch, 0.0, event.reason)
        self._agree()

    # --- the change -------------------------------------------------------------------------------------------

    def _agree(self) -> None:
        """Send everyone the coming world; they agree on the step among themselves."""
        context, resize = self._context, self._context.resize
        if resize is None:
            return
        resize.stage = Stage.AGREEING
        old = context.members()
        for worker in old:
            worker.quiesced = False
        inside = [*old, *context.workers_on(resize.agents)]
        names = ranked(inside, resize.pieces)
        if not names:
            self._undo(f"{len(inside)} workers are fewer than the {inside[0].unit} that one replica needs")
            return
        context.kill(worker for worker in inside if worker not in old and worker.name not in names)
        leavers = [worker for worker in old if worker.name not in names]
        resize.world = context.announce(names, resize.batch, "survivor", leavers)

    def _quiesced(self, event: events.WorkerQuiesced) -> None:
        """A worker has stopped at the agreed step: from here on the new world comes, or a restart does."""
        context, running = self._context, self._context.resize
        if running is not None and context.coming(event.generation) is not None:
            running.agreed = True
            return
        called_off = self._called_off.pop(event.generation, None)
        if called_off is None:
            return
        if called_off.agents:  # killed by now: it cannot come
            context.emit(events.AwaitRollBack(event.generation))
        elif running is None or not running.agreed:
            self._undo(f"generation {event.generation} was agreed on first", "withdrawn")
            context.resize, called_off.agreed = called_off, True

    def _training_over(self, event: events.TrainingOver) -> None:
        """A world already agreed on is the last one, any other comes too late."""
        running = self._context.resize
        if self._context.mode not in (Mode.RUNNING, Mode.FORMING, Mode.STARTING):
            return
        if running is not None and running.agreed and running.world is not None:
            self._running(running.world.generation, {})
        else:
            self._undo("the training is over", "withdrawn")

    def _running(self, generation: int, message: Message) -> None:
        """The new world's first step is done: it is what trains now."""
        context, resize, world = self._context, self._context.resize, self._context.coming(generation)
        if resize is None or world is None:
            return
        gpus_before, batch_before = sum(piece.gpus for piece in context.pieces), context.batch
        dropped = set(agents_of(context.pieces)) - set(agents_of(resize.pieces))
        left = [worker for worker in context.members() if worker.name not in world.members]
        self._over()
        self._called_off = {number: other for number, other in self._called_off.items() if number > generation}
        context.enter(world, resize.pieces)
        for worker in [*context.workers_on(dropped), *(worker for worker in left if worker.agent not in dropped)]:
            worker.ending = True
            context.do(Send(worker.name, {"type": "dismiss", "generation": generation}))
            if worker.exited:
                del context.workers[worker.name]
        context.quit_agents(sorted(dropped))
        if not resize.id:  # what Slurm takes away it gets at once
            for job_id in {job_id for job_id, _ in dropped} - {piece.slurm_job_id for piece in resize.pieces}:
                context.do(CancelCompanion(job_id))
        context.report_phase(resize.id, "running", resize.reason, message)
        pause = number(message.get("pause_s"))
        text = f"generation {generation}: {gpus_before} -> {len(world.members)} workers"
        if batch_before != context.batch:
            text += f", batch {batch_before} -> {context.batch}"
        context.do(Print(text + (f", pause {pause:.2f} s" if "pause_s" in message else "")))
        if resize.doubt:
            context.emit(events.Restart(resize.doubt, 1))
        context.emit(events.BeginWaitingResize())

    def _over(self) -> None:
        self._context.resize = None
        self._context.timers.cancel(CompanionTimer())
        self._context.timers.cancel(RollBackTimer())

    # --- undoing ----------------------------------------------------------------------------------------------

    def _job_terminating(self, event: JobTerminating) -> None:
        running = self._context.resize
        if not self._context.ending:
            self._context.report_phase(0, ENDING)
        self._context.ending = True
        gives = running is not None and not running.awaited and running.keep != self._context.pieces
        if running is not None and not running.agreed and (event.stop or not gives):
            self._undo("the job is ending", "withdrawn")

    def _recall(self, running: RunningResize, detail: str) -> None:
        """Undo it, unless its members have left for the new world: where that is announced, they are asked."""
        if running.world is None:
            self._undo(detail, "withdrawn")
        elif not running.recalled:
            running.recalled = detail
            self._context.call_off(running, lost=False)

    def _world_called_off(self, event: events.WorldCalledOff) -> None:
        """One member that has not left is enough: it takes all of them."""
        running = self._context.resize
        if running is not None and running.recalled and self._context.coming(event.generation) is not None:
            self._undo(running.recalled, "withdrawn")
            self._begin_waiting()

    def _rolled_back(self, event: events.ResizeRolledBack) -> None:
        self._called_off.pop(event.generation, None)
        self._begin_waiting()

    def _undo(self, detail: str, phase: str = "failed", unreached: tuple[Unreached, ...] = ()) -> None:
        """Undo the resize under way, if there is one: the job goes on with the old pieces."""
        context, resize = self._context, self._context.resize
        if resize is None:
            return
        self._over()
        if resize.world is not None:
            self._called_off[resize.world.generation] = resize
        context.call_off(resize, lost=bool(resize.agents))  # whose workers are killed
        context.kill(context.workers_on(resize.agents))
        context.quit_agents(sorted(resize.agents))
        if resize.awaited:
            context.do(DropCompanions(resize.id))
        context.forget_left()
        if resize.id:
            context.report_phase(resize.id, phase, detail, unreached=unreached)
            context.do(Print(f"resize {resize.id} {phase}: {detail}"))
        if resize.world is not None and resize.agreed:
            context.emit(events.Restart(detail, 1))
