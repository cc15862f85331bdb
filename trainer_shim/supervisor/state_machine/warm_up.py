"""Companions that were asked for: granted or not, their agents started, their workers warmed up, in bounded time.

Pure. The old world notices nothing of it.
"""

from __future__ import annotations

from slurm_elastic.protocol.messages import Unreached

from ...allocation.pieces.events import AgentUp, ClockDiffers, CompanionGranted, CompanionRefused, ReachTried
from ...node.reach import Listener
from . import events
from .actions import DropCompanions, Print, TryReach
from .context import Handlers, Part, Stage, SupervisorContext
from .timers import CompanionTimer
from .workers import agents_of

MOST_PAIRS = 64
"""That one failure is told of."""
MOST_SAID = 3


class WarmUp(Part):
    """The part of a resize before its new world is announced."""

    def __init__(self, context: SupervisorContext) -> None:
        super().__init__(context)
        self._told_of_clock = False

    def handlers(self) -> Handlers:
        return {
            CompanionGranted: self._granted,
            ClockDiffers: self._clock_differs,
            CompanionRefused: self._refused,
            AgentUp: self._agent_up,
            events.WorkerReady: lambda event: self._begin_if_ready(),
            ReachTried: self._reach_tried,
            CompanionTimer: self._timed_out,
        }

    def _granted(self, event: CompanionGranted) -> None:
        """A companion has its nodes; with the last one their agents are started."""
        context, resize = self._context, self._context.resize
        if resize is None or resize.id != event.resize_id or resize.stage is not Stage.WAITING:
            context.do(DropCompanions(event.resize_id))
            return
        resize.added[event.index] = event.piece
        if len(resize.added) < resize.awaited:
            return
        resize.stage = Stage.WARMING
        context.timers.set(CompanionTimer(), context.now + context.limits.warm_up_s)
        context.report_phase(resize.id, "granted")
        for piece in resize.added.values():
            context.emit(events.StartAgents(piece))

    def _refused(self, event: CompanionRefused) -> None:
        resize = self._context.resize
        if resize is not None and resize.id == event.resize_id:
            self._context.emit(events.UndoResize(event.detail, "withdrawn"))

    def _agent_up(self, event: AgentUp) -> None:
        """An agent of a companion is there: start its workers."""
        context, resize, (job_id, node) = self._context, self._context.resize, event.agent
        if resize is None or not context.joins(event.agent) or event.agent in resize.agents or event.other_build:
            return
        self._try_reach(event)
        resize.agents.add(event.agent)
        piece = next(piece for piece in resize.added.values() if piece.slurm_job_id == job_id)
        found = len(context.agents[event.agent].gpus)
        if found == piece.gpus_per_node:
            context.spawn_on([event.agent])
        else:
            shown = f"node {node} of job {job_id} shows {found} GPUs instead of {piece.gpus_per_node}"
            context.emit(events.UndoResize(shown))

    def _try_reach(self, event: AgentUp) -> None:
        """Before anybody waits for it in vain: whether it reaches the hosts that train, and those that have joined."""
        context, resize = self._context, self._context.resize
        assert resize is not None
        known = [*agents_of(context.pieces), *resize.agents]
        there = [(key[1], *context.agents[key].listens) for key in known if key in context.agents]
        others = tuple(Listener(*one) for one in there if one[2] and one[0] != event.agent[1])
        if others and event.listens[1]:
            resize.reaching.add(event.agent)
            context.do(TryReach(event.agent, others))

    def _reach_tried(self, event: ReachTried) -> None:
        context, resize, host = self._context, self._context.resize, event.agent[1]
        if resize is None or event.agent not in resize.reaching:
            return
        resize.reaching.discard(event.agent)
        if not event.unreached:
            self._begin_if_ready()
            return
        said = [f"{one.node} at {one.address} port {one.port} ({problem})" for one, problem in event.unreached]
        pairs = tuple(Unreached(host, one.node, one.address) for one, _ in event.unreached[:MOST_PAIRS])
        rest = f", and {len(said) - MOST_SAID} more" if len(said) > MOST_SAID else ""
        detail = f"{host} does not reach {', nor '.join(said[:MOST_SAID])}{rest}; see --interface"
        context.emit(events.UndoResize(detail, unreached=pairs))

    def _begin_if_ready(self) -> None:
        """With the last joiner warm, and all hosts within reach, the worlds can change."""
        context, resize = self._context, self._context.resize
        if resize is None or resize.stage is not Stage.WARMING or resize.reaching:
            return
        joiners = context.workers_on(resize.agents)
        if len(joiners) == sum(piece.gpus for piece in resize.added.values()) and all(j.ready for j in joiners):
            context.timers.cancel(CompanionTimer())
            context.report_phase(resize.id, "ready")
            context.emit(events.JoinersReady())

    def _timed_out(self, event: CompanionTimer) -> None:
        """The companions have not come, or their workers are not ready, in the time that the resize allows."""
        context, resize = self._context, self._context.resize
        if resize is None:
            return
        if resize.stage is Stage.WARMING:
            context.emit(events.UndoResize(f"the new workers were not ready within {context.limits.warm_up_s:.0f} s"))
        elif resize.stage is Stage.WAITING:
            context.emit(events.UndoResize(f"Slurm granted no companion within {resize.wait_s:.0f} s", "withdrawn"))

    def _clock_differs(self, event: ClockDiffers) -> None:
        if not self._told_of_clock:
            self._told_of_clock = True
            where = f"{abs(event.seconds):.0f} s {'ahead of' if event.seconds > 0 else 'behind'} Slurm's"
            self._context.do(Print(f"the clock of {self._context.batch_host[1]} is {where}: tell an admin"))
