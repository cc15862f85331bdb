"""What speeds are predicted at: the sizes of one job or of many, and the batches at each, in arrays.

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
    """Sizes in the jobs' order, and at each of them batches. Numbers are doubles, positions int64."""

    gpus: Array
    """Of each size, 1 or more."""
    nodes: Array
    batch: Array
    """Batch x size: the global batches at each, ascending, in samples. Where a size has fewer than another its last is
    there again."""
    counts: Array
    """How many batches each size has."""
    sizes: Array
    """Where each job's sizes begin, and the end of the last one's."""

    @cached_property
    def job_of_size(self) -> Array:
        """The job of each size."""
        return np.arange(len(self.sizes) - 1).repeat(self.sizes[1:] - self.sizes[:-1])

    def points(self) -> list[tuple[int, int, int]]:
        """(GPUs, nodes, batch) of each batch of each size, none twice."""
        sizes = zip(self.gpus.tolist(), self.nodes.tolist(), self.counts.tolist(), self.batch.T.tolist(), strict=True)
        return [(int(k), int(n), int(b)) for k, n, count, batches in sizes for b in batches[:count]]

    def arranged(self, values: Sequence[float], most: int) -> Array:
        """Batch x size, of a value for each of `points`; `most`: how many batches."""
        first = self.counts.cumsum() - self.counts
        return np.asarray(values)[first + np.minimum(np.arange(most)[:, None], self.counts - 1)]

    def of_jobs(self, jobs: Sequence[int]) -> Configurations:
        """Those of some jobs, in order."""
        if len(jobs) == len(self.sizes) - 1:
            return self
        kept = np.isin(self.job_of_size, jobs)
        sizes = ends_of((self.sizes[1:] - self.sizes[:-1])[jobs])
        return Configurations(self.gpus[kept], self.nodes[kept], self.batch[:, kept], self.counts[kept], sizes)


def of_sizes(sizes: Sequence[tuple[int, int, Sequence[int]]]) -> Configurations:
    """One job's, of (GPUs, nodes, batches ascending)."""
    most = max(len(batches) for _, _, batches in sizes)
    padded = [(*batches, *[batches[-1]] * (most - len(batches))) for _, _, batches in sizes]
    gpus, nodes = np.array([size[:2] for size in sizes], dtype=np.float64).T
    counts = np.array([len(batches) for _, _, batches in sizes])
    return Configurations(gpus, nodes, np.array(padded, dtype=np.float64).T, counts, np.array([0, len(sizes)]))


def of_points(points: Sequence[tuple[int, int, int]]) -> Configurations:
    """One job's, each (GPUs, nodes, batch) a size of its own."""
    return of_sizes([(gpus, nodes, (batch,)) for gpus, nodes, batch in points])


def one_gpu(batch: Array) -> Configurations:
    """Of many jobs, one GPU at one batch each."""
    one = np.ones(len(batch))
    return Configurations(one, one, batch[None], one.astype(np.int64), np.arange(len(batch) + 1))


def together(each: Sequence[Configurations]) -> Configurations:
    """Those of many jobs, from those of each."""
    if len(each) == 1:
        return each[0]
    most = max(len(one.batch) for one in each)
    return Configurations(
        np.concatenate([one.gpus for one in each]),
        np.concatenate([one.nodes for one in each]),
        np.concatenate([_padded(one.batch, most) for one in each], axis=1),
        np.concatenate([one.counts for one in each]),
        ends_of([len(one.gpus) for one in each]),
    )


def _padded(batch: Array, most: int) -> Array:
    return batch if len(batch) == most else np.concatenate([batch, batch[-1:].repeat(most - len(batch), axis=0)])


def ends_of(lengths: Sequence[int] | Array) -> Array:
    """Where each of these many begins, and the end of the last."""
    ends = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=ends[1:])
    return ends
