"""The HTTP server: all of the code that subclasses uvicorn or uses what uvicorn does not document.

Promise: httptools parses every request. A message of reports is taken where its last byte is parsed, without a task, an
ASGI scope or a route; uvicorn answers all others, and requests of a connection are answered one after the other. A
caller that sends nothing, too little or too much costs one file descriptor for MESSAGE_S and MAX_HEAD bytes, and has
no more of them than connection_limits.py allows. The uid of
a caller on the Unix socket comes from the kernel, and such a caller needs no TLS.
Limit: made for uvicorn 0.30 to 0.54, the oldest and the newest that the tests were run with; setup.cfg names the same
bounds, and test_http_server.py fails where one of the internals is gone. Reports whose head arrives before their body
take uvicorn's way, which knows slow clients. Unread answers have the bound `listeners.UNREAD_MS`.
"""

import asyncio
import contextlib
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from functools import partial
from http import HTTPStatus
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slurm_elastic.protocol import own_files
from slurm_elastic.protocol.api.client import peer_uid
from slurm_elastic.protocol.codec import MAX_BODY

from ..config import tls
from . import requests
from .app import Application
from .connection_limits import ConnectionLimits, TlsHandshake
from .report_intake import Head, Headers, Intake
from .requests import UID_PREFIX
from .settings import ServerSettings

MESSAGE_S = 30.0
"""Time from a connection's, or a request's, first byte to the request's last; bodies have a shorter one."""
MAX_HEAD = 64 << 10
"""Longest head of a request, in bytes: a credential is a few hundred."""
MAX_REQUEST = MAX_BODY + 2 * MAX_HEAD
"""Longest request, in bytes: a body that is only a little too long is answered (413)."""
MOST_IN_A_ROW = 100
"""Requests of one connection that wait for the answers to earlier ones. uvicorn reads on after each answer, whatever
waits already: 8 MB of requests were 230 MB in memory."""
KEEP_ALIVE_S = 75
"""How long a connection may be idle: longer than the time between two requests of a supervisor."""
STOP_S = 5
"""How long requests under way may take when the daemon stops."""
_STATUS = {status.value: f"{status.value} {status.phrase}".encode() for status in HTTPStatus}


class _NoEvent:
    """Stands where uvicorn wakes a request that waits for its body."""

    def set(self) -> None:
        """Nobody waits."""


class _PendingReports:
    """A message that is on its way to the disk, in the place of uvicorn's RequestResponseCycle."""

    __slots__ = ("disconnected", "keep_alive", "response_complete")
    message_event = _NoEvent()

    def __init__(self, keep_alive: bool) -> None:
        self.keep_alive = keep_alive
        self.disconnected = self.response_complete = False


