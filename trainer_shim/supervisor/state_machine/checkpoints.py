"""When the supervisor asks for a checkpoint: when the last one is too old, and before a job is requeued. Pure.

The training goes on meanwhile and afterwards: nothing waits for selasticd, which may never requeue the job. Limit: of
a checkpoint only the step is known; one that was being written when the resize came counts when it is no older than
the last report.
"""

from __future__ import annotations

from .actions import Print
from .context import Handlers, Mode, SupervisorContext
from .events import CheckpointSaved, ForgetRequeue, ResizeCame, SaveForRequeue, WorldRuns
from .timers import CheckpointTimer


class Checkpoints:
    """The part of the machine that asks for checkpoints and notes them."""

    def __init__(self, context: SupervisorContext) -> None:
        self._context = context
        self._requeue = 0
        """The resize for which a checkpoint is to be written; 0: none."""
        self._from_step = 0
        """A checkpoint of an earlier step is not good enough for it."""

    def handlers(self) -> Handlers:
        return {
            CheckpointTimer: self._too_old,
            CheckpointSaved: self._saved,
            SaveForRequeue: self._save_for_requeue,
            WorldRuns: self._world_runs,
            ForgetRequeue: self._forget,
            ResizeCame: self._came,
        }

    def _too_old(self, event: CheckpointTimer) -> None:
        if self._context.mode is Mode.RUNNING:
            self._wait()
            self._context.ask_for_checkpoint()

    def _wait(self) -> None:
        self._context.timers.set(CheckpointTimer(), self._context.now + self._context.limits.checkpoint_s)

    def _saved(self, event: CheckpointSaved) -> None:
        context = self._context
        context.saved_step = max(context.saved_step or 0, event.step)
        self._wait()
        if self._requeue and event.step >= self._from_step:
            resize_id, self._requeue = self._requeue, 0
            context.report_phase(resize_id, "saved")

    def _save_for_requeue(self, event: SaveForRequeue) -> None:
        context, resize = self._context, event.resize
        context.report_phase(resize.id, "accepted")
        context.do(Print(f"resize {resize.id}: writing a checkpoint, to start again on {resize.gpus} GPUs"))
        self._requeue, self._from_step = resize.id, context.reported_step
        context.ask_for_checkpoint()

    def _world_runs(self, event: WorldRuns) -> None:
        """Every new world is asked again."""
        if self._requeue:
            self._context.ask_for_checkpoint()

    def _forget(self, event: ForgetRequeue) -> None:
        self._requeue = 0

    def _came(self, event: ResizeCame) -> None:
        if event.resize.withdrawn and event.resize.id == self._requeue:
            self._requeue = 0
