"""When the supervisor asks for a checkpoint: when the last one is too old, and before a job is requeued. Pure.

The training goes on meanwhile and afterwards: nothing waits for selasticd, which may never requeue the job. Limit: of
a checkpoint only the step is known; one that was being written when the resize came counts when it is no older than
the last report.
"""

from __future__ import annotations

from . import events
from .context import Handlers, Mode, Part
from .timers import CheckpointTimer


class Checkpoints(Part):
    """The part of the machine that asks for checkpoints and notes them."""

    def handlers(self) -> Handlers:
        return {
            CheckpointTimer: self._too_old,
            events.CheckpointSaved: self._saved,
            events.WorldRuns: self._world_runs,
        }

    def _too_old(self, event: CheckpointTimer) -> None:
        if self._context.mode is Mode.RUNNING:
            self._wait()
            self._context.ask_for_checkpoint()

    def _wait(self) -> None:
        self._context.timers.set(CheckpointTimer(), self._context.now + self._context.limits.checkpoint_s)

    def _saved(self, event: events.CheckpointSaved) -> None:
        context = self._context
        context.saved_step = max(context.saved_step or 0, event.step)
        self._wait()
        if context.requeue_id and event.step >= context.requeue_from_step:
            resize_id, context.requeue_id = context.requeue_id, 0
            context.report_phase(resize_id, "saved")

    def _world_runs(self, event: events.WorldRuns) -> None:
        """A new world has its full time; where a checkpoint is wanted it is asked again."""
        self._wait()
        if self._context.requeue_id:
            self._context.ask_for_checkpoint()
