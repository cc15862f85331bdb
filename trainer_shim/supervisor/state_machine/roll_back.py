"""When a change fails after its members have agreed on a step: they go back to their old world, in bounded time. Pure.

The members find out by themselves, as what they do with the lost ones fails; nothing has to be told to them. Whoever is
back says so. When nobody is in the time a world may take to form, a restart from the last checkpoint follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .events import Say
from .workers import Worker

if TYPE_CHECKING:
    from .machine import Machine
    from .resize import Resizing

TIMER = "return"


class Returning:
    """The part of a resize that is only needed when something goes wrong late."""

    def __init__(self, machine: Machine, resizing: Resizing) -> None:
        self._machine = machine
        self._resizing = resizing
        self._generation = 0

    def begin(self, generation: int) -> None:
        """Wait. generation: of a world that was called off while its members agreed on it; 0: the resize's own."""
        self._generation = generation
        self._machine.timers[TIMER] = self._machine.now + self._machine.limits.world_s

    def ended(self, generation: int) -> None:
        """They are back from this generation, or are waited for no more."""
        if generation == self._generation:
            self._generation = 0
            self._machine.timers.pop(TIMER, None)

    def survived(self, generation: int, error: str) -> None:
        """The coming world did not come about; the old one, whole, goes on."""
        resizing, active = self._resizing, self._resizing.active
        self.ended(generation)
        if active is not None and resizing.coming(generation) is not None:
            active.agreed = False
            resizing.fail(active.doubt or error)
            resizing.forget(generation)
            resizing.next()

    def joiner_lost(self, detail: str) -> None:
        """A worker, or the whole of a companion, was lost before the new world's first step."""
        resizing, active, machine = self._resizing, self._resizing.active, self._machine
        if active is None or not active.agreed or not self._whole():
            resizing.fail(detail)
        elif not active.doubt:
            active.doubt = detail
            machine.do(Say(f"{detail}: waiting for the old world to go on"))
            resizing.call_off(active)
            machine.kill(machine.fleet.on(active.agents))  # the rest of them would only be waited for
            self.begin(0)

    def left(self, worker: Worker) -> None:
        """A worker that the new world does without has gone: there is no way back any more."""
        active = self._resizing.active
        worker.exited = worker.quiesced = True
        if active is not None:
            active.agreed = True
            if active.doubt:
                self._resizing.fail(active.doubt)

    def _whole(self) -> bool:
        """Whether the old world could form again."""
        world, members = self._machine.world, self._machine.members()
        return world is not None and len(members) == len(world.members) and not any(one.exited for one in members)

    def timed_out(self) -> None:
        """They are not back."""
        active, generation = self._resizing.active, self._generation
        self._generation = 0
        why = f"nobody went on within {self._machine.limits.world_s:.0f} s"
        if generation:
            self._machine.lives.restart(f"generation {generation} was agreed on and called off, and {why}", 1)
        elif active is not None and active.doubt:
            self._resizing.fail(f"{active.doubt}, and {why}")
