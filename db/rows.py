"""What the store gives and takes: plain frozen rows, one per record, free of any SQL.

Times are unix seconds. A row is a value: it does not follow later changes of the database.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from operator import attrgetter
from typing import Any, TypeVar

from slurm_elastic.protocol.codec import decode
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.messages import TOO_LARGE, Piece, Resize, ResizeTarget, Tried
from slurm_elastic.protocol.records import record

T = TypeVar("T")
REQUEUE, BATCH, COMPANION_ENDS = "requeue", "batch", "companion_ends"
"""Reasons of resizes of their own kinds: the job starts again, only its batch is new, a companion's time is over."""
Mark = tuple[int, int, int, int, str, str, str]
MARK = ("gpus_from", "gpus_to", "batch_from", "batch_to", "reason", "mechanism", "mode")
_mark: Callable[[Any], Mark] = attrgetter(*MARK)


@record(frozen=True, slots=True)
class JobRow:
    """A job that asked to be elastic, as Slurm last described it."""

    job_id: int
    user: str
    uid: int
    name: str
    account: str
    partition: str
    request: str
    """The elastic request's text, as found."""
    managed: bool
    reason: str
    """A code of daemon.reasons.Reason: why it is (not) managed."""
    detail: str
    """The sentence behind the reason, for example of a RequestError."""
    submit_time: float
    start_time: float | None
    end_time: float | None
    state: str
    """Slurm's base state: PENDING, RUNNING, COMPLETED, ..."""
    task_name: str = ""
    """7_3 for a task of array 7; "" outside an array."""
    held_gpus: int = 0
    """GPUs that Slurm holds for it, companions included; 0 while it waits."""


@record(frozen=True, slots=True)
class InUse:
    """What a job trains on now, as its supervisor said."""

    job_id: int
    generation: int
    pieces: tuple[Piece, ...]
    batch: int
    since: float
    """When this generation of this allocation began."""
    registered_at: float
    """When the supervisor last registered or confirmed a phase."""
    refusal: str = ""
    """What the supervisor and the daemon do not understand of each other; empty: nothing."""
    stalled_since: float = 0.0
    """When the last step was done, where the supervisor has said that none is done any more; 0: it has not."""

    @property
    def gpus(self) -> int:
        return sum(piece.gpus for piece in self.pieces)


@record(frozen=True, slots=True)
class ProbeRow:
    """What `selastic probe` found in a partition."""

    user: str
    """For whose jobs it counts; empty: for everybody's."""
    partition: str
    at: float
    tried: tuple[Tried, ...]


@record(frozen=True, slots=True)
class HostPair:
    """Two hosts that did not reach each other, in the order of their names."""

    user: str
    """Whose jobs found out."""
    host: str
    other: str
    address: str
    """Which of them did not answer, and where: n3 at 10.0.0.3."""
    failures: int
    """Resizes that failed because of it, one after the other."""
    last_at: float


@dataclass(frozen=True, slots=True)
class AllocationRow:
    """One size a job has had, from `start` to `end` (None: it has it now)."""

    job_id: int
    generation: int
    start: float
    end: float | None
    gpus: int
    nodes: int
    node_list: str
    """Node names, comma separated, in the order of the pieces."""
    batch: int
    samples: int
    """Samples trained on during this row."""
    steps: int
    """Optimizer steps done during this row."""
    pause_s: float
    """What the resize that began this row cost the training."""
    reason: str
    resize: int
    """The resize that began this row; 0: none did."""


@record(frozen=True, slots=True)
class ObservationRow:
    """All reports of one job at one configuration, in one row."""

    gpus: int
    nodes: int
    batch: int
    micro_batch: int
    accumulation: int
    count: int
    """All reports; the medians are over the youngest of them (observations.YOUNGEST)."""
    step_time: float
    """Median over the reports of the median step time, in seconds."""
    samples_per_s: float
    """Median over the reports, whole job."""
    last_at: float
    noise_scale: float = 0.0
    """Median over the reports that measured it, in samples; 0: none did."""
    comm_share: float = 0.0
    """Median over the reports that measured it, the share of exposed communication; 0: none did."""
    input_wait_share: float = 0.0
    """Median over the reports of which it is known, the share of a step that waits for input; 0 where of none."""


