"""Newline-delimited JSON objects: how a supervisor, its agents and its workers talk over TCP. No I/O here.

Limit: a message is one object of at most MAX_LINE bytes and MAX_DEPTH levels; anything else is Malformed, and what
comes after it can still be read.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
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
