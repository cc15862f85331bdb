"""From one world to another: new workers warmed up, the step agreed on, and the old world left. Pure.

Until the new world's first step everything can be undone, and is: the new workers are killed, the old world goes on.
Workers that leave stay until then, and are dismissed with that step. After the agreement on a step undoing takes all
members of the old world, who go back to it by themselves, in bounded time: they notice as what they do with the lost
ones fails, and say so. When nobody is back in the time a world may take to form, a restart from the last checkpoint
follows.
"""

from slurm_elastic.protocol.json_lines import Message
from slurm_elastic.protocol.messages import TOO_LARGE

from ...allocation.pieces.actions import Print
from ...allocation.pieces.events import (
    BeginWaitingResize,
    ChangeRecalled,
    NodeUp,
    PiecesGone,
    PiecesLeaving,
    PiecesReady,
)
from ...allocation.pieces.holding import Handlers, Part
from ...allocation.pieces.table import ADDED, State
from . import events
from .actions import Send
from .context import Mode, SupervisorContext, Switch, figures, number, ranked


class Switches(Part[SupervisorContext]):
    """The part of the machine that changes the world on purpose."""

    def handlers(self) -> Handlers:
        return {
            NodeUp: self._node_up,
            PiecesReady: lambda event: self._agree_if_ready(),
            events.WorkerReady: lambda event: self._agree_if_ready(),
            PiecesLeaving: lambda event: self._agree_if_ready(),
            ChangeRecalled: self._recalled,
            events.WorldCalledOff: self._world_called_off,
            events.WorkerQuiesced: self._quiesced,
            events.FirstStepDone: lambda event: self._running(event.generation, event.message),
            events.TrainingOver: self._training_over,
            PiecesGone: lambda event: self._joiner_lost(event.why) if event.joins else None,
            events.JoinerLost: lambda event: self._joiner_lost(event.detail),
            events.LeaverGone: self._leaver_gone,
            events.NoRoom: self._no_room,
            events.WorldRolledBack: self._rolled_back,
            events.RollBackTimer: self._nobody_back,
        }

    def _node_up(self, event: NodeUp) -> None:
        """Workers warm up beside the old world, which notices nothing of it."""
        context = self._context
        context.forget_workers(event.node)  # of an agent that was quitting: its connection has given way to this one
        if event.joins or context.mode is Mode.STARTING:
            context.spawn_on([event.node])

    def _agree_if_ready(self) -> None:
        """With the last joiner warm, and all hosts within reach, the worlds can change."""
        context, change = self._context, self._context.change
        added = context.nodes.of(*ADDED)
        if change is None or change.begun or added != context.nodes.of(State.READY) or context.nodes.of(State.ASKED):
            return
        joiners = context.workers_on(added)
        wanted = sum(piece.gpus for piece in context.nodes.pieces(*ADDED))
        if len(joiners) != wanted or not all(joiner.ready for joiner in joiners):
            return
        if context.stalled and change.id and not added:
            # A world that does no step agrees on nothing: it is ended, and begins again on what is kept.
            context.change, context.restart = None, change
            context.emit(events.EndStalled(f"resize {change.id} of a training that does no step"))
            return
        self._agree()

    def _agree(self) -> None:
        """Send everyone the coming world; they agree on the step among themselves."""
        context = self._context
        change, old = context.begin(), context.members()
        for worker in old:
            worker.quiesced = False
        joiners = context.workers_on(context.nodes.of(State.READY))
        inside = [*old, *joiners]
        names = ranked(inside, context.coming_pieces)
        if not names:
            context.undo(f"{len(inside)} workers are fewer than the {inside[0].unit} that one replica needs")
            return
        context.kill(worker for worker in joiners if worker.name not in names)
        leavers = [worker for worker in old if worker.name not in names]
        world = context.announce(names, change.batch or context.batch, "survivor", leavers)
        context.switch = Switch(change, world, bool(joiners))

    # --- the change -------------------------------------------------------------------------------------------

    def _quiesced(self, event: events.WorkerQuiesced) -> None:
        """A worker has stopped at the agreed step: from here on the new world comes, or a restart does."""
        context, change = self._context, self._context.change
        if change is not None and context.coming(event.generation) is not None:
            change.agreed = True
            return
        called_off = context.called_off.pop(event.generation, None)
        if called_off is None:
            return
        if called_off.joiners:  # killed by now: it cannot come
            self._await_roll_back(event.generation)
        elif not context.agreed():
            context.undo(f"generation {event.generation} was agreed on first", "withdrawn")
            called_off.change.agreed = True
            context.change, context.switch = called_off.change, called_off

    def _running(self, generation: int, message: Message) -> None:
        """The new world's first step is done: it is what trains now."""
        context, switch, world = self._context, self._context.switch, self._context.coming(generation)
        if switch is None or world is None:
            return
        gpus_before, batch_before = sum(piece.gpus for piece in context.pieces), context.batch
        left = [worker for worker in context.members() if worker.name not in world.members]
        dropped = context.go_over()
        context.called_off = {number: other for number, other in context.called_off.items() if number > generation}
        context.enter(world)
        for worker in [*context.workers_on(dropped), *(worker for worker in left if worker.agent not in dropped)]:
            worker.ending = True
            context.do(Send(worker.name, {"type": "dismiss", "generation": generation}))
            if worker.exited:
                del context.workers[worker.name]
        context.tell(switch.change.id, "running", switch.change.reason, **figures(message))
        pause = number(message.get("pause_s"))
        text = f"generation {generation}: {gpus_before} -> {len(world.members)} workers"
        if batch_before != context.batch:
            text += f", batch {batch_before} -> {context.batch}"
        context.do(Print(text + (f", pause {pause:.2f} s" if "pause_s" in message else "")))
        if switch.doubt:
            context.emit(events.Restart(switch.doubt, 1))
        context.emit(BeginWaitingResize())

    # --- where it is not wanted any more ------------------------------------------------------------------------

    def _recalled(self, event: ChangeRecalled) -> None:
        """Its members are asked whether they have left for it already."""
        if self._context.switch is not None:
            self._context.call_off(self._context.switch, lost=False)

    def _world_called_off(self, event: events.WorldCalledOff) -> None:
        """One member that has not left is enough: it takes all of them."""
        context, change = self._context, self._context.change
        if change is not None and change.recalled and context.coming(event.generation) is not None:
            context.undo(change.recalled, "withdrawn")
        if event.generation in context.called_off:
            context.emit(BeginWaitingResize())

    def _training_over(self, event: events.TrainingOver) -> None:
        """A world already agreed on is the last one, any other comes too late."""
        context, switch = self._context, self._context.switch
        if context.mode not in (Mode.RUNNING, Mode.FORMING, Mode.STARTING):
            return
        if switch is not None and context.agreed():
            self._running(switch.world.generation, {})
        else:
            context.undo("the training is over", "withdrawn")

    # --- where it fails after its members have agreed ---------------------------------------------------------------

    def _await_roll_back(self, generation: int) -> None:
        context = self._context
        context.timers.cancel_every(events.RollBackTimer)
        context.timers.set(events.RollBackTimer(generation), context.now + context.limits.world_s)

    def _rolled_back(self, event: events.WorldRolledBack) -> None:
        """The coming world did not come about; the old one, whole, goes on."""
        context, switch = self._context, self._context.switch
        context.timers.cancel(events.RollBackTimer(event.generation))
        if switch is not None and switch.world.generation == event.generation:
            change = switch.change
            change.agreed = False
            said = (worker.error for worker in context.workers_on(context.nodes.of(*ADDED)) if worker.error)
            why = change.recalled or switch.doubt or next(said, "") or event.error  # a joiner's own error is the cause
            context.undo(why, "withdrawn" if change.recalled else "failed")
            context.called_off.pop(event.generation)
            context.emit(BeginWaitingResize())

    def _no_room(self, event: events.NoRoom) -> None:
        """Its members go back by themselves. The same size is not tried twice, unless less is computed at a time."""
        switch, world = self._context.switch, self._context.coming(event.generation)
        if switch is not None and world is not None:
            if not event.again:
                self._context.refused[len(world.members)] = f"{TOO_LARGE}: {event.error}"
            if not switch.doubt:
                switch.doubt = event.error
                self._await_roll_back(0)

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
            self._await_roll_back(0)

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

    def _nobody_back(self, event: events.RollBackTimer) -> None:
        context, switch = self._context, self._context.switch
        why = f"nobody went on within {context.limits.world_s:.0f} s"
        if event.of:
            context.emit(events.Restart(f"generation {event.of} was agreed on and called off, and {why}", 1))
        elif switch is not None and switch.doubt:
            context.undo(f"{switch.doubt}, and {why}")
