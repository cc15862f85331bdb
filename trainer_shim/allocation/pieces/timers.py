"""Times that are waited for. A timer is set under a typed key; when it is due, its key is an event.

Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Timer:
    """A timer's key, and its event. `of`: the launch, Slurm job, node, worker or generation that it is for, if any."""

    of: Any = None


class AgentsTimer(Timer):
    """The time for agents to connect is over."""


class LaunchTimer(Timer):
    """A launch that Slurm had no step for is tried again."""


class CompanionTimer(Timer):
    """The time for companions to be granted, or for what was added to be ready, is over."""


class SuspendedTimer(Timer):
    """A companion that Slurm suspends has been stopped by now."""


class Timers:
    """When each of them is due."""

    def __init__(self) -> None:
        self._due: dict[Timer, float] = {}

    def __contains__(self, timer: Timer) -> bool:
        return timer in self._due

    def set(self, timer: Timer, due: float) -> None:
        self._due[timer] = due

    def cancel(self, timer: Timer) -> None:
        self._due.pop(timer, None)

    def cancel_every(self, kind: type[Timer]) -> None:
        for timer in [timer for timer in self._due if isinstance(timer, kind)]:
            del self._due[timer]

    def clear(self) -> None:
        self._due.clear()

    def next_due(self) -> float | None:
        return min(self._due.values(), default=None)

    def take_due(self, now: float) -> Iterator[Timer]:
        """The timers due at `now`, each cancelled as it is given; not those that an earlier one has cancelled."""
        for timer in [timer for timer, due in self._due.items() if due <= now]:
            if self._due.get(timer, now + 1.0) <= now:
                del self._due[timer]
                yield timer
