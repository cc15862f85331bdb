"""The parent of the supervisor: so small that it outlives it, and starts it again when a signal has killed it.

Slurm calls a job FAILED whose batch script a signal has ended (out of memory, say), and never requeues it. The next
supervisor begins as that of a requeued job does: from what Slurm says and from the job directory. It begins when what
the one before has left behind is over: workers write what they have trained, and leave. Where slurm-elastic
was upgraded meanwhile it is of the new build, and so is the parent. Limit: not where the whole batch script is killed.
"""

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.protocol.version import build, build_on_disk

from ..node.agent import LEAVE_S
from ..node.worker_process import NOTICES

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
TIMES = 5
SIGNALS = (signal.SIGTERM, signal.SIGINT, *NOTICES)


class Parent:
    """`run` returns the exit code of the first supervisor that ends by itself: in the child, and in the parent."""

    def __init__(self) -> None:
        self._child = 0
        self._ending = False

    def run(self, supervise: Callable[[], int], again: list[str]) -> int:
        """again: the command that does the same from the beginning."""
        build()
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what a supervisor leaves behind becomes ours
        strangers = children()
        for number in SIGNALS:
            signal.signal(number, self._pass_on)
        for _ in range(TIMES):
            signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
            self._child = os.fork()
            if self._child == 0:
                prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
                for number in SIGNALS:
                    signal.signal(number, signal.SIG_DFL if number != signal.SIGINT else signal.default_int_handler)
                signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
                return supervise()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            code = os.waitstatus_to_exitcode(self._status())
            if code >= 0 or self._ending:
                break
            with contextlib.suppress(OSError):  # a full disk, say
                os.write(2, f"selastic: the supervisor was killed by signal {-code}; starting it again\n".encode())
            outlast(strangers)
            if build_on_disk() != build():  # agents that start now would be of that one
                os.execv(again[0], again)
        return code if code >= 0 else 128 - code

    def _status(self) -> int:
        """The supervisor's, once it has ended. What its agents leave behind meanwhile is ours, such as the loader
        workers of each worker that leaves: they would stay in the process table as long as the job."""
        while True:
            pid, status = os.waitpid(-1, 0)
            if pid == self._child:
                return status

    def _pass_on(self, number: int, frame: object) -> None:
        self._ending = self._ending or number not in NOTICES
        if self._child and number != signal.SIGINT:  # Ctrl-C reaches both
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._child, number)


def outlast(strangers: frozenset[int]) -> None:
    """Wait, in bounded time, for what a killed supervisor has left behind."""
    deadline = time.monotonic() + LEAVE_S + 10
    while left := children() - strangers:
        for pid in left:
            with contextlib.suppress(OSError):
                asks = b"salloc" in Path(f"/proc/{pid}/cmdline").read_bytes().partition(b"\0")[0]
                if asks or time.monotonic() >= deadline - 5:  # an srun takes its step with it
                    os.kill(pid, signal.SIGTERM)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        if time.monotonic() >= deadline:
            return
        time.sleep(0.1)


def children() -> frozenset[int]:
    """The children of this process; none where Linux does not say."""
    try:
        return frozenset(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))
    except OSError:
        return frozenset()
