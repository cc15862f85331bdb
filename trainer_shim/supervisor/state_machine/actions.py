"""What can be done about workers, beside what concerns nodes (allocation/pieces): plain values, no behaviour."""

from dataclasses import dataclass, field

from slurm_elastic.protocol.json_lines import Message

from ...allocation.pieces.actions import Action
from ...allocation.pieces.table import NodeKey


@dataclass(frozen=True, slots=True)
class Spawn(Action):
    """Fork a worker; `follow`: its output is also the job's output, for it becomes rank 0."""

    worker: str
    agent: NodeKey
    index: int
    follow: bool


@dataclass(frozen=True, slots=True)
class Kill(Action):
    worker: str
    agent: NodeKey


@dataclass(frozen=True, slots=True)
class AskStacks(Action):
    """Have workers of an agent say where they are; StackSeen follows for each."""

    agent: NodeKey
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FollowOutput(Action):
    worker: str
    agent: NodeKey


@dataclass(frozen=True, slots=True)
class Send(Action):
    """A control message to a worker."""

    worker: str
    message: Message = field(hash=False)


@dataclass(frozen=True, slots=True)
class RecordGeneration(Action):
    """Write this generation to disk before any worker hears of it."""

    generation: int


@dataclass(frozen=True, slots=True)
class ForwardReport(Action):
    """A worker's report for the daemon, with the size of the world."""

    report: Message = field(hash=False)
    gpus: int = 0
    nodes: int = 0