@dataclass(frozen=True, slots=True)
class CheckpointRow:
    """What the last checkpoint of a job cost, and how often one is taken."""

    job_id: int
    at: float
    megabytes: float
    pause_s: float
    """How long the training stood still for it."""
    write_s: float
    """How long it was written, beside the training."""
    every_s: float
    """Seconds between two."""
    node_failure_s: float
    """How long a node of its partition was taken to last when the job was told; 0: that was not known."""


@dataclass(frozen=True, slots=True)
class PauseRow:
    """What one resize cost, and of which job."""

    job_id: int
    pause_s: float
    requeue: bool


@dataclass(frozen=True, slots=True)
class PredictionRow:
    """What the model of a resize said of a size that had not been measured, and what was measured there."""

    job_id: int
    at: float
    program: str
    gpu_type: str
    gpus: int
    nodes: int
    batch: int
    predicted: float
    """Samples/s."""
    doubt: float
    """Relative 1-sigma that the model gave it."""
    observed: float
    """Samples/s, median over the reports."""


@dataclass(frozen=True, slots=True)
class RunRow:
    """What one ended job ran, and all that was measured of it."""

    job_id: int
    program: str
    gpu_type: str
    observations: tuple[ObservationRow, ...]


@dataclass(frozen=True, slots=True)
class PriorRow:
    """What was learned from earlier runs of a program on a kind of GPU; both empty: from all of the cluster."""

    program: str
    gpu_type: str
    learned_at: float
    runs: int
    prior: dict[str, Any]
    """As the optimizer wrote it; the store does not look inside."""


@record(frozen=True, slots=True)
class DecisionRow:
    """What a round decided for one job, and on what grounds."""

    job_id: int
    at: float
    gpus_from: int
    gpus_to: int
    batch_from: int
    batch_to: int
    reason: str
    value: float | None
    """Value of the target in the objective's unit; None: not known."""
    gain: float | None
    """Gain of the move against staying, same unit; None: not known."""
    evidence: dict[str, Any] = field(default_factory=dict)
    alternatives: list[dict[str, Any]] = field(default_factory=list)
    mechanism: str = ""
    mode: str = "review"

    @property
    def mark(self) -> Mark:
        """What makes a decision another one: sizes, batches, reason, mechanism, mode."""
        return _mark(self)


@record(frozen=True, slots=True)
class ResizeRow(ResizeTarget):
    """One resize of one job: what it is to reach, and how far it has come."""

    state: ResizeState
    phases: tuple[tuple[ResizeState, float], ...]
    """The states it has come to and when, the first one first."""
    detail: str = ""

    @classmethod
    def issued(cls, target: ResizeTarget, at: float) -> ResizeRow:
        """The resize that begins at this time."""
        values = {item.name: getattr(target, item.name) for item in fields(ResizeTarget)}
        return cls(**values, state=ResizeState.ISSUED, phases=((ResizeState.ISSUED, at),))

    def come_to(self, state: ResizeState, at: float, detail: str = "") -> ResizeRow:
        """The resize once it is in this state."""
        return replace(self, state=state, phases=(*self.phases, (state, at)), detail=detail)

    @property
    def open(self) -> bool:
        return not self.state.closed

    @property
    def too_large(self) -> bool:
        """Whether it failed because its size does not fit into the memory of its GPUs."""
        return self.state == ResizeState.FAILED and self.detail.startswith(TOO_LARGE)

    @property
    def created(self) -> float:
        return self.phases[0][1]

    @property
    def updated(self) -> float:
        return self.phases[-1][1]

    @property
    def message(self) -> Resize:
        """What its supervisor is told."""
        return Resize(self.id, self.job_id, self.keep, self.add, self.gpus, self.batch, self.reason, self.wait_s)


@dataclass(frozen=True, slots=True)
class EventRow:
    """One thing done to a job: appended, never changed."""

    id: int
    job_id: int
    at: float
    kind: str
    who: str
    """uid:NUMBER, supervisor, or selasticd."""
    detail: dict[str, Any] = field(default_factory=dict)


# --- pieces and shapes as JSON values; the messages' strict decoder refuses a damaged one -----------------------


def records_out(records: Sequence[Any]) -> list[dict[str, Any]]:
    """Records as JSON values; tuples become lists, as they come back."""
    return [{name: list(v) if isinstance(v, tuple) else v for name, v in asdict(one).items()} for one in records]


def records_in(kind: type[T], value: Any) -> tuple[T, ...]:
    """The reverse of `records_out`."""
    return tuple(decode(kind, item, f"stored {kind.__name__}") for item in value)
