"""One end of a control connection in an event loop: JSON lines over TCP, to an agent or a worker.

Anything malformed closes this connection and nothing else. Messages arrive in order. Nothing blocks.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from slurm_elastic.protocol import json_lines
from slurm_elastic.protocol.json_lines import Message

from .event_loop import Loop

MAX_BACKLOG = 16 << 20


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
        self._reader = json_lines.MessageReader()
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
        self._out += json_lines.encode(message)
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
            self._reader.feed(data)
            self._hand_on()

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.watch(self._sock, None)
            self._sock.close()
            self._closed(self)

    def forget(self) -> None:
        """After a fork, in the child: drop the descriptor without sending anything to the peer."""
        self.open = False
        self._sock.close()

    def _hand_on(self) -> None:
        messages = self._reader.messages()
        try:
            while self.open and (message := next(messages, None)) is not None:
                self._received(self, message)
        except json_lines.Malformed:
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
