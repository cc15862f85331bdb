"""Tells systemd (sd_notify) that the daemon is ready, its status, and that it is alive (the watchdog); and logs to
journald, with priorities and fields, when systemd has started it, else to standard error.

Promise: the API's event loop sends the watchdog message, and only while rounds end in time, so that systemd notices a
hang of either. Outside systemd nothing is sent. Limit: failing rounds count as alive, because a restart does not bring
back slurmctld; the metrics and /v1/health show them.

Logging never waits and never raises; a line that journald does not take is lost; a warning that comes again and again
is one line in ten minutes. Fields are given as `extra`: `log.info("job %d: ended", number, extra={"JOB": number})`; one
that is 0 or empty is left out.
"""

import contextlib
import logging
import os
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROUND_LIMIT_S = 120.0
"""A round that takes longer hangs: every Slurm command and every wait for the database in it has a shorter bound."""


class Notifier:
    """The service manager's socket, where there is one. `send` never raises and never waits."""

    def __init__(
        self, environment: Mapping[str, str] = os.environ, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._clock = clock
        address = environment.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) if address else None
        if self._socket is not None:
            self._socket.setblocking(False)
        self.every_s = watchdog_s(environment) / 3
        """Seconds between two watchdog messages; 0: none are wanted."""
        self._next = 0.0
        self._ready = False

    def send(self, **words: object) -> None:
        """Send these assignments, such as STATUS="..."."""
        if self._socket is not None:
            text = "\n".join(f"{key}={value}" for key, value in words.items())
            # A service manager that does not answer must not stop the daemon.
            with contextlib.suppress(OSError):
                self._socket.sendto(text.encode(), self._address)

    def ready(self, status: str) -> None:
        """The daemon serves or stands by. Later calls only change the status."""
        if self._ready:
            self.send(STATUS=status)
        else:
            self._ready = True
            self.send(READY=1, STATUS=status)

    def alive(self, status: Callable[[], str]) -> None:
        """Send the watchdog message if it is due. Call it often, from where the work is done."""
        now = self._clock()
        if self.every_s and now >= self._next:
            self._next = now + self.every_s
            self.send(WATCHDOG=1, STATUS=status())

    def standing_by(self, holder: str) -> None:
        """Ready too, to take over from `holder`. Call it at every try to take the lease."""
        status = f"standing by: selasticd at {holder} holds the lease"
        if not self._ready:
            self.ready(status)
        self.alive(lambda: status)

    def stopping(self) -> None:
        self.send(STOPPING=1)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def watchdog_s(environment: Mapping[str, str]) -> float:
    """systemd's watchdog timeout in seconds; 0: none, or it is for another process."""
    wanted, pid = environment.get("WATCHDOG_USEC", ""), environment.get("WATCHDOG_PID", "")
    if not wanted.isdigit() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(wanted) / 1e6


def stalled(since_s: float, interval_s: float) -> bool:
    """Whether rounds hang: the last one ended, or the first was due, `since_s` seconds ago."""
    return since_s > interval_s + ROUND_LIMIT_S


JOURNAL = "/run/systemd/journal/socket"
FIELDS = ("JOB", "RESIZE", "USER")
"""What a line may be about: `journalctl -u selasticd JOB=1220`."""
PRIORITIES = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))
"""From each level on: syslog's priority."""
REPEAT_S = 600.0
"""A warning that is said again sooner than this is counted instead."""
REMEMBERED = 1000
"""Different warnings; more of them are said again."""
LONGEST = 48 * 1024
"""Of a message, in bytes: datagrams of a Unix socket are bounded."""


class Repeats(logging.Filter):
    """Drops a warning or error that was said less than REPEAT_S ago, and says how often when it is said again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._said: dict[tuple[str, str], list[float]] = {}
        """(logger, text) -> when it was said, how often it was dropped since."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        text = record.getMessage()
        cause = repr(record.exc_info[1]) if record.exc_info else ""
        now, key = self._clock(), (record.name, text + cause)
        at, dropped = self._said.get(key, (now - REPEAT_S, 0))
        if now - at < REPEAT_S:
            self._said[key][1] += 1
            return False
        if len(self._said) >= REMEMBERED:
            self._said.clear()
        self._said[key] = [now, 0]
        if dropped:
            record.msg, record.args = f"{text} ({dropped:.0f} more times in the last {now - at:.0f} s)", None
        return True


class JournalHandler(logging.Handler):
    """Speaks journald's own protocol: see systemd's page "Native Journal Protocol"."""

    def __init__(self, address: str = JOURNAL) -> None:
        super().__init__()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        self._address = address

    def emit(self, record: logging.LogRecord) -> None:
        try:
            values = {"MESSAGE": self.format(record), "PRIORITY": priority(record.levelno)}
            values |= {"SYSLOG_IDENTIFIER": "selasticd", "LOGGER": record.name}
            values |= {name: getattr(record, name) for name in FIELDS if getattr(record, name, None)}
            self._socket.sendto(b"".join(_entry(name, str(value)) for name, value in values.items()), self._address)
        except Exception:  # a full or missing socket, a message that does not fit its arguments
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """The line is lost, and nothing else."""

    def close(self) -> None:
        self._socket.close()
        super().close()


def handler(environment: Mapping[str, str] = os.environ, address: str = JOURNAL) -> logging.Handler:
    """The handler for this process: journald's where standard error goes there anyway."""
    found: logging.Handler
    if goes_to_journal(environment.get("JOURNAL_STREAM", "")) and Path(address).exists():
        found = JournalHandler(address)
    else:
        found = logging.StreamHandler(sys.stderr)
        found.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    found.addFilter(Repeats())
    return found


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
