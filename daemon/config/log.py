"""Where the daemon's log goes: to journald with priorities and fields when systemd started it, else to standard error.

Promise: logging never waits and never raises; a line that journald does not take is lost. Fields are given as `extra`:
`log.info("job %d: ended", number, extra={"JOB": number})`. Limit: standard error shows no fields.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

JOURNAL = "/run/systemd/journal/socket"
FIELDS = ("JOB", "RESIZE", "USER")
"""What a line may be about: `journalctl -u selasticd JOB=1220`."""
PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))
"""From each level on: syslog's priority."""
LONGEST = 48 * 1024
"""Of a message, in bytes: datagrams of a Unix socket are bounded."""


class JournalHandler(logging.Handler):
    """Speaks journald's own protocol: see systemd's page "Native Journal Protocol"."""

    def __init__(self, address: str = JOURNAL) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._address = address

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record."""
        try:
            values = {"MESSAGE": self.format(record), "PRIORITY": priority(record.levelno)}
            values |= {"SYSLOG_IDENTIFIER": "selasticd", "LOGGER": record.name}
            values |= {name: getattr(record, name) for name in FIELDS if hasattr(record, name)}
            self._socket.sendto(b"".join(_entry(name, str(value)) for name, value in values.items()), self._address)
        except Exception:  # a full or missing socket, a message that does not fit its arguments
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """The line is lost, and nothing else."""

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        super().close()


def handler(environment: Mapping[str, str] = os.environ, address: str = JOURNAL) -> logging.Handler:
    """The handler for this process: journald's where standard error goes there anyway."""
    if goes_to_journal(environment.get("JOURNAL_STREAM", "")) and Path(address).exists():
        return JournalHandler(address)
    plain = logging.StreamHandler(sys.stderr)
    plain.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    return plain


def goes_to_journal(stream: str) -> bool:
    """Whether standard error is the stream (device:inode) that systemd named, and not redirected since."""
    try:
        found = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return stream == f"{found.st_dev}:{found.st_ino}"


def priority(level: int) -> int:
    """syslog's priority of a level of `logging`."""
    return next((number for least, number in PRIORITIES if level >= least), 7)


def _entry(name: str, value: str) -> bytes:
    data = value.encode(errors="backslashreplace")[:LONGEST]
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return f"{name}=".encode() + data + b"\n"
