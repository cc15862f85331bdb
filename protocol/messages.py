"""The messages between a job's supervisor (or the command line) and selasticd.

Plain frozen dataclasses and one strict decoder: an unknown field, a missing one, a wrong type, a number that is not
finite or outside its bounds is refused with one sentence. Standard library only; nothing here does I/O.

Supervisor and daemon may be one release apart, in both directions. A message says of which version it is. Of a newer
version than this code's, fields that this code does not know are ignored; of any other version they are refused, for
then they are mistakes. So whoever changes a message adds a field with a default, and raises VERSION; nothing is
renamed, and no field goes away before OLDEST has passed the last version that has it.
"""

from __future__ import annotations

import functools
import json
import types
import typing
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar

from .errors import ElasticError
from .resize_state import ResizeState

VERSION = 2
OLDEST = 2
"""The oldest version that is understood; 1 was slurm-elastic 0.1.0's."""
MAX_BODY = 1 << 20
"""Largest accepted message, in bytes."""
MAX_NUMBER = 1e15
MAX_TEXT = 4096
MAX_ITEMS = 4096

_NUMBERS = (int, float)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Within:
    """The least and the greatest number that a field accepts."""

    low: float
    high: float


Count = Annotated[int, Within(1, 10**9)]
"""Of what is there if anything is: GPUs, samples, steps."""
StepSeconds = Annotated[float, Within(1e-6, 1e7)]
"""What a step can have taken: a microsecond to a hundred days."""
_ANY = Within(0, MAX_NUMBER)


class WireError(ElasticError):
    """A message that is not of its form."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of an allocation: one Slurm job id with its nodes."""

    slurm_job_id: int
    kind: str
    """base, component or companion."""
    nodes: tuple[str, ...]
    gpus_per_node: int
    gpu_type: str = ""

    @property
    def gpus(self) -> int:
        return len(self.nodes) * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class Shape:
    """What a companion is to look like; sizes are per node."""

    nodes: int
    gpus_per_node: int
    cpus_per_node: int = 1
    mem_mb_per_node: int = 0
    """0: the partition's default."""
    gpu_type: str = ""
    partition: str = ""
    account: str = ""
    qos: str = ""
    node_list: tuple[str, ...] = ()
    """Nodes it must get; empty: Slurm chooses."""

    @property
    def gpus(self) -> int:
        return self.nodes * self.gpus_per_node


@dataclass(frozen=True, slots=True)
class Registration:
    """A supervisor says that it runs a job, on what, and how."""

    version: int
    generation: int
    pieces: tuple[Piece, ...]
    """The pieces whose GPUs train now."""
    batch: int
    program: str
    request: str = ""
    """The elastic request given to `selastic run`; empty: the job's comment speaks."""
    max_micro_batch: int = 0
    """Largest micro batch per GPU; 0: unknown."""

    def refusal(self) -> str:
        """Why this version is not spoken here; empty when it is. A newer one is: see the module."""
        if self.version >= OLDEST:
            return ""
        return (
            f"version={self.version} of the messages is not spoken any more; accepted: {OLDEST} and newer: "
            "start the job again with the shim of the daemon's version of slurm-elastic"
        )


@dataclass(frozen=True, slots=True)
class Grant:
    """selasticd's answer to a registration."""

    token: str
    managed: bool
    reason: str
    report_interval_s: float
    request: str = ""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Report:
    """What one world did over a few seconds. Times in seconds, batch and samples over the whole job."""

    generation: int
    at: float
    gpus: Count
    nodes: Count
    batch: Count
    micro_batch: Count
    accumulation: Count
    steps: Count
    """Optimizer steps that the medians are taken over."""
    step_time_median_s: StepSeconds
    step_time_p90_s: StepSeconds
    samples_per_s: float
    step: int
    """Optimizer steps done since the start of the training."""
    samples: int
    """Samples trained on since the start of the training."""
    epoch: int
    noise_scale: float = 0.0
    """Gradient noise scale in samples; 0: not measured."""
    input_wait_share: float = 0.0
    memory_peak_mb: float = 0.0
    comm_share: float = 0.0
    """Share of a step in which gradients travel and nothing computes, where nobody is waited for; 0: not measured."""
    bottleneck: str = ""
    """What holds the steps back, one of bottleneck.KINDS; empty: nothing worth naming, or not measured."""
    bottleneck_share: float = 0.0
    """Share of every step that would be saved without it."""
    bottleneck_rank: int = 0
    bottleneck_node: str = ""


@dataclass(frozen=True, slots=True)
class Reports:
    reports: tuple[Report, ...]
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Resize:
    """What tells a supervisor to carry out a resize: keep these pieces, add companions of these shapes, use this batch.

    The same id always means the same resize; taking it twice is harmless.
    """

    id: int
    job_id: int
    keep: tuple[Piece, ...]
    add: tuple[Shape, ...]
    gpus: int
    batch: int
    reason: str
    wait_s: float
    """How long a companion may stay pending and its workers warm up, both together, before the resize is given up."""
    withdrawn: bool = False
    version: int = VERSION

    @property
    def requeues(self) -> bool:
        """It keeps nothing: the job is put back into Slurm's queue and starts again in the one shape that is added.

        The supervisor writes a checkpoint and says `saved`; the daemon does the rest, and the job is told to end.
        """
        return not self.keep


