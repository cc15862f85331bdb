"""What can happen to the nodes of a job, and to the job itself, and what a framework hears of it: plain values, no
behaviour.

Events come from outside; what follows from them is emitted. Timers that are due are events too. A framework
subscribes to what concerns it: NodeUp, PiecesReady, PiecesLeaving and PiecesGone at least.
"""

from dataclasses import dataclass
from typing import Any

from slurm_elastic.protocol.messages import Grant, Piece, Resize

from ...node.reach import Listener
from .table import Change, NodeKey

# --- from outside -----------------------------------------------------------------------------------------------


class Event:
    """What comes from outside."""

    __slots__ = ()


@dataclass(frozen=True)
class OfAgent(Event):
    """What comes from a node's agent."""

    agent: NodeKey


@dataclass(frozen=True, slots=True)
class AgentUp(Event):
    """An agent has connected; `gpus` are the device ids its workers get, one worker each ("" = a CPU worker)."""

    agent: NodeKey
    gpus: tuple[str, ...]
    listens: tuple[str, int] = ("", 0)
    """Address and port at which agents of other hosts can reach it; port 0: at none."""
    other_build: str = ""
    """Which slurm-elastic it runs, if that is another one than the supervisor's."""


class AgentLost(OfAgent):
    """An agent's connection is gone, and with it every worker on that node."""


@dataclass(frozen=True, slots=True)
class ReachTried(Event):
    """An agent has connected to the others; those that did not answer: their listeners, each with the problem."""

    agent: NodeKey
    unreached: tuple[tuple[Listener, str], ...]


@dataclass(frozen=True, slots=True)
class StepEnded(Event):
    """The srun (or local process) that carried a piece's agents has ended."""

    number: int
    """Of the LaunchAgents that it came from."""
    code: int
    tail: tuple[str, ...] = ()
    """The last lines that it wrote."""


class NodeTerminating(OfAgent):
    """Slurm has sent SIGTERM to a node's agent: the node will be taken away in seconds."""


class NodeSuspending(OfAgent):
    """Slurm has sent SIGTSTP to a node's agent: all processes there will be stopped in seconds."""


@dataclass(frozen=True, slots=True)
class ResizeCame(Event):
    resize: Resize


@dataclass(frozen=True, slots=True)
class Registered(Event):
    """selasticd has taken the registration, and wants a report this often."""

    grant: Grant


@dataclass(frozen=True, slots=True)
class Silent(Event):
    """selasticd has not been reached for so long; said again and again until it is."""

    seconds: float


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


# --- times that are waited for: a timer is set under its key, which is an event when it is due ------------------------


@dataclass(frozen=True)
class Timer:
    """A timer's key, and its event. `of`: the launch, Slurm job, node, worker or generation that it is for, if any."""

    of: Any = None


class AgentsTimer(Timer):
    """The time for agents to connect is over."""


class LaunchTimer(Timer):
    """A launch that Slurm had no step for is tried again."""


class CompanionTimer(Timer):
    """The time for companions to be granted, or for what was added to be ready, is over."""


class SuspendedTimer(Timer):
    """A companion that Slurm suspends has been stopped by now."""


# --- what follows: for a framework --------------------------------------------------------------------------------


class Started:
    """The job begins, on the pieces that it has."""


@dataclass(frozen=True, slots=True)
class NodeUp:
    """A node's agent has connected, for the first time or again: nothing runs there yet."""

    node: NodeKey
    joins: bool
    """It belongs to what a change adds."""


@dataclass(frozen=True, slots=True)
class NodeLeft:
    """The agent of a node that is not in use is gone, and all that ran there."""

    node: NodeKey


class NodesSettled:
    """A node in use has its agent, or is in use and awaited no longer: perhaps all that are awaited are there."""


class PiecesReady:
    """All that the change adds is there and reaches the other hosts: the framework may go over to `coming_pieces`, and
    has to leave `leaving` with that. So it may where the change adds and drops nothing."""


@dataclass(frozen=True, slots=True)
class PiecesLeaving:
    """The change is to do without these nodes: they are given up as soon as the framework has left them. Slurm takes
    them in seconds where the change has the id 0."""

    nodes: frozenset[NodeKey]
    why: str


@dataclass(frozen=True, slots=True)
class PiecesGone:
    """Nodes are lost. joins: of what a change adds, and too late for the change to be undone without the framework."""

    nodes: frozenset[NodeKey]
    why: str
    joins: bool


@dataclass(frozen=True, slots=True)
class BaseGone:
    """The batch host's agent is lost, or was not started: nothing can begin. `code`: the job's exit code for it."""

    why: str
    code: int


@dataclass(frozen=True, slots=True)
class ChangeRecalled:
    """selasticd takes the change back while the framework goes over to it: it is undone if the framework can."""


@dataclass(frozen=True, slots=True)
class ChangeUndone:
    """The change is given up: what it would have added is sent away, and the job keeps its pieces."""

    change: Change
    why: str


@dataclass(frozen=True, slots=True)
class RequeueAsked:
    """The job is to be started again with `gpus` GPUs, once its state is saved; id 0: it is not, any more."""

    resize_id: int
    gpus: int = 0


# --- what follows: between the parts here -------------------------------------------------------------------------


class BeginWaitingResize:
    """Nothing is under way: begin with the resize that waits, if there is one."""
