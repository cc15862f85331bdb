"""How far a resize has come: one enumeration for messages, database, command line and documentation."""

from __future__ import annotations

from enum import Enum


class Explained(str, Enum):
    """Words that users see, each with its meaning."""

    meaning: str

    def __new__(cls, value: str, meaning: str = "") -> Explained:
        member = str.__new__(cls, value)
        member._value_, member.meaning = value, meaning
        return member

    def __str__(self) -> str:
        return str(self.value)


class ResizeState(Explained):
    """In the order in which a resize comes to them; a mechanism may leave some out."""

    ISSUED = "issued", "'selastic run' is to take the resize; training goes on meanwhile"
    ACCEPTED = "accepted", "'selastic run' carries it out; training goes on meanwhile"
    SAVED = "saved", "by requeue: the checkpoint is written, the job goes back into Slurm's queue"
    SUBMITTED = "submitted", "Slurm is to grant what was asked for; training goes on meanwhile"
    GRANTED = "granted", "the new workers start and warm up; training goes on meanwhile"
    READY = "ready", "the new workers are ready; training switches at a step that all agree on"
    RUNNING = "running", "the new size trains; what was given up is still to be released"
    DONE = "done", "the new size trains, and what was given up is released"
    FAILED = "failed", "it went wrong; the job goes on as before"
    WITHDRAWN = "withdrawn", "given up before the training switched"
    OVERTAKEN = "overtaken", "given up because another job took, or waits for, the nodes that it was to get"

    @property
    def closed(self) -> bool:
        """The resize is over, and never changes again."""
        return self in _CLOSED

    def comes_before(self, other: ResizeState) -> bool:
        """Whether a resize in this state may come to the other one."""
        return not self.closed and (other.closed or _ORDER.index(self) < _ORDER.index(other))


_ORDER = tuple(ResizeState)
_CLOSED = (ResizeState.DONE, ResizeState.FAILED, ResizeState.WITHDRAWN, ResizeState.OVERTAKEN)
