"""The fields of a message over a socket, each read as what it must be. No I/O here.

Promise: a field that is missing, of another type or outside its bounds is Malformed, and nothing else is ever raised.
"""

from __future__ import annotations

from collections.abc import Sequence

from .json_lines import Malformed, Message

LARGEST = 10**15
LONGEST_S = 10**9
"""Python's timers and timedeltas take no number of seconds that is much larger."""
MAX_ITEMS = 4096


def whole(message: Message, name: str, low: int = 0, high: int = LARGEST, default: int | None = None) -> int:
    """A whole number within these bounds."""
    value = message.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise Malformed(f"{name} is not a whole number from {low} to {high}")
    return value


def seconds(message: Message, name: str, default: float | None = None) -> float:
    """A time that can be waited for."""
    value = message.get(name, default)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= LONGEST_S:
        raise Malformed(f"{name} is not a number of seconds up to {LONGEST_S}")
    return float(value)


def text(message: Message, name: str, default: str | None = None) -> str:
    """Text that can be written anywhere: what is no character becomes a question mark."""
    return _text(message.get(name, default), name)


def name_of(message: Message, name: str) -> str:
    """A name that is also good for a file and a variable of the environment."""
    value = message.get(name)
    if not isinstance(value, str) or not value.isprintable() or not value or "/" in value or len(value) > 255:
        raise Malformed(f"{name} is not a name")
    return value


def texts(message: Message, name: str, default: Sequence[str] | None = None) -> tuple[str, ...]:
    """A list of texts."""
    value = message.get(name, default)
    if not isinstance(value, (list, tuple)) or len(value) > MAX_ITEMS:
        raise Malformed(f"{name} is not a list of at most {MAX_ITEMS} texts")
    return tuple(_text(item, name) for item in value)


def records(message: Message, name: str) -> tuple[Message, ...]:
    """A list of objects."""
    value = message.get(name)
    if not isinstance(value, list) or len(value) > MAX_ITEMS or not all(isinstance(item, dict) for item in value):
        raise Malformed(f"{name} is not a list of at most {MAX_ITEMS} objects")
    return tuple(value)


def variables(message: Message, name: str) -> dict[str, str]:
    """Variables for the environment of a process."""
    value = message.get(name)
    if not isinstance(value, dict):
        raise Malformed(f"{name} is not an object")
    for key, setting in value.items():
        if not key or "=" in key or not _in_environment(key) or not _in_environment(setting):
            raise Malformed(f"{name} holds what an environment cannot")
    return dict(value)


def _in_environment(value: object) -> bool:
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode(errors="surrogateescape")  # how Python holds bytes that are no text in the locale
    except UnicodeEncodeError:
        return False
    return True


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise Malformed(f"{name} is not text")
    return value.encode(errors="replace").decode()
