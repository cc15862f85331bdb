"""What a daemon claims on its host, and how it is found there: its lock, its port, its URL, client.json.

Promise: what another daemon holds already is said at once, as a ConfigError; client.json is written whole or not at
all.
Limit: the lock holds on one host, or on a file system that locks for all; across hosts the database's lease decides.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import socket
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from slurm_elastic.protocol.errors import ConfigError

from ..config.settings import Settings
from ..config.user_mode import facing

log = logging.getLogger(__name__)
UNREAD_MS = 120_000
"""How long a caller may leave an answer unread, in milliseconds, before the connection ends."""


@contextlib.contextmanager
def alone(settings: Settings) -> Iterator[Path]:
    """Hold the state directory's lock, a file whose path is given; ConfigError when another daemon does."""
    path = Path(settings.state_dir) / "selasticd.lock"
    try:
        handle = path.open("a")
    except OSError as error:
        raise ConfigError(f"state_dir={settings.state_dir} cannot be written ({error.strerror})") from None
    with handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"another selasticd runs on state_dir={settings.state_dir}; stop it first") from None
        except OSError as error:
            log.warning("no lock on state_dir=%s (%s): see to it that one daemon uses it", path.parent, error.strerror)
        yield path


@contextlib.contextmanager
def listening(settings: Settings, nodes: Callable[[], Iterable[str]] = tuple) -> Iterator[socket.socket]:
    """The API's socket, bound before anything else, so that a port in use is said at once. A standby does not listen:
    who calls it is refused, and not kept waiting. `nodes`: names or addresses of Slurm's nodes, for `listen = "auto"`.
    """
    host, port = settings.address
    if host is None:
        host = facing(nodes())
    with contextlib.ExitStack() as held:
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, _, _, where = found[0]
            listener = held.enter_context(socket.socket(family, kind))
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Connections inherit it. Else one whose host died, or that reads no answer, keeps its descriptor for good.
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNREAD_MS)
            listener.bind(where)
        except OSError as error:
            raise ConfigError(f"listen={settings.listen} cannot be used ({error.strerror or error})") from None
        yield listener


def address(settings: Settings, listener: socket.socket) -> str:
    """The URL that clients are told."""
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
