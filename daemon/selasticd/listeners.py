"""The sockets that the daemon listens on (TCP, Unix, UDP for Slurm's hooks), its URL, and client.json that has it.

Promise: an address in use is an error before anything else is opened; client.json is written whole or not at all.
A datagram only wakes the daemon: its content is not read and nothing is answered, so it needs no TLS and no credential,
and a flood costs one wake-up every PAUSE_S. Limit: a lost datagram is not noticed: the next round comes by itself.
"""

import asyncio
import contextlib
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from slurm_elastic.protocol.errors import ConfigError, ElasticError

from ..config.user_mode import own_address_towards
from .settings import Settings

log = logging.getLogger(__name__)
UNREAD_MS = 120_000
"""How long a caller may leave an answer unread, in milliseconds, before the connection ends."""
PAUSE_S = 0.05
"""Shortest time between two wake-ups by hooks."""
MAX_DATAGRAMS = 1024
"""Datagrams that are read at once: more than a socket's default buffer holds."""
ALL_UIDS = (1 << 32) - 1


class AddressUnusable(ElasticError):
    """An address to listen on that this host does not have, or another program has: it may be there soon."""


@contextlib.contextmanager
def tcp_listener(settings: Settings, nodes: Callable[[], Iterable[str]] = tuple) -> Iterator[socket.socket]:
    """The API's socket, bound before anything else, so that a port in use is reported at once. A standby does not
    listen, so that its callers are refused at once. `nodes`: names or addresses of nodes, for `listen = "auto"`.
    """
    host, port = settings.address
    if host is None:
        host = own_address_towards(nodes())
    with contextlib.ExitStack() as held:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, _, _, where = found[0]
            listener = held.enter_context(socket.socket(family, kind))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Inherited by connections. Without it one whose host died, or that reads no answer, stays open forever.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
            listener.bind(where)
        except OSError as error:
            raise AddressUnusable(f"listen={settings.listen} cannot be used ({error.strerror or error})") from None
        yield listener


@contextlib.contextmanager
def hook_listener(listener: socket.socket) -> Iterator[socket.socket | None]:
    """A UDP socket at a bound TCP socket's address. None, and a warning in the log, where another program has it."""
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


def on_datagram(hooks: socket.socket, wake: Callable[[], object]) -> None:
    """Call `wake` whenever something has come, on the running event loop, until that ends."""
    loop = asyncio.get_running_loop()

    def read() -> None:
        loop.remove_reader(hooks)
        with contextlib.suppress(OSError):
            for _ in range(MAX_DATAGRAMS):
                hooks.recv(1)
        # Only now, so that what comes after this stays in the socket and is read after the pause.
        wake()
        loop.call_later(PAUSE_S, listen)

    def listen() -> None:
        if hooks.fileno() >= 0:
            loop.add_reader(hooks, read)

    listen()


def shows_all_uids(uid_map: str) -> bool:
    """Whether a process with this /proc/self/uid_map sees the real uid of every caller, and not nobody's."""
    maps = [[int(word) for word in line.split()] for line in uid_map.splitlines()]
    return all(inside == outside for inside, outside, _ in maps) and sum(count for *_, count in maps) >= ALL_UIDS


@contextlib.contextmanager
def unix_listener(path: str) -> Iterator[socket.socket | None]:
    """The socket at this path, open to every user; None without a path. The caller holds the daemon's lock, so a
    socket that is there already is a leftover. Raises AddressUnusable, and ConfigError where callers' uids cannot be
    known."""
    if not path:
        yield None
        return
    if not shows_all_uids(Path("/proc/self/uid_map").read_text()):
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
            raise AddressUnusable(f"listen_socket={path} cannot be used ({error.strerror or error})") from None
        try:
            yield listener
        finally:
            place.unlink(missing_ok=True)


def public_url(settings: Settings, listener: socket.socket) -> str:
    if settings.url:
        return settings.url
    scheme = "https" if settings.tls_cert else "http"
    bound, port = listener.getsockname()[:2]
    host = settings.address[0] or bound
    if host in ("", "0.0.0.0", "::"):
        host = socket.getfqdn()
    return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


def write_client_file(settings: Settings, values: dict[str, Any]) -> Path:
    """Write client.json, whole or not at all; only its owner may read one that holds a secret."""
    path = Path(settings.state_dir) / "client.json"
    fresh = path.with_suffix(f".{os.getpid()}")
    mode = 0o600 if "secret" in values else 0o644
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with open(descriptor, "w") as file:
        json.dump(values, file)
        file.write("\n")
    fresh.chmod(mode)
    fresh.replace(path)
    return path