class ReportsProtocol(HttpToolsProtocol):
    """A connection to the API: `intake` takes its reports; over a Unix socket its client is "uid:NUMBER"."""

    cycle: Any

    def __init__(self, *args: Any, intake: Intake, **named: Any) -> None:
        super().__init__(*args, **named)
        self._intake = intake
        self._reports: Head | None = None
        """Whose reports are being read; None: the request is uvicorn's."""
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            self.client = (f"{UID_PREFIX}{peer_uid(connection)}", 0)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._reports is not None and not self.transport.is_closing():
            self._hand_over()

    def on_headers_complete(self) -> None:
        idle = (self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused
        if idle and self.parser.get_method() == b"POST" and self.parser.get_http_version() == "1.1":
            sealed = self.scheme == "https" or bool(self.client and self.client[0].startswith(UID_PREFIX))
            self._reports = self._intake.head(self.url, self.headers, sealed)
        if self._reports is None:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._reports is None:
            super().on_body(body)
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        if self._reports is not None:
            before, pending = self.cycle, _PendingReports(self.parser.should_keep_alive())
            self.cycle = pending
            if self._intake.take(self._reports, b"".join(self._parts), partial(self._answer, pending)):
                self._reports, self._parts = None, []
                self._prove()
                return
            self.cycle = before
            self._hand_over()
        super().on_message_complete()

    def _prove(self) -> None:
        """Its reports came from their job's supervisor."""

    def _hand_over(self) -> None:
        """Let uvicorn have the request as far as it has come."""
        body, self._reports, self._parts = b"".join(self._parts), None, []
        super().on_headers_complete()
        if body:
            super().on_body(body)

    def _answer(self, pending: _PendingReports, status: int, headers: Headers, body: bytes) -> None:
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            self.loop.call_later(requests.TOO_MANY_S, self._send, pending, status, headers, body)
        else:
            self._send(pending, status, headers, body)

    def _send(self, pending: _PendingReports, status: int, headers: Headers, body: bytes) -> None:
        pending.response_complete = True
        if pending.disconnected or self.transport.is_closing():
            return
        headers = [*self.server_state.default_headers, *headers]
        if not pending.keep_alive:
            headers.append((b"connection", b"close"))
        lines = b"".join([b"%b: %b\r\n" % each for each in headers])
        self.transport.write(b"HTTP/1.1 %b\r\n%b\r\n%b" % (_STATUS[status], lines, body))
        if not pending.keep_alive:
            self.transport.close()
        self.on_response_complete()


class BoundedProtocol(ReportsProtocol):
    """A connection that ends when a request is too long or takes too long to arrive, and at once when it is one too
    many."""

    def __init__(self, *args: Any, limits: ConnectionLimits, **named: Any) -> None:
        super().__init__(*args, **named)
        self._limits = limits
        self._peer: str | None = None
        """Whose connection this counts as; None: it does not count."""
        self._deadline: asyncio.TimerHandle | None = None
        self._begun = self._in_head = False
        """A request has begun to arrive; its head is not complete yet."""
        self._size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A new connection, which has MESSAGE_S for its first request."""
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        if not self._limits.admit(peer, self._end):
            transport.abort()
            return
        self._peer = peer
        self._deadline = self.loop.call_later(MESSAGE_S, self._expired)

    def data_received(self, data: bytes) -> None:
        self._size += len(data)
        super().data_received(data)
        if not self._begun:
            self._size = 0
        elif self._size > (MAX_HEAD if self._in_head else MAX_REQUEST):
            self.transport.abort()
        elif self._deadline is None and not self.transport.is_closing():
            self._deadline = self.loop.call_later(MESSAGE_S, self._expired)

    def on_message_begin(self) -> None:
        self._begun = self._in_head = True
        super().on_message_begin()
        self.scope["state"]["prove"] = self._prove

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self.pipeline) >= MOST_IN_A_ROW:
            self.transport.abort()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._begun, self._size = False, 0
        self._cancel_deadline()
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self._count_no_more()
        super().connection_lost(exc)

    def _end(self) -> None:
        self._count_no_more()
        self.transport.abort()

    def _prove(self) -> None:
        if self._peer is not None:
            self._limits.prove(self._peer, self._end)

    def _count_no_more(self) -> None:
        if self._peer is not None:
            self._limits.release(self._peer, self._end)
            self._peer = None

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _expired(self) -> None:
        self._deadline = None
        if self.flow.read_paused:  # the server does not read: it still answers an earlier request of the connection
            self._deadline = self.loop.call_later(MESSAGE_S, self._expired)
        else:
            self.transport.abort()


def server_config(app: Application, settings: ServerSettings) -> uvicorn.Config:
    limits = ConnectionLimits(own_files.limit())
    http: Any = partial(BoundedProtocol, intake=app.intake, limits=limits)
    return uvicorn.Config(
        app,
        http=_behind_tls(http, limits, tls.server_context(settings)) if settings.tls_cert else http,
        # Else a WebSocket library that happens to be installed would take connections out of BoundedProtocol's hands.
        ws="none",
        log_config=None,
        log_level="error",  # it warns of each request of a stranger's that is none
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=STOP_S,
        timeout_keep_alive=KEEP_ALIVE_S,
        server_header=False,
        # A caller from this host must not say that it is another.
        proxy_headers=False,
    )


def _behind_tls(http: Callable[..., asyncio.Protocol], limits: ConnectionLimits, context: ssl.SSLContext) -> Any:
    """Makes the same protocol, for connections that have shaken hands. uvicorn's own TLS counts nobody before."""
    return lambda **named: TlsHandshake(limits, context, partial(http, **named))


class HttpServer(uvicorn.Server):
    """uvicorn on TCP and Unix sockets. The first SIGTERM or SIGINT stops it cleanly, the second at once; neither is
    raised again. A subclass fills in `started_serving`, `tick` and `end`."""

    def started_serving(self, others: list[socket.socket]) -> None:
        """Requests are answered from now on. `others`: sockets of `run` that are no stream sockets."""

    def tick(self) -> None:
        """Called ten times a second on the event loop."""

    def end(self) -> None:
        """Stop soon. From any thread."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve the Unix socket too, without TLS."""
        given = sockets or []
        http = [each for each in given if each.type == socket.SOCK_STREAM]
        await super().startup([each for each in http if each.family != socket.AF_UNIX])
        for each in http:
            if each.family == socket.AF_UNIX and self.started:
                server = await asyncio.get_running_loop().create_unix_server(self._protocol, sock=each, backlog=2048)
                self.servers.append(server)
        self.started_serving([each for each in given if each not in http])

    def _protocol(self) -> asyncio.Protocol:
        made: Any = self.config.http_protocol_class
        return made(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[no-any-return]

    async def on_tick(self, counter: int) -> bool:
        self.tick()
        return await super().on_tick(counter)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Unlike uvicorn's own, does not raise the signal again: stopping is a success."""
        before = {number: signal.signal(number, self._stop) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stop(self, number: int, frame: object) -> None:
        if self.should_exit:
            self.force_exit = True
        self.end()
