"""The supervisor's control server: JSON lines over TCP from agents and workers.

Only a peer that shows the job's secret in its first message is listened to, and nothing that a peer sends raises here.
Messages of one connection arrive in order;
between connections there is no order.
"""

from __future__ import annotations

import contextlib
import hmac
import socket
from collections.abc import Callable

from slurm_elastic.protocol.json_lines import Message

from .connection import Connection
from .event_loop import Loop

HELLO_S = 10.0


def _listen(address: str) -> socket.socket:
    """On a free port of this address; "" is all of this host's, of both families."""
    if not address:
        with contextlib.suppress(OSError, ValueError):  # no IPv6 here
            return socket.create_server(("", 0), backlog=1024, family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((address, 0), backlog=1024)


class ControlServer:
    """Listens, authenticates, and hands on messages as (kind, name, message)."""

    def __init__(
        self,
        loop: Loop,
        secret: str,
        address: str,
        hello: Callable[[str, str, Message], None],
        received: Callable[[str, str, Message], None],
        lost: Callable[[str, str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._loop, self._secret = loop, secret
        self._hello, self._received, self._lost, self._tell = hello, received, lost, tell
        self._sock = _listen(address)
        self._sock.setblocking(False)
        self.port: int = self._sock.getsockname()[1]
        self._peers: dict[tuple[str, str], Connection] = {}
        loop.watch(self._sock, self._accept)

    def send(self, kind: str, name: str, message: Message) -> bool:
        """False when there is no such peer now."""
        connection = self._peers.get((kind, name))
        if connection is not None:
            connection.send(message)
        return connection is not None

    def drain(self, kind: str, name: str) -> bool:
        """Take what this peer has already sent; True when it has no connection then."""
        connection = self._peers.get((kind, name))
        if connection is not None:
            connection.read()
        return (kind, name) not in self._peers

    def close(self) -> None:
        self._loop.watch(self._sock, None)
        self._sock.close()
        for connection in list(self._peers.values()):
            connection.close()

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while True:
                sock, _ = self._sock.accept()
                connection = Connection(self._loop, sock, self._message, self._gone, self._tell, trusted=False)
                self._loop.after(HELLO_S, lambda new=connection: None if new.trusted else new.close())  # type: ignore[misc]

    def _message(self, connection: Connection, message: Message) -> None:
        if connection.trusted:
            self._received(connection.kind, connection.name, message)
            return
        kind = message.get("kind")
        name = message.get(kind) if kind in ("agent", "worker") else None
        shown = message.get("secret")
        right = isinstance(shown, str) and hmac.compare_digest(shown.encode(errors="replace"), self._secret.encode())
        if message.get("type") != "hello" or not right or not isinstance(name, str) or not isinstance(kind, str):
            connection.close()
            return
        if (old := self._peers.pop((kind, name), None)) is not None:
            old.close()
        connection.trusted, connection.kind, connection.name = True, kind, name
        self._peers[kind, name] = connection
        self._hello(kind, name, message)

    def _gone(self, connection: Connection) -> None:
        if connection.trusted and self._peers.get((connection.kind, connection.name)) is connection:
            del self._peers[connection.kind, connection.name]
            self._lost(connection.kind, connection.name)
