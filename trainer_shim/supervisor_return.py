"""When a change fails after its members have agreed on a step: they go back to their old world, in bounded time. Pure.

The members find out by themselves, as what they do with the lost ones fails; nothing has to be told to them. Whoever is
back says so. When nobody is in the time a world may take to form, a restart from the last checkpoint follows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .supervisor_resize import Resizing
    from .supervisor_state import Machine

TIMER = "return"


class Returning:
    """Waits for the members of the old world."""

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

    def timed_out(self) -> None:
        """They are not back."""
        active, generation = self._resizing.active, self._generation
        self._generation = 0
        why = f"nobody went on within {self._machine.limits.world_s:.0f} s"
        if generation:
            self._machine.lives.restart(f"generation {generation} was agreed on and called off, and {why}", 1)
        elif active is not None and active.doubt:
            self._resizing.fail(f"{active.doubt}, and {why}")
