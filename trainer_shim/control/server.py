"""The supervisor's control server, and that of a world's store: JSON lines over TCP from agents and workers.

Only a peer that proves, in its first message, to have the job's key is listened to, and nothing that a peer sends
raises here. Messages of one connection arrive in order; between connections there is no order.
"""

import contextlib
import socket
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from slurm_elastic.protocol import own_files
from slurm_elastic.protocol.json_lines import Message

from . import handshake, interfaces
from .connection import Connection
from .event_loop import Loop

HELLO_S = 10.0
"""How long a peer may take to prove itself."""
MAX_UNPROVEN = 512
MAX_UNPROVEN_OF_PEER = 128
ACCEPTED_AT_ONCE = 64
PAUSE_S = 0.5
"""How long nobody is let in where no descriptor was free."""
SWEEP_S = 1.0


def _listen(address: str) -> socket.socket:
    """On a free port of this address; "" is all of this host's, of both families."""
    if not address:
        with contextlib.suppress(OSError, ValueError):  # no IPv6 here
            return socket.create_server(("", 0), backlog=1024, family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server((address, 0), backlog=1024, family=interfaces.family(address))


def one_too_many(addresses: Sequence[str], of_address: int, in_all: int) -> int | None:
    """Which of these connections, oldest first, is to end: the oldest from where most come. None: they are not too
    many."""
    if not addresses:
        return None
    [(address, count)] = Counter(addresses).most_common(1)
    return addresses.index(address) if count > of_address or len(addresses) > in_all else None


@dataclass(frozen=True, slots=True)
class _Unproven:
    """What is known of a peer that has not proved itself."""

    address: str
    challenge: Message
    since: float = field(default_factory=time.monotonic)


class ControlServer:
    """Listens, authenticates, and hands on messages as (kind, name, message)."""

    def __init__(
        self,
        loop: Loop,
        key: str,
        address: str,
        hello: Callable[[str, str, Message], None],
        received: Callable[[str, str, Message], None],
        lost: Callable[[str, str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._loop, self._key = loop, key
        self._hello, self._received, self._lost, self._tell = hello, received, lost, tell
        self._sock = _listen(address)
        self._sock.setblocking(False)
        self.port: int = self._sock.getsockname()[1]
        self._peers: dict[tuple[str, str], Connection] = {}
        self._unproven: dict[Connection, _Unproven] = {}
        """Oldest first."""
        self._max_unproven = min(MAX_UNPROVEN, own_files.limit() // 4)
        self._told = self._told_stranger = self._sweeps = False
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
        self.close_door()
        for connection in list(self._peers.values()):
            connection.close()

    def close_door(self) -> None:
        """Nobody else is let in; those that have proved themselves stay."""
        if self._sock.fileno() < 0:
            return
        self._loop.watch(self._sock, None)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # a forked child may hold it too
        self._sock.close()
        for connection in list(self._unproven):
            connection.close()

    def _accept(self) -> None:
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, address = self._sock.accept()
            except (BlockingIOError, ConnectionError):
                return
            except OSError as error:
                self._pause(error)
                return
            if not self._sweeps:
                self._sweeps = True
                self._loop.after(SWEEP_S, self._sweep)
            connection = Connection(self._loop, sock, self._message, self._gone, self._tell, trusted=False)
            peer = str(address[0]).removeprefix("::ffff:")  # IPv4 at a socket that hears both
            self._unproven[connection] = unproven = _Unproven(peer, handshake.challenge())
            connection.send(unproven.challenge)
            self._make_room(MAX_UNPROVEN_OF_PEER, self._max_unproven)

    def _make_room(self, of_address: int, in_all: int) -> None:
        connections = list(self._unproven)
        surplus = one_too_many([peer.address for peer in self._unproven.values()], of_address, in_all)
        if surplus is not None:
            connections[surplus].read()  # its proof may have come
            if not connections[surplus].trusted:
                connections[surplus].close()

    def _pause(self, error: OSError) -> None:
        """No descriptor is free: the kernel holds whoever comes."""
        self._loop.watch(self._sock, None)
        self._loop.after(PAUSE_S, self._go_on)
        self._make_room(0, 0)
        if not self._told:
            self._told = True
            self._tell(f"connections have to wait: {error.strerror}; raise the limit of open files (ulimit -n)")

    def _go_on(self) -> None:
        if self._sock.fileno() >= 0:
            self._loop.watch(self._sock, self._accept)

    def _sweep(self) -> None:
        """End those that have not proved themselves in time."""
        now = time.monotonic()
        for connection, peer in list(self._unproven.items()):
            if now - peer.since >= HELLO_S:
                connection.close()
        self._sweeps = bool(self._unproven)
        if self._sweeps:
            self._loop.after(SWEEP_S, self._sweep)

    def _message(self, connection: Connection, message: Message) -> None:
        if connection.trusted:
            self._received(connection.kind, connection.name, message)
            return
        kind = message.get("kind")
        name = message.get(kind) if kind in ("agent", "worker") else None
        peer = self._unproven.get(connection)
        proven = peer is not None and handshake.proves(self._key, peer.challenge, message)
        if not proven or not isinstance(name, str) or not isinstance(kind, str):
            if peer is not None and not self._told_stranger:
                self._told_stranger = True
                self._tell(f"somebody at {peer.address} calls without this job's key, and is not listened to")
            connection.close()
            return
        connection.send(handshake.welcome(self._key, message))
        if (old := self._peers.pop((kind, name), None)) is not None:
            old.close()
        connection.trusted, connection.kind, connection.name = True, kind, name
        self._unproven.pop(connection, None)
        self._peers[kind, name] = connection
        self._hello(kind, name, message)

    def _gone(self, connection: Connection) -> None:
        self._unproven.pop(connection, None)
        if connection.trusted and self._peers.get((connection.kind, connection.name)) is connection:
            del self._peers[connection.kind, connection.name]
            self._lost(connection.kind, connection.name)
