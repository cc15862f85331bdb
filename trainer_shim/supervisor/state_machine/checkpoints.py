"""When the supervisor asks for a checkpoint: when the last one is too old, and before a job is requeued. Pure.

The training goes on meanwhile and afterwards: nothing waits for selasticd, which may never requeue the job. Limit: of
a checkpoint only the step is known; one that was being written when the resize came counts when it is no older than
the last report.
"""

from __future__ import annotations

from . import events
from .actions import Print
from .context import Handlers, Mode, Part, SupervisorContext
from .timers import CheckpointTimer

WARN_AFTER = 3
"""Intervals without a checkpoint after which that is told, once."""


class Checkpoints(Part):
    """The part of the machine that asks for checkpoints and notes them."""

    def __init__(self, context: SupervisorContext) -> None:
        super().__init__(context)
        self._without_since: float | None = None
        """Since when the training has had no new checkpoint."""
        self._warned = False
        self._error = ""

    def handlers(self) -> Handlers:
        return {
            CheckpointTimer: self._too_old,
            events.CheckpointSaved: self._saved,
            events.CheckpointFailed: self._failed,
            events.WorldRuns: self._world_runs,
        }

    def _too_old(self, event: CheckpointTimer) -> None:
        if self._context.mode is Mode.RUNNING:
            self._warn_if_long()
            self._wait()
            self._context.ask_for_checkpoint()

    def _wait(self) -> None:
        self._context.timers.set(CheckpointTimer(), self._context.now + self._context.limits.checkpoint_s)

    def _saved(self, event: events.CheckpointSaved) -> None:
        context = self._context
        context.saved_step = max(context.saved_step or 0, event.step)
        self._without_since, self._warned, self._error = context.now, False, ""
        self._wait()
        if context.requeue_id and event.step >= context.requeue_from_step:
            resize_id, context.requeue_id = context.requeue_id, 0
            context.report_phase(resize_id, "saved")

    def _world_runs(self, event: events.WorldRuns) -> None:
        """A new world has its full time; where a checkpoint is wanted it is asked again."""
        if self._without_since is None:
            self._without_since = self._context.now
        self._warn_if_long()
        self._wait()
        if self._context.requeue_id:
            self._context.ask_for_checkpoint()

    def _failed(self, event: events.CheckpointFailed) -> None:
        self._error = event.error

    def _warn_if_long(self) -> None:
        context = self._context
        since = context.now if self._without_since is None else self._without_since
        if self._warned or context.now - since < WARN_AFTER * context.limits.checkpoint_s:
            return
        self._warned = True
        why = f" ({self._error})" if self._error else ""
        minutes = (context.now - since) / 60
        context.do(Print(f"no checkpoint for {minutes:.0f} minutes{why}; a restart goes back to {context.origin()}"))
