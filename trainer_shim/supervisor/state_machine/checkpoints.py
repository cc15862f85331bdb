"""When the supervisor asks for a checkpoint: when the last one is too old, and before a job is requeued. Pure.

Too old is what the user says; else what is best by what the last one cost and how often the partition's nodes are lost.
The training goes on meanwhile and afterwards: nothing waits for selasticd, which may never requeue the job. Limit: of
a checkpoint only the step is known; one that was being written when the resize came counts when it is no older than
the last report.
"""

import math

from slurm_elastic.protocol.messages import CHECKPOINTS, Rate

from ...allocation.pieces.actions import Print, Tell
from ...allocation.pieces.events import Registered, RequeueAsked
from ...allocation.pieces.holding import Handlers, Part
from . import events
from .context import Mode, SupervisorContext, number
from .events import CheckpointTimer

WARN_AFTER = 3
"""Intervals without a checkpoint after which that is told, once."""
CHANGED = 1.25
"""Times an interval or a size is another before selasticd is told again."""


class Checkpoints(Part[SupervisorContext]):
    """The part of the machine that asks for checkpoints and notes them."""

    def __init__(self, context: SupervisorContext) -> None:
        super().__init__(context)
        self._without_since: float | None = None
        """Since when the training has had no new checkpoint."""
        self._warned = False
        self._error = ""
        self._last = events.CheckpointSaved(0)
        """The last one whose cost was measured."""
        self._node_failure_s = 0.0
        self._requeue_id = 0
        """The resize for which a checkpoint is to be written, to start again at another size; 0: none."""
        self._requeue_from_step = 0
        """A checkpoint of an earlier step is not good enough for it."""
        self._told = (0.0, 0.0)
        """(interval, MB) that selasticd knows."""

    @property
    def every_s(self) -> float:
        """Seconds between two checkpoints."""
        context, last = self._context, self._last
        given = context.limits.checkpoint_s if context.limits.checkpoint_given else self._scripts()
        if given > 0:
            return given
        nodes = len({(piece.slurm_job_id, node) for piece in context.pieces for node in piece.nodes})
        between_s = self._node_failure_s / max(1, nodes)
        return interval_s(last.pause_s, last.write_s, between_s, context.limits.checkpoint_s)

    def _scripts(self) -> float:
        """What the script says; 0: nothing."""
        world = self._context.world
        first = self._context.workers.get(world.members[0]) if world is not None else None
        return number(first.config.get("checkpoint_s")) if first is not None else 0.0

    def handlers(self) -> Handlers:
        return {
            CheckpointTimer: self._too_old,
            events.CheckpointSaved: self._saved,
            events.CheckpointFailed: self._failed,
            events.WorldRuns: self._world_runs,
            Registered: self._registered,
            RequeueAsked: self._requeue,
        }

    def _too_old(self, event: CheckpointTimer) -> None:
        if self._context.mode is Mode.RUNNING:
            self._warn_if_long()
            self._wait()
            self._context.ask_for_checkpoint()

    def _wait(self) -> None:
        self._context.timers.set(CheckpointTimer(), self._context.now + self.every_s)

    def _saved(self, event: events.CheckpointSaved) -> None:
        context = self._context
        context.saved_step = max(context.saved_step or 0, event.step)
        self._without_since, self._warned, self._error = context.now, False, ""
        if event.pause_s > 0:
            self._last = event
        self._wait()
        self._tell()
        if self._requeue_id and event.step >= self._requeue_from_step:
            resize_id, self._requeue_id = self._requeue_id, 0
            context.tell(resize_id, "saved")

    def _requeue(self, event: RequeueAsked) -> None:
        context = self._context
        self._requeue_id, self._requeue_from_step = event.resize_id, context.reported_step
        if event.resize_id:
            context.do(Print(f"resize {event.resize_id}: writing a checkpoint, to start again on {event.gpus} GPUs"))
            context.ask_for_checkpoint()

    def _registered(self, event: Registered) -> None:
        self._node_failure_s = event.grant.node_failure_s

    def _tell(self) -> None:
        """selasticd hears what a checkpoint costs when that, or the interval, is another than it knows."""
        last, now = self._last, (self.every_s, self._last.megabytes)
        if last.pause_s <= 0 or all(_alike(one, other) for one, other in zip(now, self._told, strict=True)):
            return
        self._told = now
        self._context.do(Tell(Rate(CHECKPOINTS, now[0], last.pause_s, last.write_s, last.megabytes)))

    def _world_runs(self, event: events.WorldRuns) -> None:
        """A new world has its full time: its state was saved where it began. Where a checkpoint is wanted it is asked
        again."""
        world = self._context.world
        if self._without_since is None:
            self._without_since = self._context.now
        self._warn_if_long()
        if world is None or not world.in_place:
            self._wait()
        if self._requeue_id:
            self._context.ask_for_checkpoint()

    def _failed(self, event: events.CheckpointFailed) -> None:
        self._error = event.error

    def _warn_if_long(self) -> None:
        context = self._context
        since = context.now if self._without_since is None else self._without_since
        if self._warned or context.now - since < WARN_AFTER * self.every_s:
            return
        self._warned = True
        why = f" ({self._error})" if self._error else ""
        minutes = (context.now - since) / 60
        context.do(Print(f"no checkpoint for {minutes:.0f} minutes{why}; a restart goes back to {context.origin()}"))


def _alike(one: float, other: float) -> bool:
    return max(one, other) <= CHANGED * min(one, other)


LEAST_S, MOST_S = 60.0, 3600.0
WRITING = 0.1
"""Most of the time that is spent writing, beside the training."""


def daly_s(cost_s: float, between_s: float) -> float:
    """t = sqrt(2 c M) (1 + sqrt(c / 2M) / 3 + (c / 2M) / 9) - c where c < 2M, else M; both are positive.

    c: seconds that the training stands still for a checkpoint; M: mean seconds between what makes it go back to one,
    one by one. Source: J. T. Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", FGCS
    22 (2006); its first term is J. W. Young's (CACM 17, 1974)."""
    ratio = cost_s / (2.0 * between_s)
    if ratio >= 1.0:
        return between_s
    return math.sqrt(2.0 * cost_s * between_s) * (1.0 + math.sqrt(ratio) / 3.0 + ratio / 9.0) - cost_s


def interval_s(cost_s: float, write_s: float, between_s: float, otherwise_s: float) -> float:
    """Seconds between two checkpoints that cost a pause of `cost_s` and are written in `write_s`; `otherwise_s` while
    no cost was measured or no failure was observed (`between_s` is 0)."""
    if cost_s <= 0 or between_s <= 0:
        return otherwise_s
    return min(MOST_S, max(LEAST_S, write_s / WRITING, daly_s(cost_s, between_s)))