FINISHED = "finished"
"""The phase that is of no resize: the training has ended."""
PHASES = (
    *(ResizeState.ACCEPTED, ResizeState.SAVED, ResizeState.SUBMITTED, ResizeState.GRANTED, ResizeState.READY),
    *(ResizeState.RUNNING, ResizeState.FAILED, ResizeState.WITHDRAWN, FINISHED),
)
"""What a supervisor may say."""


@dataclass(frozen=True, slots=True)
class Phase:
    """How far a resize has come. `pieces` are those whose GPUs train now; with `running` they are the new ones."""

    resize: int
    """Its id; 0: not because of a resize (a restart, the end of the training)."""
    phase: str
    """One of PHASES."""
    generation: int
    pieces: tuple[Piece, ...]
    batch: int
    at: float
    pause_s: float = 0.0
    """With `running`: from the last step of the old world to the first of the new, less one step."""
    step: int = 0
    """Steps done so far; with `running` the number of the world's first step."""
    samples: int = 0
    """Samples seen so far; with `running` those before the world's first step."""
    detail: str = ""
    exit_code: int = 0
    """With `finished`: what the supervisor is about to exit with; 128 + N after signal N."""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class Pin:
    """Hold a job at so many GPUs; null lets it go."""

    gpus: Annotated[int, Within(1, 1_000_000)] | None


def to_json(message: Any) -> bytes:
    """A message as compact JSON."""
    return json.dumps(asdict(message), separators=(",", ":"), allow_nan=False).encode()


def from_json(kind: type[T], body: bytes) -> T:
    """Read a message of this kind. Raises WireError with one sentence."""
    if len(body) > MAX_BODY:
        raise WireError(f"{kind.__name__}: {len(body)} bytes; accepted: at most {MAX_BODY}")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{kind.__name__}: not JSON ({error})") from None
    return decode(kind, data)


def decode(kind: type[T], data: object, where: str = "", newer: bool = False) -> T:
    """Build a message from parsed JSON, strictly. Raises WireError naming the field.

    newer: it is part of a message of a newer version, whose unknown fields are ignored.
    """
    where = where or kind.__name__
    if not isinstance(data, dict):
        raise WireError(f"{where}: {_short(data)} is not an object")
    fields_of = form(kind)  # type: ignore[arg-type]  # a class is hashable
    newer = newer or _is_newer(fields_of, data)
    unknown = [] if newer else sorted(data.keys() - fields_of.keys())
    if unknown:
        raise WireError(f"{where}: unknown field {_short(unknown[0])}; accepted: {', '.join(fields_of)}")
    values: dict[str, Any] = {}
    for name, (hint, within, required) in fields_of.items():
        if name in data:
            value = data[name]
            # Most fields are plain numbers, and this is the daemon's busiest line: nan fails the comparison.
            plain = type(value) is hint and hint in _NUMBERS and within.low <= value <= within.high
            values[name] = value if plain else _value(hint, within, value, f"{where}.{name}", newer)
        elif required:
            raise WireError(f"{where}: field {name} is missing")
    return kind(**values)


def _is_newer(fields_of: dict[str, Any], data: dict[str, Any]) -> bool:
    version = data.get("version", 0) if "version" in fields_of else 0
    return type(version) is int and version > VERSION


@functools.cache
def form(kind: Any) -> dict[str, tuple[Any, Within, bool]]:
    """Each field of a message: its type, the bounds of a number, and whether it must be there.

    Looked up once: it costs more than a decode.
    """
    hints = typing.get_type_hints(kind, include_extras=True)
    return {field.name: (*_bounded(hints[field.name]), field.default is MISSING) for field in fields(kind)}


def _bounded(hint: Any) -> tuple[Any, Within]:
    if (value := or_none(hint)) is not None:
        kind, within = _bounded(value)
        return kind | None, within
    if typing.get_origin(hint) is Annotated:
        kind, within = typing.get_args(hint)
        return kind, within
    return hint, _ANY


def _value(kind: Any, within: Within, value: object, where: str, newer: bool) -> Any:
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise WireError(f"{where}: {_short(value)} is not a list of at most {MAX_ITEMS} items")
        return tuple(_value(item, within, entry, f"{where}[{index}]", newer) for index, entry in enumerate(value))
    if isinstance(kind, type) and is_dataclass(kind):
        return decode(kind, value, where, newer)
    inner = or_none(kind)
    if inner is not None and value is None:
        return None
    return _scalar(inner or kind, within, value, where, ", or null" if inner is not None else "")


def or_none(kind: object) -> Any:
    """What a value is that may also be None; None: it may not."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return None
    return next(value for value in typing.get_args(kind) if value is not type(None))


def _scalar(kind: type, within: Within, value: object, where: str, or_null: str = "") -> Any:
    if kind is bool and isinstance(value, bool):
        return value
    if kind is str and isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable():
        return value
    if kind in (int, float) and isinstance(value, (int, float)) and not isinstance(value, bool):
        whole_enough = kind is float or isinstance(value, int)
        # The bounds are finite, so nothing else passes; math.isfinite cannot take a whole number of 400 digits.
        if whole_enough and within.low <= value <= within.high:
            return kind(value)
    names = {
        bool: "true or false",
        str: f"printable text of at most {MAX_TEXT} characters",
        int: f"a whole number, {within.low:g} to {within.high:g}",
        float: f"a finite number, {within.low:g} to {within.high:g}",
    }
    raise WireError(f"{where}: {_short(value)} is not accepted; accepted: {names[kind]}{or_null}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
