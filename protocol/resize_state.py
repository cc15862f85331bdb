"""How far a resize has come: one enumeration for messages, database, command line and documentation."""

from __future__ import annotations

from enum import Enum


class ResizeState(str, Enum):
    """In the order in which a resize comes to them; a mechanism may leave some out."""

    ISSUED = "issued"
    """The daemon has stored it; the supervisor has not said that it took it."""
    ACCEPTED = "accepted"
    """The supervisor has taken it."""
    SAVED = "saved"
    """By requeue alone: the checkpoint is written."""
    SUBMITTED = "submitted"
    """What it adds is asked of Slurm."""
    GRANTED = "granted"
    """Slurm has granted it; the new workers start and warm up."""
    READY = "ready"
    """The new workers are ready; training switches at a step that all agree on."""
    RUNNING = "running"
    """The new size trains; what was given up is still to be released."""
    DONE = "done"
    FAILED = "failed"
    WITHDRAWN = "withdrawn"
    """Given up before the training switched."""
    OVERTAKEN = "overtaken"
    """Given up because another job took the nodes it waited for."""

    @property
    def closed(self) -> bool:
        """The resize is over, and never changes again."""
        return self in _CLOSED

    def comes_before(self, other: ResizeState) -> bool:
        """Whether a resize in this state may come to the other one."""
        return not self.closed and (other.closed or _ORDER.index(self) < _ORDER.index(other))

    def __str__(self) -> str:
        return self.value


_ORDER = tuple(ResizeState)
_CLOSED = (ResizeState.DONE, ResizeState.FAILED, ResizeState.WITHDRAWN, ResizeState.OVERTAKEN)
