"""A policy in a process of its own: what it gives is checked, and how long it takes is bounded.

Promise: whatever its code does, a round waits for it no longer than `limit_s` in all; then its process is ended, so
that none piles up. After a failure it is left out of the next rounds, of more after each further failure in a row.
Limit: the process is trusted, for what it sends is unpickled; a planner's lists travel to it in each round, some 0.2 ms
a job; a utility's progress only for jobs whose choices are new.
"""

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from multiprocessing.connection import Connection
from typing import Any

from ..optimizer.errors import PolicyFailed
from ..optimizer.policies import Policy
from ..optimizer.problem import Problem, checked

LOAD_S = 60.0
"""How long its code may take to load, before the first round."""
MOST_RESTS = 63
"""Most rounds that it is left out of after a failure."""
_MAIN = "import sys; from slurm_elastic.daemon.policies import worker; worker.main(sys.argv[1], int(sys.argv[2]))"
_KEPT = ("HOME", "LD_LIBRARY_PATH", "PATH", "PYTHONPATH", "LANG")


class Remote:
    """The process, and how it has done so far. Everything but `close` raises PolicyFailed."""

    def __init__(self, target: str, limit_s: float) -> None:
        """target: module:attribute, as entry points have it."""
        environment = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._process = WorkerProcess((sys.executable, "-c", _MAIN, target), environment)
        self._limit_s = limit_s
        self._left_s = max(LOAD_S, limit_s)
        self._failures = self._rests = 0
        """Failures in a row, and the rounds that it is still left out of."""
        self._answered = False
        """In this round, and has not failed since."""
        self.trouble = ""
        """Why it failed when it was last asked; empty when it did not."""

    def begin_round(self) -> None:
        """Give it its time for one round, unless it is left out of this one."""
        self._failures = 0 if self._answered else self._failures
        self._answered = False
        self._left_s = 0.0 if self._rests else self._limit_s
        self._rests = max(0, self._rests - 1)

    def about(self) -> dict[str, Any]:
        """The policy's fields that are no functions, and whether it has a planner."""
        return dict(self._ask("about"))

    def utilities(self, progress: Sequence[float]) -> list[float]:
        values = list(self._ask("utilities", [float(one) for one in progress]))
        for at, value in zip(progress, values, strict=True):
            if not isfinite(value):
                raise self._failed(f"gave utility {value} of progress {at:g}; accepted: finite numbers")
        return values

    def plan(self, problem: Problem) -> Sequence[int]:
        try:
            return checked(problem, self._ask("plan", problem))
        except PolicyFailed as error:
            raise error if self.trouble else self._failed(str(error)) from None

    def close(self) -> None:
        self._process.close()

    def _ask(self, *request: Any) -> Any:
        if self._left_s < 0.0:
            raise self._failed(f"has used up its {self._limit_s:g} s of this round")
        if self._left_s == 0.0:  # it has failed, or is left out
            raise PolicyFailed(self.trouble)
        began = time.monotonic()
        try:
            worked, answer = self._process.call(*request, self._left_s, within_s=self._left_s)
        except (Busy, Unanswered) as error:
            # The next process loads meanwhile: the round that asks it again need not wait for that.
            failure = self._failed(f"gave no answer: {str(error) or 'others kept it busy'}")
            self._process.start()
            raise failure from None
        self._left_s -= time.monotonic() - began
        if not worked:
            raise self._failed(answer)
        if self._left_s > 0.0:
            self._answered, self.trouble = True, ""
        return answer

    def _failed(self, why: str) -> PolicyFailed:
        self.trouble, self._left_s, self._answered = why, 0.0, False
        self._failures += 1
        self._rests = min(MOST_RESTS, 2**self._failures - 1)
        return PolicyFailed(why)


@dataclass(frozen=True)
class IsolatedPolicy(Policy):
    """A policy whose functions are its process's."""

    remote: Remote = field(kw_only=True)

    def utilities(self, progress: Sequence[float]) -> list[float]:
        return self.remote.utilities(progress)

    def begin_round(self) -> None:
        self.remote.begin_round()


def isolated(target: str, limit_s: float) -> IsolatedPolicy:
    """The policy at `target` (module:attribute). Raises PolicyFailed where it cannot be loaded."""
    remote = Remote(target, limit_s)
    try:
        about = remote.about()
    except PolicyFailed:
        remote.close()
        raise
    planner = remote.plan if about.pop("plans") else None
    return IsolatedPolicy(**about, utility=lambda one: remote.utilities([one])[0], planner=planner, remote=remote)


EXIT_S = 2.0
"""How long a process that has closed its connection may take to end."""


class Unanswered(Exception):
    """The process ended instead of answering, or did not answer in time; str(error) says which."""


class Busy(Exception):
    """Other threads kept the process busy for all of the time."""


class WorkerProcess:
    """One process beside the daemon that answers calls: started when it is needed, ended when it does not answer in
    time. `command` and the number of its connection start it, in this environment. Threads take turns."""

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
