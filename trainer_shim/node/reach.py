"""Whether the hosts of a job reach each other: each agent has a port at which nothing is said, and one that joins
connects to the others'.

A firewall between two hosts is so found before any worker waits for it, and named. Nothing here blocks, and what is
connected is closed at once. Limits: it is the joining host that connects, and a port stands for all others.
"""

from __future__ import annotations

import functools
import os
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurm_elastic.protocol.json_lines import Message, name_of, text, whole
from slurm_elastic.protocol.messages import Unreached

from ..control import interfaces
from ..control.event_loop import Loop

REACH_S = 8.0
"""How long a connection may take: three lost packets are made up for by then."""
SUPERVISOR = "node {} does not reach the supervisor at {}"
_SUPERVISOR = re.compile(SUPERVISOR.format(r"(\S+)", r"(\S+) port"))


@dataclass(frozen=True, slots=True)
class Listener:
    """Where a node's agent can be reached by those of other hosts."""

    node: str
    address: str
    port: int

    @classmethod
    def of(cls, message: Message) -> Listener:
        """As a message has it. Raises Malformed."""
        return cls(name_of(message, "node"), text(message, "address"), whole(message, "port", 1, 65535))


class Reach:
    """One agent's port, and its tries."""

    def __init__(self, loop: Loop, address: str) -> None:
        """address: this host's own, on the network that leads to the supervisor. One on which only this host finds
        itself, the supervisor's own host, needs no port: who joins has reached the supervisor."""
        self._loop = loop
        self._sock: socket.socket | None = None
        self._tries: set[socket.socket] = set()
        if not interfaces.is_loopback(address):
            self._sock = socket.create_server((address, 0), family=interfaces.family(address))
            self._sock.setblocking(False)
            loop.watch(self._sock, self._accept)

    @property
    def port(self) -> int:
        """0: there is none."""
        return int(self._sock.getsockname()[1]) if self._sock is not None else 0

    def try_all(self, others: Sequence[Listener], done: Callable[[list[tuple[Listener, str]]], None]) -> None:
        """Connect to each of them; `done` is told once which did not answer, and why."""
        waiting = set(others)
        problems: list[tuple[Listener, str]] = []

        def ended(other: Listener, problem: str) -> None:
            waiting.discard(other)
            if problem:
                problems.append((other, problem))
            if not waiting:
                done(problems)

        if not waiting:
            done([])
        for other in tuple(waiting):
            self._try(other, functools.partial(ended, other))

    def close(self) -> None:
        if self._sock is not None:
            self._loop.watch(self._sock, None)
            self._sock.close()

    def forget(self) -> None:
        """After a fork, in the child."""
        for sock in (self._sock, *self._tries):
            if sock is not None:
                sock.close()

    def _accept(self) -> None:
        assert self._sock is not None
        try:
            self._sock.accept()[0].close()
        except OSError:
            return  # who came has gone, or no descriptor is free: it has been reached all the same

    def _try(self, other: Listener, ended: Callable[[str], None]) -> None:
        try:
            sock = socket.socket(interfaces.family(other.address), socket.SOCK_STREAM)
        except OSError as error:
            self._loop.call(functools.partial(ended, str(error.strerror)))
            return
        sock.setblocking(False)
        self._tries.add(sock)

        def end(problem: str) -> None:
            if sock in self._tries:
                self._tries.discard(sock)
                self._loop.watch(sock, None)
                sock.close()
                ended(problem)

        def decided() -> None:
            number = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            end(os.strerror(number) if number else "")

        try:
            sock.connect((other.address, other.port))
        except BlockingIOError:
            self._loop.watch(sock, None, decided)
            self._loop.after(REACH_S, lambda: end(f"no answer within {REACH_S:g} s"))
        except OSError as error:
            self._loop.call(functools.partial(end, str(error.strerror)))
        else:
            self._loop.call(functools.partial(end, ""))


def supervisor_unreached(said: str, batch_host: str) -> tuple[Unreached, ...]:
    """The two hosts that an agent's last sentence is about, if it did not reach the supervisor. An address that leads
    every host to itself says nothing of them."""
    found = _SUPERVISOR.search(said)
    if found is None or interfaces.is_loopback(found[2]):
        return ()
    return (Unreached(found[1], batch_host, found[2]),)
