"""The times that are waited for of workers and worlds."""

from __future__ import annotations

from ...allocation.pieces.timers import Timer


class KillTimer(Timer):
    """The killed workers on this node should be dead by now."""


class DisconnectedTimer(Timer):
    """A worker whose control connection is gone should have ended by now."""


class CulpritTimer(Timer):
    """A world broke, and nobody's end has explained it."""


class RollBackTimer(Timer):
    """The members of the old world should be back from a world that failed: the running change's own (0), or one that
    was called off while its members agreed on it (its generation)."""


class CheckpointTimer(Timer):
    """The last checkpoint is too old."""


class HangTimer(Timer):
    """No step has been done for long."""


class StacksTimer(Timer):
    """Every rank has had its time to say where it is."""


class HangEndTimer(Timer):
    """A world that does no step is to be ended, as the user has said."""


class StalledSaveTimer(Timer):
    """The time for rank 0 of such a world to write what it has is over."""


class LastCheckpointTimer(Timer):
    """The time for the last checkpoint is over."""
