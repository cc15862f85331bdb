"""Bounds that follow the machine: a wait that is long enough on a quiet machine is longer on a busy one.

Promise: where more wants to run than there are CPUs, a bound's seconds pass that much more slowly, ten times at most.
Limit: looks at this machine's CPUs only; one that is slow for another reason, such as its disks, gets no more time.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

MOST = 10.0
_WEIGHT = 1.25
"""What one level of niceness takes from a process's share of a busy CPU."""


def slowness(running: int, cpus: int, nice: int) -> float:
    """How many times longer work takes while so many processes want to run; those of this niceness are served last."""
    return min(MOST, 1 + max(0.0, running / cpus - 1) * _WEIGHT ** max(0, nice))


def slowness_now() -> float:
    """The same for this process, now; 1 where /proc does not tell."""
    try:
        running = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])
    except (OSError, ValueError, IndexError):
        return 1.0
    return slowness(running, len(os.sched_getaffinity(0)), os.getpriority(os.PRIO_PROCESS, 0))


class Patience:
    """So many seconds of a quiet machine, from now on. Ask over() often: each time stands for the time before it."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._left = seconds
        self._began = self._asked = time.monotonic()

    def over(self) -> bool:
        now = time.monotonic()
        self._left -= (now - self._asked) / slowness_now()
        self._asked = now
        return self._left <= 0

    def end_of(self, process: subprocess.Popen[bytes]) -> int:
        """The exit status of a child of this process. subprocess.TimeoutExpired when it does not end in time."""
        while True:
            try:
                return process.wait(0.2)
            except subprocess.TimeoutExpired:
                if self.over():
                    raise

    def __str__(self) -> str:
        """What was waited, for the sentence that says it was in vain."""
        waited = self._asked - self._began
        busy = f" of a quiet machine, {waited:.0f} s of this busy one" if waited > 1.5 * self.seconds else ""
        return f"{self.seconds:g} s{busy}"
