"""What can happen to the workers of a job and to their worlds: plain values, no behaviour.

Events come from outside; a part of the machine emits a follow-up where another part has to act. Timers that are due are
events too. What happens to nodes is in allocation/pieces.
"""

from dataclasses import dataclass, field

from slurm_elastic.protocol.json_lines import Message

from ...allocation.pieces.events import Event, Timer

# --- from outside -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerMessage(Event):
    """A control message of a worker."""

    worker: str
    message: Message


@dataclass(frozen=True, slots=True)
class WorkerLost(Event):
    """A worker's control connection is gone; its agent has not reported its end yet."""

    worker: str


@dataclass(frozen=True, slots=True)
class WorkerExit(Event):
    """A worker process has ended; `signal` is 0 when it exited by itself, `raised` says that an error ended it, `error`
    what and where (empty: nothing that has to come again)."""

    worker: str
    code: int
    signal: int = 0
    raised: bool = False
    error: str = ""
    tail: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StackSeen(Event):
    """Where a worker's script is: frames, innermost first, as `file:line function`; or why there are none."""

    worker: str
    frames: tuple[str, ...]
    problem: str = ""


# --- times that are waited for ----------------------------------------------------------------------------------


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


# --- follow-ups: what has happened ------------------------------------------------------------------------------


class Restarting:
    """The old world is given up; its workers are being killed."""


@dataclass(frozen=True, slots=True)
class ReplicasDiffer:
    """Ranks that were to hold the same state do not, says a worker."""

    why: str


class WorkerReady:
    """A worker is warm and waits for its world."""


@dataclass(frozen=True, slots=True)
class WorkerQuiesced:
    """A worker has stopped at the step that was agreed on for this generation."""

    generation: int


@dataclass(frozen=True, slots=True)
class FirstStepDone:
    """A generation's first step is done; `message` has its counters."""

    generation: int
    message: Message = field(hash=False)


class WorldRuns:
    """Another world is the one that trains now."""


@dataclass(frozen=True, slots=True)
class CheckpointSaved:
    """A checkpoint of this step is on disk."""

    step: int
    pause_s: float = 0.0
    """How long the training stood still for it; 0: not measured."""
    write_s: float = 0.0
    megabytes: float = 0.0


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint could not be written."""

    error: str


@dataclass(frozen=True, slots=True)
class WorldCalledOff:
    """A member has not left for this generation, and does not any more: it cannot come."""

    generation: int


@dataclass(frozen=True, slots=True)
class WorldRolledBack:
    """A coming generation did not come about; the members of the old world go on with it."""

    generation: int
    error: str


@dataclass(frozen=True, slots=True)
class NoRoom:
    """A coming generation does not fit into the memory of its GPUs. again: it is tried with less at a time."""

    generation: int
    error: str
    again: bool


@dataclass(frozen=True, slots=True)
class WorkerFailed:
    """An error ends this worker, which is about to exit."""

    worker: str


@dataclass(frozen=True, slots=True)
class JoinerLost:
    """A worker, or the whole of a companion, was lost before the new world's first step."""

    detail: str


@dataclass(frozen=True, slots=True)
class StepsDone:
    """Rank 0 of a generation has done so many steps, of which one takes `usual_s` seconds (0: not known yet).

    away: it is in job.once(), and no step follows for as long as that takes."""

    generation: int
    step: int
    usual_s: float
    away: bool


class LeaverGone:
    """Workers that the coming world does without have ended."""


@dataclass(frozen=True, slots=True)
class TrainingOver:
    """A worker has finished its loop, or its script; `message` has the training's counters, if it said them."""

    message: Message = field(hash=False)


# --- follow-ups: what another part is to do ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Restart:
    """Begin a new generation from the last checkpoint; `code` is the job's exit code if it cannot be tried again.

    error: what ended a worker's script, and where; empty: nothing that has to come again; None: no script has failed,
    a node or a world did."""

    why: str
    code: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class EndStalled:
    """Have rank 0 of a world that does no step write what it has, and begin a new generation from that."""

    why: str


class EndIfOver:
    """Workers have ended: end the job when nobody is left who could go on."""
