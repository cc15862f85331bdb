"""One end of a control connection in an event loop: JSON lines over TCP, to an agent or a worker.

Nothing that comes from a peer raises here. What is malformed closes the connection to a peer that has not proved
itself; of one that has, it is left out, counted and told. Messages arrive in order. Nothing blocks.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from slurm_elastic.protocol import json_lines
from slurm_elastic.protocol.json_lines import Message

from .event_loop import Loop

MAX_BACKLOG = 16 << 20
MAX_UNPROVEN = 16 << 10
"""Bytes that are read of a peer before it has proved itself."""


def keep_alive(sock: socket.socket) -> None:
    """Notice a vanished peer within about 30 s, and do not hold back small messages."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    options = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000))
    for name, value in options:
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


class Connection:
    """One peer. `received` gets each message, and raises Malformed for one that it can't use; `closed` is called once;
    `tell` gets a sentence for people. Whom we have called ourselves is trusted."""

    def __init__(
        self,
        loop: Loop,
        sock: socket.socket,
        received: Callable[[Connection, Message], None],
        closed: Callable[[Connection], None],
        tell: Callable[[str], None],
        trusted: bool = True,
    ) -> None:
        self._loop, self._sock = loop, sock
        self._received, self._closed, self._tell = received, closed, tell
        self._reader = json_lines.MessageReader()
        self._out = bytearray()
        self.open = True
        self.trusted = trusted
        self.dropped = 0
        """Malformed messages that were left out."""
        self._bytes = 0
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
            self._bytes += len(data)
            self._reader.feed(data)
            self._hand_on()
            if not self.trusted and self._bytes > MAX_UNPROVEN:
                self.close()

    def close(self) -> None:
        if self.open:
            self.open = False
            self._loop.watch(self._sock, None)
            self._sock.close()
            if self.dropped > 1:
                self._tell(f"{self.dropped} messages of {self.peer()} were malformed and left out")
            self._closed(self)

    def peer(self) -> str:
        """Who is at the other end."""
        return f"{self.kind} {self.name}" if self.kind else "the supervisor"

    def forget(self) -> None:
        """After a fork, in the child: drop the descriptor without sending anything to the peer."""
        self.open = False
        self._sock.close()

    def _hand_on(self) -> None:
        while self.open:
            try:
                for message in self._reader.messages():
                    self._received(self, message)
                    if not self.open:
                        return
                return
            except json_lines.Malformed as error:
                self._malformed(error)

    def _malformed(self, error: json_lines.Malformed) -> None:
        if not self.trusted:
            self.close()
            return
        self.dropped += 1
        if self.dropped == 1:
            self._tell(f"a message of {self.peer()} was malformed and left out: {error}")

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
