"""Worlds that are made in a test's own process, without a supervisor and its store."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist

from slurm_elastic.trainer_shim.world import groups
from slurm_elastic.trainer_shim.world.process_group import World


@contextmanager
def made_world(
    rank: int = 0, size: int = 1, backend: str = "gloo", store: Any = None, generation: int = 1
) -> Iterator[World]:
    """A world in use. backend: "fake" where its other ranks are not there, and nothing is really communicated."""
    slot, seconds = groups.free_slot(), datetime.timedelta(seconds=60)
    made = groups.make(backend, store or dist.HashStore(), rank, size, slot, f"g{generation}", seconds)
    try:
        with made.used():
            yield World(generation, rank, size, made)
    finally:
        made.leave()
