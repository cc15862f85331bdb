"""Slurm's hooks wake the daemon: any UDP datagram to the address and port of its API lets the next round come sooner.

Promise: what a datagram holds is not looked at and nothing is answered, so TLS, credentials and the caller's host do
not matter; a flood costs a wake-up every PAUSE_S, and rounds come no closer than `min_round_gap_s`.
Limit: one that is lost is not missed: the next round comes by itself. A standby's are kept for when it takes over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Iterator

log = logging.getLogger(__name__)
PAUSE_S = 0.05
MOST = 1024
"""Datagrams that are taken at once: more than a socket's default buffer holds."""


@contextlib.contextmanager
def beside(listener: socket.socket) -> Iterator[socket.socket | None]:
    """The datagram socket of a bound TCP socket. None, and a word in the log, where another program has it."""
    with socket.socket(listener.family, socket.SOCK_DGRAM) as hooks:
        where = listener.getsockname()
        try:
            hooks.bind(where)
        except OSError as error:
            log.warning("hooks cannot wake selasticd: UDP port %d cannot be used (%s)", where[1], error.strerror)
            yield None
        else:
            hooks.setblocking(False)
            yield hooks


def hear(hooks: socket.socket, wake: Callable[[], object]) -> None:
    """Call `wake` whenever something has come, on the running event loop, until that ends."""
    loop = asyncio.get_running_loop()

    def heard() -> None:
        loop.remove_reader(hooks)
        with contextlib.suppress(OSError):
            for _ in range(MOST):
                hooks.recv(1)
        # Only now, so that whatever comes after this stays in the socket and is heard after the pause.
        wake()
        loop.call_later(PAUSE_S, listen)

    def listen() -> None:
        if hooks.fileno() >= 0:
            loop.add_reader(hooks, heard)

    listen()
