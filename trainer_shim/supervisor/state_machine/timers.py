"""The times that the supervisor waits for. A timer is set under a typed key; when it is due, its key is an event.

Pure: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...allocation.pieces.events import AgentKey


class Timer:
    """A timer's key, and its event."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AgentsTimer(Timer):
    """The time for agents to connect is over."""


@dataclass(frozen=True, slots=True)
class LaunchTimer(Timer):
    """A launch that Slurm had no step for is tried again."""

    number: int


@dataclass(frozen=True, slots=True)
class KillTimer(Timer):
    """The killed workers on this node should be dead by now."""

    agent: AgentKey


@dataclass(frozen=True, slots=True)
class DisconnectedTimer(Timer):
    """A worker whose control connection is gone should have ended by now."""

    worker: str


@dataclass(frozen=True, slots=True)
class CulpritTimer(Timer):
    """A world broke, and nobody's end has explained it."""


@dataclass(frozen=True, slots=True)
class CompanionTimer(Timer):
    """The time for companions to be granted and to warm up is over."""


@dataclass(frozen=True, slots=True)
class SuspendedTimer(Timer):
    """A companion that Slurm suspends has been stopped by now."""

    slurm_job_id: int


@dataclass(frozen=True, slots=True)
class RollBackTimer(Timer):
    """The members of the old world should be back from a world that failed.

    `generation`: of a world that was called off while its members agreed on it; 0: the running resize's own.
    """

    generation: int = 0


@dataclass(frozen=True, slots=True)
class CheckpointTimer(Timer):
    """The last checkpoint is too old."""


@dataclass(frozen=True, slots=True)
class HangTimer(Timer):
    """No step has been done for long."""


@dataclass(frozen=True, slots=True)
class StacksTimer(Timer):
    """Every rank has had its time to say where it is."""


@dataclass(frozen=True, slots=True)
class HangEndTimer(Timer):
    """A world that does no step is to be ended, as the user has said."""


@dataclass(frozen=True, slots=True)
class StalledSaveTimer(Timer):
    """The time for rank 0 of such a world to write what it has is over."""


@dataclass(frozen=True, slots=True)
class LastCheckpointTimer(Timer):
    """The time for the last checkpoint is over."""


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
