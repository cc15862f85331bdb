"""The times that are waited for of workers and worlds."""

from __future__ import annotations

from dataclasses import dataclass

from ...allocation.pieces.table import NodeKey
from ...allocation.pieces.timers import Timer


@dataclass(frozen=True, slots=True)
class KillTimer(Timer):
    """The killed workers on this node should be dead by now."""

    agent: NodeKey


@dataclass(frozen=True, slots=True)
class DisconnectedTimer(Timer):
    """A worker whose control connection is gone should have ended by now."""

    worker: str


@dataclass(frozen=True, slots=True)
class CulpritTimer(Timer):
    """A world broke, and nobody's end has explained it."""


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
