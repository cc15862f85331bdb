"""Companions that were asked for: granted or not, their agents started, their workers warmed up, in bounded time.

Pure. The old world notices nothing of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import workers as fleets
from .events import AgentKey, CompanionGranted, CompanionRefused, DropCompanions
from .resize_stage import Stage

if TYPE_CHECKING:
    from .machine import Machine
    from .resize import Resizing


class Warming:
    """The part of a resize before its new world is announced."""

    def __init__(self, machine: Machine, resizing: Resizing) -> None:
        self._machine = machine
        self._resizing = resizing

    def expects(self, key: AgentKey) -> bool:
        """Whether this agent belongs to a companion that is being warmed up."""
        active = self._resizing.active
        return active is not None and key in fleets.keys(active.added.values())

    def expects_any(self, agents: set[AgentKey]) -> bool:
        """Whether one of these agents is still awaited."""
        active = self._resizing.active
        return active is not None and any(self.expects(key) and key not in active.agents for key in agents)

    def granted(self, event: CompanionGranted) -> None:
        """A companion has its nodes; with the last one their agents are started."""
        active, machine = self._resizing.active, self._machine
        if active is None or active.directive != event.directive or active.stage is not Stage.WAITING:
            machine.do(DropCompanions(event.directive))
            return
        active.added[event.index] = event.piece
        if len(active.added) < active.awaited:
            return
        active.stage = Stage.WARMING
        machine.tell(active.directive, "granted")
        for piece in active.added.values():
            machine.nodes.launch(piece)

    def refused(self, event: CompanionRefused) -> None:
        active = self._resizing.active
        if active is not None and active.directive == event.directive:
            self._resizing.fail(event.detail, phase="withdrawn")

    def agent_up(self, key: AgentKey) -> None:
        """An agent of a companion is there: start its workers."""
        active = self._resizing.active
        if active is None:
            return
        active.agents.add(key)
        piece = next(piece for piece in active.added.values() if piece.slurm_job_id == key[0])
        found = len(self._machine.fleet.agents[key].gpus)
        if found != piece.gpus_per_node:
            self._resizing.fail(
                f"node {key[1]} of companion {key[0]} shows {found} GPUs instead of {piece.gpus_per_node}"
            )
            return
        self._machine.spawn_on([key])

    def ready(self) -> None:
        """With the last joiner warm the worlds can change."""
        active, machine = self._resizing.active, self._machine
        if active is None or active.stage is not Stage.WARMING:
            return
        joiners = machine.fleet.on(active.agents)
        if len(joiners) == sum(piece.gpus for piece in active.added.values()) and all(j.ready for j in joiners):
            machine.timers.pop("resize", None)
            machine.tell(active.directive, "ready")
            self._resizing.agree()

    def timed_out(self) -> None:
        """The joiners have not become ready in the time that the directive allows."""
        active = self._resizing.active
        if active is None:
            return
        if active.stage is Stage.WARMING:
            self._resizing.fail(f"the companion's workers were not ready within {active.wait_s:.0f} s")
        elif active.stage is Stage.WAITING:
            self._resizing.fail(f"Slurm granted no companion within {active.wait_s:.0f} s", phase="withdrawn")
