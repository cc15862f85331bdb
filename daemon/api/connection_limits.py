"""How many connections the API takes, in all and from one peer, so that rounds always find a descriptor.

Promise: with TLS, one counts from its first packet on, and its handshake is bounded. Where a peer has too many, the
oldest of its that has proved nothing ends, so that whoever shares an address with a flood is answered. Limit: who may
not have one more is refused after it was accepted, so it has cost a descriptor for a moment.
"""

import asyncio
import logging
import socket
import ssl
import time
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 16384
KEPT = 2560
"""Descriptors for rounds, the database, and as many connections as wait to be refused (the server's backlog)."""
LEAST_OF_PEER = 64
TELL_S = 600.0
HANDSHAKE_S = 10.0
"""Time for a TLS handshake."""


class ConnectionLimits:
    """Connections that are there. On the event loop."""

    def __init__(self, open_files: int) -> None:
        self.in_all = min(MAX_CONNECTIONS, open_files - min(KEPT, open_files // 2))
        self.of_peer = min(self.in_all, max(LEAST_OF_PEER, self.in_all // 8))
        self._peers: Counter[str] = Counter()
        self._unproved: dict[str, dict[Callable[[], None], None]] = {}
        """By peer what ends its connections that have proved nothing, the oldest first."""
        self._count = 0
        self._told: float | None = None

    def admit(self, peer: str, end: Callable[[], None]) -> bool:
        """Count one more, unless these are too many that have proved who they are. `peer`: an address, or the uid of a
        local caller; `end` ends the connection and releases it, at once."""
        if self._count >= self.in_all or self._peers[peer] >= self.of_peer:
            self._tell(peer)
            if oldest := next(iter(self._unproved.get(peer, ())), None):
                oldest()
        if self._count >= self.in_all or self._peers[peer] >= self.of_peer:
            return False
        self._count += 1
        self._peers[peer] += 1
        self._unproved.setdefault(peer, {})[end] = None
        return True

    def prove(self, peer: str, end: Callable[[], None]) -> None:
        """A request on it was one of a user or a job that proved who it is: it is ended for no other one."""
        self._unproved.get(peer, {}).pop(end, None)

    def release(self, peer: str, end: Callable[[], None]) -> None:
        self.prove(peer, end)
        self._count -= 1
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]
            self._unproved.pop(peer, None)

    def _tell(self, peer: str) -> None:
        now = time.monotonic()
        if self._told is None or now - self._told >= TELL_S:
            self._told = now
            log.warning(
                "connections of %s are refused or ended: it has %d of at most %d, all peers have %d of at most %d",
                *(peer, self._peers[peer], self.of_peer, self._count, self.in_all),
            )


class TlsHandshake(asyncio.Protocol):
    """A connection until it speaks TLS; then it is the inner protocol's. On a Unix socket it is that at once.

    asyncio's SSLProtocol, which it does not document, is what loop.start_tls() makes too; but that begins later than
    uvloop begins to read.
    """

    def __init__(self, limits: ConnectionLimits, tls: ssl.SSLContext, inner: Callable[[], asyncio.Protocol]) -> None:
        self._limits, self._tls, self._inner = limits, tls, inner

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            _hand_over(transport, self._inner())
            return
        peer = str((transport.get_extra_info("peername") or ("",))[0])
        secured = _Secured(self._limits, peer, transport.abort, self._inner)
        if not self._limits.admit(peer, secured.end):
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        done.add_done_callback(secured.ended)
        options: Any = {"server_side": True, "ssl_handshake_timeout": HANDSHAKE_S}
        securing: Any = sslproto.SSLProtocol(loop, secured, self._tls, done, **options)
        transport.set_protocol(securing)
        securing.connection_made(transport)


class _Secured(asyncio.Protocol):
    """What a connection becomes after its handshake: the inner protocol's, which counts it from there on."""

    def __init__(
        self, limits: ConnectionLimits, peer: str, abort: Callable[[], None], inner: Callable[[], asyncio.Protocol]
    ) -> None:
        self._limits, self._peer, self._abort, self._inner = limits, peer, abort, inner
        self._counts = True

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one
        self._count_no_more()
        _hand_over(transport, self._inner())

    def ended(self, handshake: asyncio.Future[None]) -> None:
        """The handshake is over. That it failed is the caller's concern."""
        if not handshake.cancelled():
            handshake.exception()
        self._count_no_more()

    def end(self) -> None:
        self._count_no_more()
        self._abort()

    def _count_no_more(self) -> None:
        if self._counts:
            self._counts = False
            self._limits.release(self._peer, self.end)


def _hand_over(transport: asyncio.Transport, inner: asyncio.Protocol) -> None:
    transport.set_protocol(inner)
    inner.connection_made(transport)
