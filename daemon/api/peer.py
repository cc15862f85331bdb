"""The daemon's Unix socket: callers of this host, known by the kernel's word.

Promise: a uid comes from SO_PEERCRED of the connection and from nothing that the caller sends. Limit: Linux.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from slurm_elastic.protocol.client import peer_uid
from slurm_elastic.protocol.errors import ConfigError

PREFIX = "uid:"
ALL_UIDS = (1 << 32) - 1


class PeerProtocol(HttpToolsProtocol):
    """HTTP, with "uid:NUMBER" as the client of a connection over a Unix socket."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """A new connection."""
        super().connection_made(transport)
        connection = transport.get_extra_info("socket")
        if connection is not None and connection.family == socket.AF_UNIX:
            self.client = (f"{PREFIX}{peer_uid(connection)}", 0)


def tells_uids(uid_map: str) -> bool:
    """Whether a process with this /proc/self/uid_map learns every uid as it is: others look like nobody's to it."""
    maps = [[int(word) for word in line.split()] for line in uid_map.splitlines()]
    return all(inside == outside for inside, outside, _ in maps) and sum(count for *_, count in maps) >= ALL_UIDS


@contextlib.contextmanager
def bound(path: str) -> Iterator[socket.socket | None]:
    """The socket at this path, open to every user; None without a path. The caller holds the daemon's lock, so what is
    there already is left from before. Raises ConfigError, also where the kernel would not tell callers apart."""
    if not path:
        yield None
        return
    if not tells_uids(Path("/proc/self/uid_map").read_text()):
        raise ConfigError(
            f"listen_socket={path} cannot be used: this process is in a user namespace in which callers' uids are not "
            "known; accepted: none (in a systemd unit: no PrivateUsers=)"
        )
    place = Path(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            if place.is_socket():
                place.unlink()
            listener.bind(path)
            place.chmod(0o666)
        except OSError as error:
            raise ConfigError(f"listen_socket={path} cannot be used ({error.strerror or error})") from None
        try:
            yield listener
        finally:
            place.unlink(missing_ok=True)
