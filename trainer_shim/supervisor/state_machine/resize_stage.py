"""One change of a job's world that is under way: a plain value. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from slurm_elastic.protocol.messages import Piece

from .events import AgentKey
from .workers import World


class Stage(Enum):
    """WAITING for Slurm to grant; WARMING up; AGREEING on the step at which to change worlds."""

    WAITING = "waiting"
    WARMING = "warming"
    AGREEING = "agreeing"


@dataclass(slots=True)
class Resize:
    """A change under way. `directive` is 0 for one that the supervisor itself wants."""

    directive: int
    keep: tuple[Piece, ...]
    batch: int
    wait_s: float
    reason: str
    stage: Stage = Stage.WAITING
    added: dict[int, Piece] = field(default_factory=dict)
    awaited: int = 0
    agents: set[AgentKey] = field(default_factory=set)
    world: World | None = None
    agreed: bool = False
    doubt: str = ""
    """Why the new world cannot come any more; its members are to go back, and have not said so yet."""

    @property
    def pieces(self) -> tuple[Piece, ...]:
        return self.keep + tuple(self.added[index] for index in sorted(self.added))
