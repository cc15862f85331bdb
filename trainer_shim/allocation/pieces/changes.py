"""One change of pieces at a time: what selasticd orders, and what Slurm makes necessary. Pure.

Companions are asked for and their agents started; the framework hears PiecesReady or PiecesLeaving, goes over to what
is coming, and says so. Until then everything can be undone, and is.
"""

from slurm_elastic.protocol.messages import ENDING, Piece, Resize

from . import events
from .actions import CancelCompanion, DropCompanions, Print, SubmitCompanion
from .events import CompanionTimer, SuspendedTimer
from .holding import Handlers, Holding, Part, some
from .table import ADDED, ALONE, Change, State, nodes_of

SUSPENDED_S = 4.0
"""From Slurm's SIGTSTP until its SIGSTOP, which follows after two seconds, has come for certain."""


class Changes(Part[Holding]):
    """The part of the machine that asks for pieces, and gives them up."""

    def __init__(self, context: Holding) -> None:
        super().__init__(context)
        self._waiting: Resize | None = None
        self._last_id = 0
        self._requeue_id = 0
        """The resize for which the state is to be saved, to start again; 0: none."""

    def handlers(self) -> Handlers:
        return {
            events.ResizeCame: self._came,
            events.BeginWaitingResize: lambda event: self._begin_waiting(),
            events.CompanionGranted: self._granted,
            events.CompanionRefused: self._refused,
            events.NodeTerminating: self._terminating,
            events.NodeSuspending: self._suspending,
            SuspendedTimer: lambda event: self._context.do(CancelCompanion(event.of)),
            events.JobTerminating: self._job_terminating,
            CompanionTimer: self._timed_out,
        }

    # --- what selasticd orders --------------------------------------------------------------------------------

    def _came(self, event: events.ResizeCame) -> None:
        """Take a resize, or the withdrawal of one; one already seen changes nothing."""
        resize, change = event.resize, self._context.change
        if resize.withdrawn:
            self._withdrawn(resize.id)
        elif resize.id > self._last_id:
            self._last_id = resize.id if resize.id < ALONE else self._last_id
            self._waiting = resize
            if change is not None and not change.agreed:
                self._recall(change, f"resize {resize.id} came instead")
            self._begin_waiting()

    def _withdrawn(self, resize_id: int) -> None:
        change = self._context.change
        if self._waiting is not None and self._waiting.id == resize_id:
            self._waiting = None
            self._context.tell(resize_id, "withdrawn", "before it began")
        elif change is not None and change.id == resize_id and not change.agreed:
            self._recall(change, "selasticd took it back")
        elif self._requeue_id == resize_id:
            self._no_requeue()
        self._last_id = max(self._last_id, resize_id)

    def _recall(self, change: Change, why: str) -> None:
        """Undo it, or ask the framework to where that has begun to go over."""
        if not change.begun:
            self._context.undo(self._with_late(why), "withdrawn")
        elif not change.recalled:
            change.recalled = why
            self._context.emit(events.ChangeRecalled())

    def _begin_waiting(self) -> None:
        """Begin with the resize that waits, when pieces may change and nothing else is under way."""
        context, resize = self._context, self._waiting
        if resize is None or context.change is not None:
            return
        if (context.ending and not self._only_gives(resize)) or context.over:
            self._waiting = None
            context.tell(resize.id, "withdrawn", "the job is ending")
        elif context.settled:
            self._waiting = None
            self._begin(resize)

    def _only_gives(self, resize: Resize) -> bool:
        """Whether it is carried out though Slurm will end the job: who it is ended for may need no more than that."""
        held = sum(piece.gpus for piece in self._context.pieces)
        return not self._context.stopping and not resize.add and resize.gpus < held

    def _begin(self, resize: Resize) -> None:
        context = self._context
        self._no_requeue()
        if resize.requeues and resize.add:
            self._requeue_id = resize.id
            context.tell(resize.id, "accepted")
            context.emit(events.RequeueAsked(resize.id, resize.gpus))
            return
        try:
            keep, again = context.nodes.divide(resize.keep, again=not resize.add)
            gpus = sum(piece.gpus for piece in [*keep, *again]) + sum(shape.gpus for shape in resize.add)
            if gpus != resize.gpus:
                raise ValueError(f"its pieces add up to {gpus} GPUs, not {resize.gpus}")
            if why := context.refused.get(gpus):
                raise ValueError(f"{why}; {gpus} GPUs were tried before")
        except ValueError as error:
            context.tell(resize.id, "failed", str(error))
            return
        context.tell(resize.id, "accepted")
        context.change = Change(resize.id, keep, resize.batch, resize.wait_s, resize.reason, len(resize.add))
        if again:
            self._start(again)
        elif resize.add:
            self._ask(resize)
        elif context.leaving:
            context.emit(events.PiecesLeaving(context.leaving, resize.reason))
        else:
            context.emit(events.PiecesReady())

    def _no_requeue(self) -> None:
        if self._requeue_id:
            self._requeue_id = 0
            self._context.emit(events.RequeueAsked(0))

    # --- adding -----------------------------------------------------------------------------------------------

    def _ask(self, resize: Resize) -> None:
        context = self._context
        context.timers.set(CompanionTimer(), context.now + max(resize.wait_s, 1.0))
        for index, shape in enumerate(resize.add):
            context.nodes.begin((-resize.id, str(index)), Piece(0, "companion", (), shape.gpus_per_node), State.ASKED)
            context.do(SubmitCompanion(resize.id, index, shape, resize.wait_s))
        context.tell(resize.id, "submitted")

    def _granted(self, event: events.CompanionGranted) -> None:
        """A companion has its nodes; with the last one their agents are started."""
        nodes, key = self._context.nodes, (-event.resize_id, str(event.index))
        if nodes.state(key) is not State.ASKED:
            self._context.do(DropCompanions(event.resize_id))
            return
        nodes.move(key, State.GRANTED)
        nodes.rows[key].piece = event.piece
        if not nodes.of(State.ASKED):
            self._start(tuple(nodes.rows.pop(granted).piece for granted in nodes.of(State.GRANTED)))

    def _start(self, pieces: tuple[Piece, ...]) -> None:
        """Start agents: on what Slurm has granted, or on nodes that were left and that Slurm did not take."""
        context, change = self._context, self._context.change
        assert change is not None
        context.timers.set(CompanionTimer(), context.now + context.limits.warm_up_s)
        for piece in pieces:
            for key in nodes_of([piece]):
                context.nodes.begin(key, piece, State.STARTING)
        context.tell(change.id, "granted")
        for piece in pieces:
            context.launch(piece)

    def _refused(self, event: events.CompanionRefused) -> None:
        if self._context.change is not None and self._context.change.id == event.resize_id:
            self._context.undo(event.detail, "withdrawn")

    def _timed_out(self, event: CompanionTimer) -> None:
        """The companions have not come, or what they add is not ready, in the time that the resize allows."""
        context, change = self._context, self._context.change
        if change is not None and context.nodes.of(State.ASKED):
            context.undo(f"Slurm granted no companion within {change.wait_s:.0f} s", "withdrawn")
        elif change is not None and not change.begun:
            why = f"the new workers were not ready within {context.limits.warm_up_s:.0f} s"
            context.undo(self._with_late(why))

    def _with_late(self, why: str) -> str:
        late = self._context.late()
        return f"{why}; not ready: {some(late)}" if late else why

    # --- what Slurm takes -------------------------------------------------------------------------------------

    def _terminating(self, event: events.NodeTerminating) -> None:
        """Slurm will take this node away in seconds, and with it all of its job's."""
        job_id = event.agent[0]
        if job_id == self._context.batch_host[0]:
            self._context.emit(events.JobTerminating(self._context.limits.end_s, stop=False))
        else:
            self._go_on_without(job_id, f"Slurm takes job {job_id} away")

    def _suspending(self, event: events.NodeSuspending) -> None:
        """Who is stopped stops everybody. What has not been left by then is woken up by its end, and can be left."""
        context, (job_id, _) = self._context, event.agent
        if job_id != context.batch_host[0] and SuspendedTimer(job_id) not in context.timers:
            context.timers.set(SuspendedTimer(job_id), context.now + SUSPENDED_S)
            self._go_on_without(job_id, f"Slurm suspends job {job_id}")

    def _go_on_without(self, job_id: int, reason: str) -> None:
        """Leave a companion that Slurm takes away while the framework can still go over to what is kept."""
        context = self._context
        added = [key for key in context.nodes.of(*ADDED) if key[0] == job_id]
        if added:
            context.lose_added(added, reason)
        keep, change = tuple(piece for piece in context.pieces if piece.slurm_job_id != job_id), context.change
        if not context.settled or context.stopping or len(keep) == len(context.pieces):
            return
        if change is not None:
            if change.agreed or (change.keep == keep and change.begun):
                return
            context.undo(reason)
        context.do(Print(f"{reason}: going on without it"))
        context.change = Change(0, keep, 0, 0.0, reason)
        context.emit(events.PiecesLeaving(context.leaving, reason))

    def _job_terminating(self, event: events.JobTerminating) -> None:
        context, change = self._context, self._context.change
        if not context.ending:
            context.tell(0, ENDING)
        context.ending, context.stopping = True, context.stopping or event.stop
        gives = change is not None and not change.asked and change.keep != context.pieces
        if change is not None and not change.agreed and (event.stop or not gives):
            context.undo("the job is ending", "withdrawn")
