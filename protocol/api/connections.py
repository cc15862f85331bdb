"""Connections to selasticd: over TCP, TLS or the Unix socket of the daemon's own host. Standard library only."""

from __future__ import annotations

import http.client
import os
import socket
import struct
from typing import Any
from urllib.parse import urlsplit

from ..errors import ConfigError


def _unix(values: dict[str, Any]) -> str:
    """The Unix socket to call the daemon by: the one that the client file names, where it is on this host."""
    path = str(values.get("socket", ""))
    return path if path and os.access(path, os.W_OK) else ""


def connection_to(url: str, values: dict[str, Any], timeout: float) -> http.client.HTTPConnection:
    """A connection that is not open yet."""
    path, parts = _unix(values), urlsplit(url)
    if path:
        return UnixConnection(path, values.get("uid"), timeout)
    if parts.scheme == "http":
        return SingleSendConnection(str(parts.hostname), parts.port, timeout=timeout)
    import ssl

    try:
        context = ssl.create_default_context(cadata=values.get("ca"))
    except (ssl.SSLError, ValueError, TypeError) as error:
        raise ConfigError(f"ca of the client file cannot be read ({error}); accepted: certificates in PEM") from None
    return TlsConnection(str(parts.hostname), parts.port, timeout=timeout, context=context)


class SingleSendConnection(http.client.HTTPConnection):
    """Sends head and body of a request in one piece, when the answer is asked for: what arrives whole costs the daemon
    half of what it costs in two pieces."""

    _held = b""

    def send(self, data: Any) -> None:
        """Keep some bytes of the request."""
        self._held += data

    def getresponse(self) -> http.client.HTTPResponse:
        """Send the request, and read the answer's head."""
        held, self._held = self._held, b""
        super().send(held)
        return super().getresponse()

    def close(self) -> None:
        """Close, and forget a request that was not sent."""
        self._held = b""
        super().close()


class TlsConnection(SingleSendConnection, http.client.HTTPSConnection):
    """Over TLS."""


def peer_uid(connection: socket.socket) -> int:
    """uid of the process at the other end of a Unix socket, as it was when it connected or listened."""
    size = struct.calcsize("iII")
    _, uid, _ = struct.unpack("iII", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    return int(uid)


class UnixConnection(SingleSendConnection):
    """To a daemon that runs as `uid` (None: not known); nobody else than that user and root is spoken to."""

    def __init__(self, path: str, uid: int | None, timeout: float) -> None:
        super().__init__("selasticd", timeout=timeout)
        self._path, self._uid = path, uid

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
        if self._uid is not None:
            uid = peer_uid(self.sock)
            if uid not in (0, self._uid):
                raise ConnectionError(f"uid {uid} listens on {self._path}, not the daemon's uid {self._uid}")
