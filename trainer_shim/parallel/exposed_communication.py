"""How long a step's gradients travel while its rank computes nothing: from its last own gradient to the mean of all.

On a GPU two events in the compute stream tell it, read when they have passed, so a step or two late; nothing waits
for them. Limit: only what goes through DistributedDataParallel's buckets.
"""

from __future__ import annotations

import time
from typing import Any

import torch


class ExposedCommunication:
    """`ready` when all own gradients are computed, `done` after backward, `seconds` at any time."""

    def __init__(self) -> None:
        self._ready: Any = None
        self._passing: tuple[Any, Any] | None = None
        self._seconds = 0.0

    def ready(self, cuda: bool) -> None:
        """This rank's own gradients are complete (on a GPU: when the current stream gets there)."""
        self._ready = _mark(cuda)

    def done(self) -> None:
        """The mean over all ranks is there (on a GPU: for whatever comes next in its stream)."""
        ready, self._ready = self._ready, None
        if ready is None:
            self._seconds = 0.0
        elif isinstance(ready, float):
            self._seconds = time.perf_counter() - ready
        elif self._passing is None:
            self._passing = (ready, _mark(cuda=True))

    def seconds(self) -> float:
        """Of the last step for which it is known; 0: not known."""
        if self._passing is not None and self._passing[1].query():
            begun, ended = self._passing
            self._passing = None
            self._seconds = begun.elapsed_time(ended) / 1000
        return self._seconds


def _mark(cuda: bool) -> Any:
    if not cuda:
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
