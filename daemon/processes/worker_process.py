"""One process beside the daemon that answers calls: started when it is needed, ended when it does not answer in time.

Promise: a call ends within its time limit, whatever the process does; threads take turns.
Limit: whether a call that got no answer had an effect is not known. A process is trusted: what it sends is unpickled.
"""

from __future__ import annotations

import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

EXIT_S = 2.0
"""How long a process that has closed its connection may take to end."""


class Unanswered(Exception):
    """The process ended instead of answering, or did not answer in time; str(error) says which."""


class Busy(Exception):
    """Other threads kept the process busy for all of the time."""


class WorkerProcess:
    """`command` and the number of its connection start it, in this environment."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command, self._environment = tuple(command), dict(environment)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def call(self, *request: Any, within_s: float) -> Any:
        """Its reply. Raises Unanswered without one within that time, Busy when others kept it busy."""
        by = time.monotonic() + within_s
        if not self._lock.acquire(timeout=max(0.0, within_s)):
            raise Busy
        try:
            connection = self._connection or self._spawn()
            return _exchange(connection, request, by)
        except (TimeoutError, BlockingIOError):
            self._end()
            raise Unanswered(f"nothing within {within_s:.3g} s") from None
        except (EOFError, OSError):
            how = self._how_it_ended()
            self._end()
            raise Unanswered(f"its process ended{how}") from None
        finally:
            self._lock.release()

    def start(self) -> None:
        """Start it, if it does not run, and do not wait for it."""
        with self._lock:
            if self._process is None:
                self._spawn()

    def close(self) -> None:
        """End the process; a later call starts another."""
        with self._lock:
            self._end()

    def _spawn(self) -> Connection:
        ours, its = socket.socketpair()
        self._connection = connection = Connection(ours.detach())
        with its:
            fd = its.fileno()
            self._process = subprocess.Popen(
                [*self._command, str(fd)], stdin=subprocess.DEVNULL, pass_fds=[fd], env=self._environment, cwd="/"
            )
        return connection

    def _how_it_ended(self) -> str:
        if self._process is None:
            return ""
        try:
            status = self._process.wait(EXIT_S)
        except subprocess.TimeoutExpired:
            return ""
        if status >= 0:
            return f" with status {status}"
        known = status in {-number for number in signal.Signals}
        return f" by signal {-status}" + (f" ({signal.Signals(-status).name})" if known else "")

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._connection = self._process = None


def _exchange(connection: Connection, request: tuple[Any, ...], by: float) -> Any:
    """The reply; TimeoutError, or BlockingIOError of a process that does not even read, where it comes too late."""
    _bound(connection, socket.SO_SNDTIMEO, by)
    connection.send(request)
    if not connection.poll(max(0.0, by - time.monotonic())):
        raise TimeoutError
    _bound(connection, socket.SO_RCVTIMEO, by)
    return connection.recv()


def _bound(connection: Connection, what: int, by: float) -> None:
    """Let no single read or write last longer than that: a long message takes several."""
    left = max(0.001, by - time.monotonic())
    with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.setsockopt(socket.SOL_SOCKET, what, struct.pack("ll", int(left), int(left % 1 * 1e6)))
