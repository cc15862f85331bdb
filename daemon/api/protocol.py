"""uvicorn's HTTP protocol with the quick way for reports: a message of them is taken where its last byte is parsed,
without a task, an ASGI scope or a routing table.

Promise: httptools parses every request, uvicorn answers all that is not taken here, and takes turns with it: requests
of a connection are answered one after the other. Limit: a message whose head arrives before its body goes the ordinary
way, which knows slow clients.
"""

from __future__ import annotations

from functools import partial
from http import HTTPStatus
from typing import Any

from .peer import PeerProtocol
from .report_intake import Headers, Intake

_STATUS = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}


class _Nobody:
    """Stands where uvicorn wakes a request that waits for its body."""

    def set(self) -> None:
        """Nobody waits."""


class _Taken:
    """A message that is on its way to the disk, in the place of uvicorn's RequestResponseCycle."""

    __slots__ = ("disconnected", "keep_alive", "response_complete")
    message_event = _Nobody()

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.disconnected = self.response_complete = False


class IntakeProtocol(PeerProtocol):
    """A connection to the API of which `intake` takes the reports."""

    cycle: Any

    def __init__(self, *given: Any, intake: Intake, **named: Any) -> None:
        super().__init__(*given, **named)
        self._intake = intake
        self._job: int | None = None
        """Whose message is being read; None: it is not ours."""
        self._parts: list[bytes] = []

    def data_received(self, data: bytes) -> None:
        """Some bytes have arrived."""
        super().data_received(data)
        if self._job is not None and not self.transport.is_closing():
            self._hand_over()

    def on_headers_complete(self) -> None:
        """The head of a request is known."""
        idle = (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused
        if idle and self.parser.get_method() == b"POST" and self.parser.get_http_version() == "1.1":
            self._job = self._intake.job(self.url, self.headers)
        if self._job is None:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A part of a request's body."""
        if self._job is None:
            super().on_body(body)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """The end of a request."""
        if self._job is not None:
            before, taken = self.cycle, _Taken(self.parser.should_keep_alive())
            self.cycle = taken
            if self._intake.take(self._job, b"".join(self._parts), partial(self._answer, taken)):
                self._job, self._parts = None, []
                return
            self.cycle = before
            self._hand_over()
        super().on_message_complete()

    def _hand_over(self) -> None:
        """Let uvicorn have the request as far as it has come."""
        body, self._job, self._parts = b"".join(self._parts), None, []
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def _answer(self, taken: _Taken, status: int, headers: Headers, body: bytes) -> None:
        taken.response_complete = True
        if taken.disconnected or self.transport.is_closing():
            return
        headers = [*self.server_state.default_headers, *headers]
        if not taken.keep_alive:
            headers.append((b"connection", b"close"))
        lines = b"".join([b"%b: %b\r\n" % each for each in headers])
        self.transport.write(b"HTTP/1.1 %b\r\n%b\r\n%b" % (_STATUS[status], lines, body))
        if not taken.keep_alive:
            self.transport.close()
        self.on_response_complete()
