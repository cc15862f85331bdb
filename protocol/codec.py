"""Messages as JSON, and one decoder: fields that it does not know are ignored, those with a default may be missing. A
wrong type, a number that is not finite or outside its bounds is refused with one sentence. Nothing here does I/O;
standard library only.

Supervisor and daemon may be one release apart, in both directions, and each says its version. So whoever changes a
message adds a field with a default, or drops one that has a default, and raises VERSION; nothing is renamed, and no
field changes its meaning. Limit: what the other side has to understand is not sent to one of an older version.
"""

import functools
import json
import types
import typing
from dataclasses import MISSING, asdict, dataclass, fields, is_dataclass
from typing import Annotated, Any, TypeVar

from .errors import ElasticError

VERSION = 7
OLDEST = 2
"""The oldest version that is understood; 1 was slurm-elastic 0.1.0's."""
MAX_BODY = 1 << 20
"""Largest accepted message, in bytes."""
MAX_NUMBER = 1e15
MAX_TEXT = 4096
MAX_ITEMS = 4096

_NUMBERS = (int, float)
_SCALARS = (*_NUMBERS, str, bool)

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Within:
    """The least and the greatest number that a field accepts."""

    low: float
    high: float


_ANY = Within(0, MAX_NUMBER)


class WireError(ElasticError):
    """A message that is not of its form."""


def to_json(message: Any) -> bytes:
    return json.dumps(asdict(message), separators=(",", ":"), allow_nan=False).encode()


def printable(text: str) -> str:
    """The text as a message may hold it."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_TEXT])


def from_json(kind: type[T], body: bytes) -> T:
    """Read a message of this kind. Raises WireError with one sentence."""
    if len(body) > MAX_BODY:
        raise WireError(f"{kind.__name__}: {len(body)} bytes; accepted: at most {MAX_BODY}")
    try:
        data = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"{kind.__name__}: not JSON ({error})") from None
    return decode(kind, data)


def decode(kind: type[T], data: object, where: str = "") -> T:
    """Build a message from parsed JSON. Raises WireError naming the field."""
    where = where or kind.__name__
    if not isinstance(data, dict):
        raise WireError(f"{where}: {_short(data)} is not an object")
    fields_of = form(kind)  # type: ignore[arg-type]  # a class is hashable
    values: dict[str, Any] = {}
    for name, (hint, within, required) in fields_of.items():
        if name in data:
            value = data[name]
            # Most fields are plain numbers, and this is the daemon's busiest line: nan fails the comparison.
            plain = type(value) is hint and hint in _NUMBERS and within.low <= value <= within.high
            values[name] = value if plain else _value(hint, within, value, f"{where}.{name}")
        elif required:
            raise WireError(f"{where}: field {name} is missing")
    if values.get("version", OLDEST) < OLDEST:
        raise WireError(
            f"{where}: version {values['version']} of the messages is not spoken any more; accepted: {OLDEST} and "
            "newer: start the job again with the slurm-elastic of the daemon"
        )
    return kind(**values)


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


def _value(kind: Any, within: Within, value: object, where: str) -> Any:
    if kind in _SCALARS:
        return _scalar(kind, within, value, where)
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]
        if not isinstance(value, list) or len(value) > MAX_ITEMS:
            raise WireError(f"{where}: {_short(value)} is not a list of at most {MAX_ITEMS} items")
        return tuple(_value(item, within, entry, f"{where}[{index}]") for index, entry in enumerate(value))
    if isinstance(kind, type) and is_dataclass(kind):
        return decode(kind, value, where)
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
