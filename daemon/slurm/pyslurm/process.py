"""Runs worker.py in one process: started when it is needed, ended when it does not answer in time.

Promise: a call ends within its time limit, whatever libslurm does; threads take turns.
Limit: whether a call that ended in SlurmUnreachable had an effect is not known.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from slurm_elastic.protocol.errors import SlurmUnreachable

_MAIN = "import sys; from slurm_elastic.daemon.slurm.pyslurm import worker; worker.main(int(sys.argv[1]))"
WORKER = (sys.executable, "-c", _MAIN)


EXIT_S = 2.0
"""How long a process that has closed its connection may take to end."""


class NoReply(SlurmUnreachable):
    """The process ended instead of answering, or did not answer in time."""


class PySlurmProcess:
    """`command` and the number of its connection start it. `accept` is shown what each new one says about itself, and
    raises for one that must not be used; it is ended then."""

    def __init__(
        self, command: Sequence[str], slurm_conf: str, timeout_s: float, accept: Callable[[tuple[Any, ...]], None]
    ) -> None:
        self._command, self._timeout_s, self._accept = tuple(command), timeout_s, accept
        # As for commands: SLURM_CLUSTERS and the like would change what libslurm does.
        kept = ("HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "SLURM_CONF")
        self._environment = {name: os.environ[name] for name in kept if name in os.environ}
        self._environment |= {"PATH": os.defpath, "LANG": "C.UTF-8"}
        if slurm_conf:
            self._environment["SLURM_CONF"] = slurm_conf
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def call(self, *request: Any) -> Any:
        """The worker's reply. NoReply without one within timeout_s, SlurmUnreachable when others kept it busy."""
        by = time.monotonic() + self._timeout_s
        if not self._lock.acquire(timeout=self._timeout_s):
            raise SlurmUnreachable(f"pyslurm has been busy with another call for {self._timeout_s:g} s.")
        try:
            connection = self._connection or self._started(by)
            return self._exchange(connection, request, by)
        except TimeoutError as error:
            self._end()
            raise NoReply(f"pyslurm gave no answer: {error}.") from None
        except (EOFError, OSError):
            how = self._how_it_ended()
            self._end()
            raise NoReply(f"pyslurm gave no answer: its process ended{how}.") from None
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            self._end()

    def _started(self, by: float) -> Connection:
        ours, its = socket.socketpair()
        self._connection = connection = Connection(ours.detach())
        with its:
            fd = its.fileno()
            command = [*self._command, str(fd)]
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[fd], env=self._environment, cwd="/"
            )
        try:
            self._accept(self._exchange(connection, ("about",), by))
        except Exception:
            self._end()
            raise
        return connection

    def _exchange(self, connection: Connection, request: tuple[Any, ...], by: float) -> Any:
        connection.send(request)
        if not connection.poll(max(0.0, by - time.monotonic())):
            raise TimeoutError(f"nothing within {self._timeout_s:g} s")
        return connection.recv()

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
