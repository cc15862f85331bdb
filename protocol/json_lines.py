"""Newline-delimited JSON objects: how a supervisor, its agents and its workers talk over TCP. No I/O here.

Limit: a message is one object of at most MAX_LINE bytes; anything else is Malformed.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from typing import Any

MAX_LINE = 1 << 20
Message = dict[str, Any]


class Malformed(ValueError):
    """What the peer sends is no message; nothing after it can be trusted."""


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


class MessageReader:
    """Puts what a socket gives together to messages."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._lines: deque[bytearray] = deque()

    def feed(self, data: bytes) -> None:
        """Take bytes as they have come."""
        self._rest += data
        *lines, self._rest = self._rest.split(b"\n")
        self._lines += lines

    def messages(self) -> Iterator[Message]:
        """The complete messages not yet given, in order. Raises Malformed when it gets to something else."""
        while self._lines:
            yield _decode(self._lines.popleft())
        if len(self._rest) > MAX_LINE:
            raise Malformed(f"a message longer than {MAX_LINE} bytes")


def _decode(line: bytearray) -> Message:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict):
        raise Malformed("a line that is not a JSON object")
    return message
