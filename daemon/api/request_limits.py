"""The outermost of the daemon's HTTP protocols: a request is whole in time and not too long, or its connection ends.

Promise: who opens connections and says nothing, little or too much costs a file descriptor for MESSAGE_S and MOST_HEAD
bytes; uvicorn bounds neither, and callers are known only once their request is there. Limit: TLS handshakes have
asyncio's bound, answers that nobody reads the one of `claims.listening`.
"""

from __future__ import annotations

import asyncio

from slurm_elastic.protocol.messages import MAX_BODY

from .protocol import IntakeProtocol

MESSAGE_S = 30.0
"""Time from a connection's, or a request's, first byte to the request's last; bodies have a shorter one."""
MOST_HEAD = 64 << 10
"""Longest head of a request, in bytes: a credential is a few hundred."""
MOST = MAX_BODY + 2 * MOST_HEAD
"""Longest request, in bytes: a body that is only a little too long is answered (413)."""


class BoundedProtocol(IntakeProtocol):
    """A connection to the API that ends when a request is too long or takes too long to arrive."""

    def __init__(self, *given: object, **named: object) -> None:
        super().__init__(*given, **named)  # type: ignore[arg-type]  # as uvicorn calls it
        self._due: asyncio.TimerHandle | None = None
        self._begun = self._in_head = False
        """A request has begun to arrive; its head is not complete yet."""
        self._size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A new connection, whose first request is waited for."""
        super().connection_made(transport)
        self._due = self.loop.call_later(MESSAGE_S, self._slow)

    def data_received(self, data: bytes) -> None:
        """Some bytes have arrived."""
        self._size += len(data)
        super().data_received(data)
        if not self._begun:
            self._size = 0
        elif self._size > (MOST_HEAD if self._in_head else MOST):
            self.transport.abort()
        elif self._due is None and not self.transport.is_closing():
            self._due = self.loop.call_later(MESSAGE_S, self._slow)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        self._begun = self._in_head = True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """The end of a request's head."""
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The end of a request."""
        self._begun, self._size = False, 0
        self._in_time()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end of a connection."""
        self._in_time()
        super().connection_lost(exc)

    def _in_time(self) -> None:
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def _slow(self) -> None:
        self._due = None
        if self.flow.read_paused:  # it is we who do not read: an earlier request of the connection is being answered
            self._due = self.loop.call_later(MESSAGE_S, self._slow)
        else:
            self.transport.abort()
