"""Newline-delimited JSON objects: how a supervisor, its agents and its workers talk over TCP, and the fields of one,
each read as what it must be. No I/O here.

Limit: a message is one object of at most MAX_LINE bytes and MAX_DEPTH levels; anything else is Malformed, and what
comes after it can still be read. So is a field that is missing, of another type or outside its bounds.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

MAX_LINE = 1 << 20
MAX_DEPTH = 8
"""Deeper ones could be read and then, deeper in the stack, not written."""
Message = dict[str, Any]


class Malformed(ValueError):
    """What the peer has sent is no message, or not what a message of its type holds."""


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class MessageReader:
    """Puts what a socket gives together to messages."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._lines: deque[bytearray] = deque()
        self._too_long = False
        """The rest of a line that was too long is still to come."""

    def feed(self, data: bytes) -> None:
        """Take bytes as they have come."""
        if self._too_long:
            _, end, data = data.partition(b"\n")
            if not end:
                return
            self._too_long = False
        self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        self._lines += lines

    def messages(self) -> Iterator[Message]:
        """The complete messages not yet given, in order. Raises Malformed when it gets to something else, which is then
        behind it: ask again for what follows."""
        while self._lines:
            yield _decode(self._lines.popleft())
        if len(self._rest) > MAX_LINE:
            self._rest.clear()
            self._too_long = True
            raise Malformed(f"a message longer than {MAX_LINE} bytes")


def _decode(line: bytearray) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or len(line) > MAX_LINE or _deeper(message, MAX_DEPTH):
        raise Malformed("a line that is not a JSON object")
    return message


def _deeper(value: object, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inside = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(each, levels - 1) for each in inside)


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
    value = message.get(name, default)
    if not isinstance(value, (list, tuple)) or len(value) > MAX_ITEMS:
        raise Malformed(f"{name} is not a list of at most {MAX_ITEMS} texts")
    return tuple(_text(item, name) for item in value)


def records(message: Message, name: str) -> tuple[Message, ...]:
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
