"""When a resize fails after its members have agreed on a step: they go back to their old world, in bounded time. Pure.

The members notice by themselves, as what they do with the lost ones fails; nothing has to be sent to them. A member
that is back says so. When nobody is back in the time a world may take to form, a restart from the last checkpoint
follows.
"""

from __future__ import annotations

from . import events
from .actions import Print
from .context import Handlers, Part
from .timers import RollBackTimer


class RollBack(Part):
    """The part of a resize that is only needed when something goes wrong late."""

    def handlers(self) -> Handlers:
        return {
            events.JoinerLost: lambda event: self._joiner_lost(event.detail),
            events.JobPreempted: self._job_preempted,
            events.LeaverGone: self._leaver_gone,
            events.AwaitRollBack: lambda event: self._wait(event.generation),
            events.WorldRolledBack: self._rolled_back,
            RollBackTimer: self._timed_out,
        }

    def _wait(self, generation: int) -> None:
        context = self._context
        context.timers.cancel_every(RollBackTimer)
        context.timers.set(RollBackTimer(generation), context.now + context.limits.world_s)

    def _rolled_back(self, event: events.WorldRolledBack) -> None:
        """The coming world did not come about; the old one, whole, goes on."""
        context, resize = self._context, self._context.resize
        context.timers.cancel(RollBackTimer(event.generation))
        if resize is not None and context.coming(event.generation) is not None:
            resize.agreed = False
            phase = "withdrawn" if resize.recalled else "failed"
            said = (worker.error for worker in context.workers_on(resize.agents) if worker.error)
            why = resize.recalled or resize.doubt or next(said, "") or event.error  # a joiner's own error is the cause
            context.emit(events.UndoResize(why, phase))
            context.emit(events.ResizeRolledBack(event.generation))

    def _job_preempted(self, event: events.JobPreempted) -> None:
        resize = self._context.resize
        if resize is not None and any(piece.slurm_job_id == event.slurm_job_id for piece in resize.added.values()):
            self._joiner_lost(event.reason)

    def _joiner_lost(self, detail: str) -> None:
        """Without an agreement the resize ends; after one the old world is waited for, if it is whole."""
        context, resize = self._context, self._context.resize
        if resize is None or not resize.agreed or not self._is_whole():
            context.emit(events.UndoResize(detail))
        elif not resize.doubt:
            resize.doubt = detail
            context.do(Print(f"{detail}: waiting for the old world to go on"))
            context.call_off(resize, lost=True)
            context.kill(context.workers_on(resize.agents))  # the rest of them would only be waited for
            self._wait(0)

    def _is_whole(self) -> bool:
        """Whether the old world could form again."""
        world, members = self._context.world, self._context.members()
        return world is not None and len(members) == len(world.members) and not any(one.exited for one in members)

    def _leaver_gone(self, event: events.LeaverGone) -> None:
        """There is no way back any more."""
        resize = self._context.resize
        if resize is not None:
            resize.agreed = True
            if resize.doubt:
                self._context.emit(events.UndoResize(resize.doubt))

    def _timed_out(self, event: RollBackTimer) -> None:
        context, resize = self._context, self._context.resize
        why = f"nobody went on within {context.limits.world_s:.0f} s"
        if event.generation:
            context.emit(events.Restart(f"generation {event.generation} was agreed on and called off, and {why}", 1))
        elif resize is not None and resize.doubt:
            context.emit(events.UndoResize(f"{resize.doubt}, and {why}"))
