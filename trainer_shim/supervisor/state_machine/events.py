"""What can happen to a job's supervisor, and what it can then do: plain values, no behaviour.

The state machine (machine) turns the first kind into the second; the driver does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slurm_elastic.protocol.messages import Directive, Phase, Piece, Shape

AgentKey = tuple[int, str]
"""(Slurm job id, node name); the job id is 0 without Slurm."""
Message = dict[str, Any]


# --- events -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AgentUp:
    """An agent has connected; `gpus` are the device ids its workers get, one worker each ("" = a CPU worker)."""

    agent: AgentKey
    gpus: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AgentLost:
    """An agent's connection is gone, and with it every worker on that node."""

    agent: AgentKey


@dataclass(frozen=True, slots=True)
class StepEnded:
    """The srun (or local process) that carried a piece's agents has ended."""

    number: int
    """Of the LaunchAgents that it came from."""
    code: int
    tail: tuple[str, ...] = ()
    """The last lines that it wrote."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Slurm has sent SIGTERM to a node's agent: the node will be taken away in seconds."""

    agent: AgentKey


@dataclass(frozen=True, slots=True)
class WorkerMessage:
    """A control message of a worker."""

    worker: str
    message: Message


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """A worker's control connection is gone; its end is still to be told by its agent."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """A worker process has ended; `signal` is 0 when it exited by itself, `raised` says that an error ended it."""

    worker: str
    code: int
    signal: int = 0
    raised: bool = False
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DirectiveCame:
    directive: Directive


@dataclass(frozen=True, slots=True)
class Registered:
    """selasticd has taken the registration, and wants a report this often."""

    report_interval_s: float


@dataclass(frozen=True, slots=True)
class CompanionGranted:
    directive: int
    index: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class CompanionRefused:
    directive: int
    index: int
    detail: str


@dataclass(frozen=True, slots=True)
class Hurry:
    """The job is about to be killed. `stop`: end by ourselves, with `code`, as soon as the checkpoint is written."""

    deadline_s: float
    stop: bool
    code: int = 143


Event = (
    AgentUp
    | AgentLost
    | StepEnded
    | Notice
    | WorkerMessage
    | WorkerLost
    | WorkerExit
    | DirectiveCame
    | Registered
    | CompanionGranted
    | CompanionRefused
    | Hurry
)


# --- actions ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LaunchAgents:
    """Start one agent on each node of this piece. `number` tells one launch from another of the same nodes."""

    piece: Piece
    number: int


@dataclass(frozen=True, slots=True)
class QuitAgent:
    agent: AgentKey


@dataclass(frozen=True, slots=True)
class Spawn:
    """Fork a worker; `follow`: its output is also the job's output."""

    worker: str
    agent: AgentKey
    index: int
    follow: bool


@dataclass(frozen=True, slots=True)
class Kill:
    worker: str
    agent: AgentKey


@dataclass(frozen=True, slots=True)
class Follow:
    worker: str
    agent: AgentKey


@dataclass(frozen=True, slots=True)
class Send:
    """A control message to a worker."""

    worker: str
    message: Message = field(hash=False)


@dataclass(frozen=True, slots=True)
class Remember:
    """Write this generation to disk before any worker hears of it."""

    generation: int


@dataclass(frozen=True, slots=True)
class SubmitCompanion:
    directive: int
    index: int
    shape: Shape
    wait_s: float


@dataclass(frozen=True, slots=True)
class DropCompanions:
    """Cancel every companion of this directive, granted or not."""

    directive: int


@dataclass(frozen=True, slots=True)
class InUse:
    """What trains now, for the daemon's registration."""

    generation: int
    pieces: tuple[Piece, ...]
    batch: int
    max_micro_batch: int = 0


@dataclass(frozen=True, slots=True)
class Tell:
    """A phase for the daemon; the driver fills in the time."""

    phase: Phase


@dataclass(frozen=True, slots=True)
class Forward:
    """A worker's report for the daemon, with the size of the world."""

    report: Message = field(hash=False)
    gpus: int = 0
    nodes: int = 0


@dataclass(frozen=True, slots=True)
class Say:
    """A line for the person who reads the job's output."""

    text: str


@dataclass(frozen=True, slots=True)
class Exit:
    code: int


Action = (
    LaunchAgents
    | QuitAgent
    | Spawn
    | Kill
    | Follow
    | Send
    | Remember
    | SubmitCompanion
    | DropCompanions
    | InUse
    | Tell
    | Forward
    | Say
    | Exit
)
