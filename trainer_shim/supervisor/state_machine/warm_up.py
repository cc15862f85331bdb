"""Companions that were asked for: granted or not, their agents started, their workers warmed up, in bounded time.

Pure. The old world notices nothing of it.
"""

from __future__ import annotations

from .actions import DropCompanions
from .context import Handlers, Stage, SupervisorContext
from .events import (
    CompanionGranted,
    CompanionRefused,
    JoinerAgentUp,
    JoinersReady,
    StartAgents,
    UndoResize,
    WorkerReady,
)
from .timers import CompanionTimer


class WarmUp:
    """The part of a resize before its new world is announced."""

    def __init__(self, context: SupervisorContext) -> None:
        self._context = context

    def handlers(self) -> Handlers:
        return {
            CompanionGranted: self._granted,
            CompanionRefused: self._refused,
            JoinerAgentUp: self._agent_up,
            WorkerReady: self._ready,
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
        context.report_phase(resize.id, "granted")
        for piece in resize.added.values():
            context.emit(StartAgents(piece))

    def _refused(self, event: CompanionRefused) -> None:
        resize = self._context.resize
        if resize is not None and resize.id == event.resize_id:
            self._context.emit(UndoResize(event.detail, "withdrawn"))

    def _agent_up(self, event: JoinerAgentUp) -> None:
        """An agent of a companion is there: start its workers."""
        context, resize, (job_id, node) = self._context, self._context.resize, event.agent
        if resize is None:
            return
        resize.agents.add(event.agent)
        piece = next(piece for piece in resize.added.values() if piece.slurm_job_id == job_id)
        found = len(context.agents[event.agent].gpus)
        if found == piece.gpus_per_node:
            context.spawn_on([event.agent])
        else:
            shown = f"node {node} of companion {job_id} shows {found} GPUs instead of {piece.gpus_per_node}"
            context.emit(UndoResize(shown))

    def _ready(self, event: WorkerReady) -> None:
        """With the last joiner warm the worlds can change."""
        context, resize = self._context, self._context.resize
        if resize is None or resize.stage is not Stage.WARMING:
            return
        joiners = context.workers_on(resize.agents)
        if len(joiners) == sum(piece.gpus for piece in resize.added.values()) and all(j.ready for j in joiners):
            context.timers.cancel(CompanionTimer())
            context.report_phase(resize.id, "ready")
            context.emit(JoinersReady())

    def _timed_out(self, event: CompanionTimer) -> None:
        """The companions have not come, or their workers are not ready, in the time that the resize allows."""
        context, resize = self._context, self._context.resize
        if resize is None:
            return
        if resize.stage is Stage.WARMING:
            context.emit(UndoResize(f"the companion's workers were not ready within {resize.wait_s:.0f} s"))
        elif resize.stage is Stage.WAITING:
            context.emit(UndoResize(f"Slurm granted no companion within {resize.wait_s:.0f} s", "withdrawn"))
