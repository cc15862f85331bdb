"""What can be done about a job: plain frozen values. The rules make them, the executor carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from ..slurm.model import Size


@dataclass(frozen=True, slots=True)
class Shrink:
    """Take a Slurm job down to these nodes, in place."""

    job_id: int
    slurm_job_id: int
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Cancel:
    """End a companion or a component."""

    job_id: int
    slurm_job_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Requeue:
    """Put a job back into the queue, its new nodes kept for it where the site lets us."""

    job_id: int
    slurm_job_id: int
    intent: int
    nodes: tuple[str, ...]
    user: str
    why: str


@dataclass(frozen=True, slots=True)
class Resume:
    """Give a job that waits after a requeue its size, and let it start at once."""

    job_id: int
    slurm_job_id: int
    intent: int
    """0: it was put back by Slurm or its owner, not by a resize of ours."""
    size: Size
    why: str


@dataclass(frozen=True, slots=True)
class Free:
    """End the reservation that kept nodes for a job."""

    job_id: int
    slurm_job_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Advance:
    """Write down how far a resize that the daemon itself carries out has come, before what follows is done."""

    job_id: int
    intent: int
    state: str


@dataclass(frozen=True, slots=True)
class Close:
    """Bring an open resize to its end."""

    job_id: int
    intent: int
    state: str
    """done, failed, withdrawn or overtaken."""
    detail: str


Act = Shrink | Cancel | Requeue | Resume | Free
"""What Slurm is asked for."""
Action = Act | Advance | Close
