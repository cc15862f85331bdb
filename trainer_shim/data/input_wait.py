"""How long a step waits for its samples while its device has nothing to compute.

On a GPU the training thread runs ahead: it asks for samples while the step before is still computed, and what it waits
then costs nothing. Two events in the compute stream, before and after, tell how long that stood empty. They are read
when they have passed, so a step or two late; nothing waits for them. Limit: the stream that is current; what a script
computes in others counts as nothing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch

LEAST_S = 3e-5
"""The thread waits that long for samples that are there: nothing stood empty."""


class InputWait:
    """`begin` before samples are asked for, `end` when they are there, `seconds` with each step."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._asked = 0.0
        self._begun: Any = None
        self._passing: deque[tuple[Any, Any]] = deque()
        self._seconds = 0.0

    def begin(self, cuda: bool) -> None:
        """Samples are asked for."""
        self._begun = _mark() if cuda else None
        self._asked = self._clock()

    def end(self) -> float:
        """They are there; how long the thread waited for them, in s."""
        waited = self._clock() - self._asked
        if self._begun is None:
            self._seconds += waited
        elif waited >= LEAST_S:
            self._passing.append((self._begun, _mark()))
        self._begun = None
        return waited

    def seconds(self) -> float:
        """How long the device had nothing to compute meanwhile, in s: what has become known since this was asked."""
        while self._passing and self._passing[0][1].query():
            begun, ended = self._passing.popleft()
            self._seconds += begun.elapsed_time(ended) / 1000
        found, self._seconds = self._seconds, 0.0
        return found


def _mark() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
