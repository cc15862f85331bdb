"""What can happen to the nodes of a job, and to the job itself: plain values, no behaviour."""

from __future__ import annotations

from dataclasses import dataclass

from slurm_elastic.protocol.messages import Grant, Piece, Resize

from ...node.reach import Listener

AgentKey = tuple[int, str]
"""(Slurm job id, node name); the job id is 0 without Slurm."""


class Event:
    """What comes from outside."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AgentUp(Event):
    """An agent has connected; `gpus` are the device ids its workers get, one worker each ("" = a CPU worker)."""

    agent: AgentKey
    gpus: tuple[str, ...]
    listens: tuple[str, int] = ("", 0)
    """Address and port at which agents of other hosts can reach it; port 0: at none."""
    other_build: str = ""
    """Which slurm-elastic it runs, if that is another one than the supervisor's."""


@dataclass(frozen=True, slots=True)
class AgentLost(Event):
    """An agent's connection is gone, and with it every worker on that node."""

    agent: AgentKey


@dataclass(frozen=True, slots=True)
class ReachTried(Event):
    """An agent has connected to the others; those that did not answer: their listeners, each with the problem."""

    agent: AgentKey
    unreached: tuple[tuple[Listener, str], ...]


@dataclass(frozen=True, slots=True)
class StepEnded(Event):
    """The srun (or local process) that carried a piece's agents has ended."""

    number: int
    """Of the LaunchAgents that it came from."""
    code: int
    tail: tuple[str, ...] = ()
    """The last lines that it wrote."""


@dataclass(frozen=True, slots=True)
class NodeTerminating(Event):
    """Slurm has sent SIGTERM to a node's agent: the node will be taken away in seconds."""

    agent: AgentKey


@dataclass(frozen=True, slots=True)
class NodeSuspending(Event):
    """Slurm has sent SIGTSTP to a node's agent: all processes there will be stopped in seconds."""

    agent: AgentKey


@dataclass(frozen=True, slots=True)
class ResizeCame(Event):
    resize: Resize


@dataclass(frozen=True, slots=True)
class Registered(Event):
    """selasticd has taken the registration, and wants a report this often."""

    report_interval_s: float
    node_failure_s: float = 0.0
    """See Grant."""

    @classmethod
    def of(cls, grant: Grant) -> Registered:
        return cls(grant.report_interval_s, grant.node_failure_s)


@dataclass(frozen=True, slots=True)
class CompanionGranted(Event):
    resize_id: int
    index: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class ClockDiffers(Event):
    """This host's clock is so many seconds ahead of Slurm's; behind it, if less than 0."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CompanionRefused(Event):
    resize_id: int
    index: int
    detail: str


@dataclass(frozen=True, slots=True)
class JobTerminating(Event):
    """The job is about to be killed. `stop`: end by ourselves, with `code`, as soon as the checkpoint is written."""

    deadline_s: float
    stop: bool
    code: int = 143


class DirectoryTaken(Event):
    """Another supervisor has taken the job directory over."""
