"""Waiting for a condition in tests: never a sleep for a guessed time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from patience import Patience

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 30, what: object = "", *, every: float = 0.05) -> T:
    """Call predicate until it returns something true, and return that.

    timeout, every: seconds; timeout is that of a quiet machine, and a busy one has longer (patience.py). A look
    that takes long, for it asks Slurm, is taken less often: others wait on these cores, too.
    AssertionError after that, naming `what` (a text, or a function called for one then) and the last value seen.
    """
    patience = Patience(timeout)
    while True:
        begun = time.perf_counter()
        value = predicate()
        if value:
            return value
        took = time.perf_counter() - begun
        if patience.over():
            told = what() if callable(what) else what
            raise AssertionError(f"not within {patience}: {told or predicate!r} (last value: {value!r})")
        time.sleep(max(every, min(2 * took, 1.0)))


def run(command: Sequence[str], seconds: float = 120, **options: Any) -> subprocess.CompletedProcess[str]:
    """subprocess.run with what is printed as text; subprocess.TimeoutExpired after `seconds` of a quiet machine."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options) as process:
        patience = Patience(seconds)
        while True:
            try:
                out, errors = process.communicate(timeout=0.5)
            except subprocess.TimeoutExpired:
                if patience.over():
                    process.kill()
                    raise
            else:
                return subprocess.CompletedProcess(command, process.returncode, out, errors)
