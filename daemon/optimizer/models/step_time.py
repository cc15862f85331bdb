"""The step-time form: compute per micro batch, synchronisation by class of placement, overlapped by a power.

    G = alpha_c + beta_c * m                    gradients of one micro batch of m samples per GPU, in s
    S = 0                                       on one GPU
        alpha_l * r(k) + beta_l * (k - 2)       on k GPUs of one node
        alpha_n * r(k) + beta_n * (k - 2)       on k GPUs of several nodes      r(k) = 2 - 2 / k
    T = (A - 1) * G + (G^gamma + S^gamma)^(1/gamma)      one optimizer step of A micro batches

Source: Qiao et al., "Pollux", OSDI 2021, section 3.2, with r(k): a ring sends 2 (k - 1) / k times the gradients
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). Promise: every
prediction is positive and finite, and longer for a larger micro batch, more micro batches, or more GPUs in the same
class of placement (the parameters are held as logarithms). Limit: no term for the network's topology beyond one node /
several; what a step waits for its input is observation.py's.

The form is arithmetic alone: it takes numbers, or arrays that numpy can broadcast. What speeds are predicted at, the
sizes of one job or of many and the batches at each, has one layout for one job and for thousands, so that each formula
is written once and runs once for all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

LARGEST_LOG = 30.0
"""Logarithms are held within +-30: e^30 times the scale is centuries, and no power below overflows."""
TINY = 1e-300

Array = Any
Number = Any
"""A float or an array of them."""


class Parameters(NamedTuple):
    """Of one model; times in units of the model's scale."""

    alpha_c: float
    beta_c: float
    alpha_l: float
    beta_l: float
    alpha_n: float
    beta_n: float
    gamma: float
    """The overlap's power, between 1 (no overlap) and 10 (whole overlap)."""


N = len(Parameters._fields)


def parameters(theta: Sequence[float]) -> Parameters:
    """Those of one model, from its unbounded coordinates."""
    return Parameters(*parameter_array(theta).tolist())


def parameter_array(theta: Array | Sequence[float]) -> Array:
    """From the unbounded coordinates, the first axis of `theta`: six logarithms, and gamma's logit."""
    values: Array = np.exp(np.minimum(np.maximum(theta, -LARGEST_LOG), LARGEST_LOG))  # np.clip takes five times as long
    values[6] = 1.0 + 9.0 * values[6] / (1.0 + values[6])
    return values


def _factors(gpus: Number, nodes: Number, micro: Number) -> tuple[Number, ...]:
    """What each of the six times is multiplied by."""
    inside, apart, more, ring = (gpus > 1) & (nodes <= 1), (gpus > 1) & (nodes > 1), gpus - 2, 2.0 - 2.0 / gpus
    return 1.0, micro, inside * ring, inside * more, apart * ring, apart * more


def factor_array(gpus: Array, nodes: Array, micro: Number) -> Array:
    """The same as the first axis of one array."""
    return np.stack(np.broadcast_arrays(*_factors(gpus, nodes, micro)))


def sync_time(p: Sequence[Number], gpus: Number, nodes: Number) -> Number:
    """S."""
    factors = _factors(gpus, nodes, 0.0)
    return p[2] * factors[2] + p[3] * factors[3] + p[4] * factors[4] + p[5] * factors[5]


def overlapped(compute: Number, sync_power: Number, gamma: Number, accumulation: Number, power: Number = 1.0) -> Number:
    """T^power, from G and S^gamma."""
    whole = compute**gamma  # in place from here on: a new array of every step takes longer than what is computed
    whole += sync_power
    once = whole ** (power / gamma)
    if np.ndim(accumulation) == 0 and accumulation == 1:
        return once
    whole **= 1 / gamma
    whole += (accumulation - 1) * compute
    whole **= power
    return np.where(accumulation == 1, once, whole)  # to the last bit what is returned above


def step_time(p: Parameters, gpus: Number, nodes: Number, micro: Number, accumulation: Number) -> Number:
    """Time of one optimizer step of `accumulation` micro batches."""
    return overlapped(p.alpha_c + p.beta_c * micro, sync_time(p, gpus, nodes) ** p.gamma, p.gamma, accumulation)


def log_step_time(p: Array, factors: Array, accumulation: Number) -> tuple[Array, Array]:
    """(ln T, its gradient in the seven coordinates as the first axis); p and factors as the functions above give them,
    their other axes made to broadcast."""
    terms, gamma, more = p[:6] * factors, p[6], accumulation - 1
    compute, sync = terms[0] + terms[1], terms[2] + terms[3] + terms[4] + terms[5]
    u, v = compute**gamma, sync**gamma
    powers = u + v
    both = powers ** (1 / gamma)
    u, v = u / powers, v / powers
    whole = more * compute + both
    mixed = u * np.log(np.maximum(u, TINY)) + v * np.log(np.maximum(v, TINY))
    gradient = np.empty((N, *np.shape(whole)))
    gradient[:2] = terms[:2] * ((more + u * both / compute) / whole)
    gradient[2:6] = terms[2:] * (v * both / (np.maximum(sync, TINY) * whole))
    gradient[6] = both / whole * mixed * ((gamma - 1) * (10 - gamma) / (9 * gamma**2))
    return np.log(whole), gradient


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
