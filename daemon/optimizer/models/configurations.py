"""What speeds are predicted at: the sizes of one job or of many, and the batches at each, in flat arrays.

Promise: one layout for one job and for thousands, so that each formula is written once and runs once for all of them.
Limit: arrays alone; what may be asked for is checked by those who make them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .step_time import Array


@dataclass(frozen=True, eq=False)
class Configurations:
    """Jobs have sizes, sizes have batches; everything in the jobs' order. Numbers are doubles, positions int64."""

    gpus: Array
    """Of each size, 1 or more."""
    nodes: Array
    batch: Array
    """Global batches, in samples: those of the first size, of the second, ..."""
    sizes: Array
    """Where each job's sizes begin, and the end of the last one's."""
    batches: Array
    """Where each size's batches begin, and the end of the last one's."""

    @cached_property
    def job_of_size(self) -> Array:
        """The job of each size."""
        return np.arange(len(self.sizes) - 1).repeat(self.sizes[1:] - self.sizes[:-1])

    @cached_property
    def size_of_batch(self) -> Array:
        """The size of each batch."""
        return np.arange(len(self.batches) - 1).repeat(self.batches[1:] - self.batches[:-1])

    @cached_property
    def first_batch(self) -> Array:
        """Where each job's batches begin, and the end of the last one's."""
        return self.batches[self.sizes]

    def points(self) -> list[tuple[int, int, int]]:
        """(GPUs, nodes, batch) of each batch."""
        places = np.stack([self.gpus, self.nodes])[:, self.size_of_batch]
        return [(int(k), int(n), int(b)) for k, n, b in zip(*places.tolist(), self.batch.tolist(), strict=True)]


def of_points(points: Sequence[tuple[int, int, int]]) -> Configurations:
    """One job's, each (GPUs, nodes, batch) a size of its own."""
    gpus, nodes, batch = np.array(points, dtype=np.float64).reshape(-1, 3).T
    return Configurations(gpus, nodes, batch, np.array([0, len(gpus)]), np.arange(len(gpus) + 1))


def one_gpu(batch: Array) -> Configurations:
    """Of many jobs, one GPU at one batch each."""
    one, ends = np.ones(len(batch)), np.arange(len(batch) + 1)
    return Configurations(one, one, batch, ends, ends)


def together(each: Sequence[Configurations]) -> Configurations:
    """Those of many jobs, from those of each."""
    if len(each) == 1:
        return each[0]
    return Configurations(
        np.concatenate([one.gpus for one in each]),
        np.concatenate([one.nodes for one in each]),
        np.concatenate([one.batch for one in each]),
        ends_of([len(one.gpus) for one in each]),
        ends_of(np.concatenate([one.batches[1:] - one.batches[:-1] for one in each])),
    )


def ends_of(lengths: Sequence[int] | Array) -> Array:
    """Where each of these many begins, and the end of the last."""
    ends = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends
