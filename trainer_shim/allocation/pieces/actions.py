"""What is to be done about the nodes of a job, and told of them: plain values, which a driver carries out."""

from dataclasses import dataclass

from slurm_elastic.protocol.messages import Happening, Piece, Rate, Registration, Shape

from ...node.reach import Listener
from .table import NodeKey


class Action:
    """One thing for the driver to carry out."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class LaunchAgents(Action):
    """Start one agent on each node of this piece. `number` tells one launch from another of the same nodes."""

    piece: Piece
    number: int


@dataclass(frozen=True, slots=True)
class DetachAgents(Action):
    """All agents of this launch are there: from now on they need no process of the batch job."""

    number: int


@dataclass(frozen=True, slots=True)
class TryReach(Action):
    """Have an agent connect to other hosts' agents; ReachTried follows."""

    agent: NodeKey
    others: tuple[Listener, ...]


@dataclass(frozen=True, slots=True)
class QuitAgent(Action):
    agent: NodeKey


@dataclass(frozen=True, slots=True)
class SubmitCompanion(Action):
    resize_id: int
    index: int
    shape: Shape
    wait_s: float


@dataclass(frozen=True, slots=True)
class DropCompanions(Action):
    """Cancel every companion of this resize, granted or not."""

    resize_id: int


@dataclass(frozen=True, slots=True)
class CancelCompanion(Action):
    """Give this companion back to Slurm; selasticd has not asked for it."""

    slurm_job_id: int


@dataclass(frozen=True, slots=True)
class RetainJobs(Action):
    """Nothing is done any more with companions other than these."""

    slurm_job_ids: frozenset[int]


@dataclass(frozen=True, slots=True)
class UpdateRegistration(Action):
    """What is in use now; the driver fills in the program and its request."""

    registration: Registration


@dataclass(frozen=True, slots=True)
class Tell(Action):
    """What has happened, or how often something is done, for the daemon; the driver fills in the time."""

    said: Happening | Rate


@dataclass(frozen=True, slots=True)
class Print(Action):
    """A line for the person who reads the job's output."""

    text: str


@dataclass(frozen=True, slots=True)
class Exit(Action):
    code: int


@dataclass(frozen=True, slots=True)
class StartOver(Action):
    """Give way to a supervisor of the slurm-elastic that lies on the disk now."""

    why: str
