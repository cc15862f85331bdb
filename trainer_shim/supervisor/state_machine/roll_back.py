"""When a resize fails after its members have agreed on a step: they go back to their old world, in bounded time. Pure.

The members notice by themselves, as what they do with the lost ones fails; nothing has to be sent to them. A member
that is back says so. When nobody is back in the time a world may take to form, a restart from the last checkpoint
follows.
"""

from __future__ import annotations

from ...allocation.pieces.actions import Print
from ...allocation.pieces.events import BeginWaitingResize, PiecesGone
from ...allocation.pieces.holding import Handlers
from ...allocation.pieces.machine import Part
from ...allocation.pieces.table import ADDED
from . import events
from .context import SupervisorContext
from .timers import RollBackTimer


class RollBack(Part[SupervisorContext]):
    """The part of a resize that is only needed when something goes wrong late."""

    def handlers(self) -> Handlers:
        return {
            PiecesGone: lambda event: self._joiner_lost(event.why) if event.joins else None,
            events.JoinerLost: lambda event: self._joiner_lost(event.detail),
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
        context, switch = self._context, self._context.switch
        context.timers.cancel(RollBackTimer(event.generation))
        if switch is not None and switch.world.generation == event.generation:
            change = switch.change
            change.agreed = False
            said = (worker.error for worker in context.workers_on(context.nodes.of(*ADDED)) if worker.error)
            why = change.recalled or switch.doubt or next(said, "") or event.error  # a joiner's own error is the cause
            context.undo(why, "withdrawn" if change.recalled else "failed")
            context.called_off.pop(event.generation)
            context.emit(BeginWaitingResize())

    def _joiner_lost(self, why: str) -> None:
        """Without an agreement the change ends; after one the old world is waited for, if it is whole."""
        context, switch = self._context, self._context.switch
        if switch is None or not switch.change.agreed or not self._is_whole():
            context.undo(why)
        elif not switch.doubt:
            switch.doubt = why
            context.do(Print(f"{why}: waiting for the old world to go on"))
            context.call_off(switch, lost=True)
            context.kill(context.workers_on(context.nodes.of(*ADDED)))  # the rest of them would only be waited for
            self._wait(0)

    def _is_whole(self) -> bool:
        """Whether the old world could form again."""
        world, members = self._context.world, self._context.members()
        return world is not None and len(members) == len(world.members) and not any(one.exited for one in members)

    def _leaver_gone(self, event: events.LeaverGone) -> None:
        """There is no way back any more."""
        switch = self._context.switch
        if switch is not None:
            switch.change.agreed = True
            if switch.doubt:
                self._context.undo(switch.doubt)

    def _timed_out(self, event: RollBackTimer) -> None:
        context, switch = self._context, self._context.switch
        why = f"nobody went on within {context.limits.world_s:.0f} s"
        if event.of:
            context.emit(events.Restart(f"generation {event.of} was agreed on and called off, and {why}", 1))
        elif switch is not None and switch.doubt:
            context.undo(f"{switch.doubt}, and {why}")
