"""The supervisor's control server: newline-delimited JSON objects over TCP from agents and workers.

Only who shows the job's secret in its first message is listened to; anything malformed closes that connection and
nothing else. Messages of one connection arrive in order; between connections there is no order.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import socket
from collections.abc import Callable
from typing import Any

from .event_loop import Loop

Message = dict[str, Any]
MAX_LINE = 1 << 20
MAX_BACKLOG = 16 << 20
HELLO_S = 10.0


def keep_alive(sock: socket.socket) -> None:
    """Notice a vanished peer within about 30 s, and do not hold back small messages."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))
    for name, value in options:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connection:
    """One peer. `received` gets each message, `closed` is called once."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        received: Callable[[Connection, Message], None],
        closed: Callable[[Connection], None],
    ) -> None:
        self._loop, self._sock = loop, sock
        self._received, self._closed = received, closed
        self._in = bytearray()
        self._out = bytearray()
        self.open = True
        self.trusted = False
        self.kind = ""
        self.name = ""
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            keep_alive(sock)
        loop.watch(sock, self.read)

    def send(self, message: Message) -> None:
        """Queue a message; a peer that does not read 16 MB of them is cut off."""
        if not self.open:
            return
        self._out += json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._write()

    def backlog(self) -> int:
        """Bytes not yet taken by the peer."""
        return len(self._out)

    def read(self) -> None:
        """Take everything that has arrived."""
        while self.open:
            try:
                data = self._sock.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.close()
                return
            self._in += data
            self._lines()

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.watch(self._sock, None)
            self._sock.close()
            self._closed(self)

    def forget(self) -> None:
        """After a fork, in the child: drop the descriptor without a word to the peer."""
        self.open = False
        self._sock.close()

    def _lines(self) -> None:
        while self.open:
            line, newline, rest = bytes(self._in).partition(b"\n")
            if not newline:
                break
            self._in = bytearray(rest)
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self.close()
                return
            self._received(self, message)
        if len(self._in) > MAX_LINE:
            self.close()

    def _write(self) -> None:
        try:
            while self._out:
                del self._out[: self._sock.send(self._out)]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if len(self._out) > MAX_BACKLOG:
            self.close()
            return
        self._loop.watch(self._sock, self.read, self._write if self._out else None)


class Server:
    """Listens, authenticates, and hands on messages as (kind, name, message)."""

    def __init__(
        self,
        loop: Loop,
        secret: str,
        address: str,
        hello: Callable[[str, str, Message], None],
        received: Callable[[str, str, Message], None],
        lost: Callable[[str, str], None],
    ) -> None:
        self._loop, self._secret = loop, secret
        self._hello, self._received, self._lost = hello, received, lost
        self._sock = socket.create_server((address, 0), backlog=1024)
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

    def connected(self, kind: str, name: str) -> bool:
        return (kind, name) in self._peers

    def drain(self, kind: str, name: str) -> bool:
        """Take what this peer has already sent; True when its connection is closed then."""
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
                connection = Connection(self._loop, sock, self._message, self._gone)
                self._loop.after(HELLO_S, lambda new=connection: None if new.trusted else new.close())  # type: ignore[misc]

    def _message(self, connection: Connection, message: Message) -> None:
        if connection.trusted:
            self._received(connection.kind, connection.name, message)
            return
        kind = message.get("kind")
        name = message.get(kind) if kind in ("agent", "worker") else None
        shown = message.get("secret")
        right = isinstance(shown, str) and hmac.compare_digest(shown.encode(), self._secret.encode())
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
