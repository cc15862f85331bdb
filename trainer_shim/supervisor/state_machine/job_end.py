"""How a job ends: its training is over, it is told to stop, or it cannot go on. Pure."""

from slurm_elastic.protocol.json_lines import Message

from ...allocation.pieces.actions import Print
from ...allocation.pieces.events import DirectoryTaken, JobTerminating
from ...allocation.pieces.holding import Handlers, Part
from ...control.worker_client import EXIT_LOST
from . import events
from .actions import Send
from .context import Mode, SupervisorContext
from .events import LastCheckpointTimer

SIGTERM_CODE = 128 + 15
"""Slurm sends SIGTERM more than once, and does not mean more by it. Somebody at a keyboard does, by Ctrl-C."""
UNSAVED_CODE = 74
"""EX_IOERR: the training is over, and its end is in no checkpoint."""


class JobEnd(Part[SupervisorContext]):
    """The part of the machine that ends the job. It takes an event after all the others."""

    def __init__(self, context: SupervisorContext) -> None:
        super().__init__(context)
        self._owed_s: float | None = None
        """A checkpoint is to be written in this time as soon as there is something to write."""
        self._asked = False
        """A checkpoint was asked for and has not come yet."""
        self._unsaved = ""
        """Why the end of the training is in no checkpoint."""
        self._error = ""
        """Of the last checkpoint that failed."""

    def handlers(self) -> Handlers:
        return {
            events.TrainingOver: self._training_over,
            events.EndIfOver: lambda event: self._end_if_over(),
            JobTerminating: self._terminating,
            DirectoryTaken: self._taken,
            events.WorldRuns: self._world_runs,
            events.CheckpointSaved: self._saved,
            events.CheckpointFailed: self._failed,
            LastCheckpointTimer: self._no_checkpoint,
        }

    def _training_over(self, event: events.TrainingOver) -> None:
        """A worker has finished its loop, or its script: the world can change no more."""
        context = self._context
        context.counters = event.message or context.counters
        self._unsaved = str(event.message.get("unsaved") or "") or self._unsaved
        if context.mode in (Mode.RUNNING, Mode.FORMING):
            context.mode = Mode.FINISHING
        self._end_if_over()

    def _end_if_over(self) -> None:
        """End the job when nobody is left who could go on."""
        context = self._context
        rest = [worker for worker in context.workers.values() if not worker.exited and not worker.ending]
        if not rest and not context.awaited:
            self._say_unsaved(self._unsaved)
            context.end(UNSAVED_CODE if self._unsaved else 0)
        elif context.mode is Mode.STARTING and not context.awaited and all(worker.ready for worker in rest):
            context.do(Print("some workers ended before the training began while others wait for them"))
            context.end(1)

    def _terminating(self, event: JobTerminating) -> None:
        """Checkpoint at once, or once there is something to write.

        With `stop` the deadline, or a second Ctrl-C, ends the job without it.
        """
        context = self._context
        if self._asked and not event.stop:
            return  # the same notice, from another node
        twice = context.stop_code is not None
        if event.stop and twice and event.code == SIGTERM_CODE:
            return
        if event.stop:
            context.stop_code = event.code
        if event.stop and (twice or context.mode not in (Mode.RUNNING, Mode.FINISHING)):
            context.end(event.code)
            return
        if event.stop:
            context.timers.set(LastCheckpointTimer(), context.now + event.deadline_s)
        if context.mode is Mode.FINISHING:
            pass  # the last one is being written
        elif context.mode is Mode.RUNNING:
            self._save_now(event.deadline_s)
        else:
            self._owed_s = event.deadline_s

    def _taken(self, event: DirectoryTaken) -> None:
        """The other one trains from the same checkpoints: nothing more is written there."""
        self._context.do(Print("another supervisor has taken this job directory over, ending without a checkpoint"))
        self._context.end(EXIT_LOST)

    def _world_runs(self, event: events.WorldRuns) -> None:
        """It owes the checkpoint that was asked for when there was none."""
        self._asked = False
        owed, self._owed_s = self._owed_s, None
        if owed is not None:
            self._save_now(owed)

    def _save_now(self, deadline_s: float) -> None:
        context = self._context
        self._asked = True
        context.do(Print("the job is about to end: writing a checkpoint"))
        hurry: Message = {"type": "hurry", "deadline_s": deadline_s, "stop": context.stop_code is not None}
        for worker in context.members():  # a world just agreed on has its rank 0 among them
            context.do(Send(worker.name, hurry))

    def _saved(self, event: events.CheckpointSaved) -> None:
        context, self._asked = self._context, False
        if context.stop_code is not None:
            context.do(Print(f"checkpoint of step {context.saved_step} written, ending"))
            context.end(context.stop_code)

    def _failed(self, event: events.CheckpointFailed) -> None:
        self._error, self._asked = event.error, False

    def _say_unsaved(self, problem: str) -> None:
        if problem:
            text = f"the last checkpoint could not be written: {problem}; run again, this begins at"
            self._context.do(Print(f"{text} {self._context.origin()}"))

    def _no_checkpoint(self, event: LastCheckpointTimer) -> None:
        """The time for the last checkpoint is over."""
        context = self._context
        if context.stop_code is not None:
            why = f" ({self._error})" if self._error else ""
            context.do(Print(f"no checkpoint in the time left{why}, ending"))
            context.end(context.stop_code)
