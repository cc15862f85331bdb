"""What ranks say with a step, where no gradient all-reduce carries it: a small one of its own, beside backward."""

# mypy: disallow-untyped-calls=False
# torch types a part of its functions only.

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from .agreement import Reader, Said, Sums
from .process_group import World


class Speech:
    """One step's words, on their way from the moment this is made. Host memory: it does not wait for a GPU."""

    def __init__(self, world: World | None, said: Said | None) -> None:
        self._said = said
        self._ranks = world.size if world is not None and world.grouped else 1
        self._words = torch.zeros(0)
        self._pending: Any = None
        if said is not None and self._ranks > 1:
            self._words = torch.tensor(said.words(), dtype=torch.float64)
            self._pending = dist.all_reduce(self._words, async_op=True)

    def reader(self) -> Reader | None:
        """Wait for everyone's words; None where nothing was said."""
        if self._said is None:
            return None
        if self._pending is not None:
            self._pending.wait()
        if self._pending is None:
            sums = Sums.of_one(self._said)
        else:
            sums = Sums.of_mean(self._ranks, (self._words / self._ranks).tolist())
        return lambda: sums
