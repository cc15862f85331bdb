"""Tells systemd (sd_notify) that the daemon is ready, its status, and that it is alive (the watchdog).

Promise: the API's event loop sends the watchdog message, and only while rounds end in time, so that systemd notices a
hang of either. Outside systemd nothing is sent. Limit: failing rounds count as alive, because a restart does not bring
back slurmctld; the metrics and /v1/health show them.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable, Mapping

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
        """A clean stop has begun."""
        self.send(STOPPING=1)

    def close(self) -> None:
        """Close the socket."""
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
