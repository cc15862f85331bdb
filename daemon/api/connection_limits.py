"""How many connections the API takes, in all and from one peer, so that rounds always find a descriptor.

Promise: with TLS, one counts from its first packet on, and its handshake is bounded. Limit: who may not have one more
is refused after it was accepted, so it has cost a descriptor for a moment.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from asyncio import sslproto
from collections import Counter
from collections.abc import Callable
from functools import partial
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
        self._count = 0
        self._told: float | None = None

    def admit(self, peer: str) -> bool:
        """Count one more, unless these are too many already. `peer`: an address, or the uid of a local caller."""
        if self._count >= self.in_all or self._peers[peer] >= self.of_peer:
            self._tell(peer)
            return False
        self._count += 1
        self._peers[peer] += 1
        return True

    def release(self, peer: str) -> None:
        """One that was admitted has ended."""
        self._count -= 1
        self._peers[peer] -= 1
        if not self._peers[peer]:
            del self._peers[peer]

    def _tell(self, peer: str) -> None:
        now = time.monotonic()
        if self._told is None or now - self._told >= TELL_S:
            self._told = now
            log.warning(
                "connections of %s are refused: it has %d of at most %d, all peers have %d of at most %d",
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
        """A new connection."""
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            _hand_over(transport, self._inner())
            return
        peer = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._limits.admit(peer):
            transport.abort()
            return
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        secured = _Secured(partial(self._limits.release, peer), self._inner)
        done.add_done_callback(secured.ended)
        options: Any = {"server_side": True, "ssl_handshake_timeout": HANDSHAKE_S}
        securing: Any = sslproto.SSLProtocol(loop, secured, self._tls, done, **options)
        transport.set_protocol(securing)
        securing.connection_made(transport)


class _Secured(asyncio.Protocol):
    """What a connection becomes after its handshake: the inner protocol's, which counts it from there on."""

    def __init__(self, release: Callable[[], None], inner: Callable[[], asyncio.Protocol]) -> None:
        self._release: Callable[[], None] | None = release
        self._inner = inner

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # it is one
        """TLS is spoken."""
        self._count_no_more()
        _hand_over(transport, self._inner())

    def ended(self, handshake: asyncio.Future[None]) -> None:
        """The handshake is over. That it failed is the caller's concern."""
        if not handshake.cancelled():
            handshake.exception()
        self._count_no_more()

    def _count_no_more(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            release()


def _hand_over(transport: asyncio.Transport, inner: asyncio.Protocol) -> None:
    transport.set_protocol(inner)
    inner.connection_made(transport)
