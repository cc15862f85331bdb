"""Made-up but realistic allocation problems: the four families of the optimizer's table, and adversarial ones.

Promise: the same (family, jobs, seed) gives the same instance. Limit: curves are perturbations of the step-time form
(compute linear in the local batch, synchronisation growing with the number of GPUs), not measurements.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slurm_elastic.daemon.optimizer.solver.table import Table, scale_for

SIZES = ((20, 64, 32), (100, 512, 64), (1000, 4096, 128), (2000, 16384, 256), (10000, 100000, 256))
"""(jobs, GPUs, largest size of one job)"""
FAMILIES = ("smooth", "mixed", "restart", "identical")
ADVERSARIAL = ("subset-sum", "correlated", "one-big", "minimum-8")


@dataclass(frozen=True)
class Instance:
    """Columns (GPUs strictly rising within each job, values as floats), and the capacity."""

    starts: np.ndarray
    weight: np.ndarray
    value: np.ndarray
    capacity: int

    @property
    def jobs(self) -> int:
        return len(self.starts) - 1

    def table(self) -> Table:
        """As the solver takes it."""
        scale = scale_for(float(np.abs(self.value).max()), self.jobs)
        origin = np.arange(len(self.weight)) - np.repeat(self.starts[:-1], np.diff(self.starts))
        return Table(self.starts, self.weight, np.rint(self.value * scale).astype(np.int64), scale, origin)

    def rows(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """(weights, values) of each job."""
        cuts = self.starts[1:-1]
        return list(zip(np.split(self.weight, cuts), np.split(self.value, cuts), strict=True))


def curve(rng: np.random.Generator, sizes: np.ndarray) -> np.ndarray:
    """Speedups over one GPU: concave, saturating at a random point."""
    serial, sync = rng.uniform(0.001, 0.15), rng.uniform(0.0, 0.02)
    cost = serial + (1 - serial) / sizes + sync * np.log2(np.maximum(sizes, 1)) / 8
    return np.maximum.accumulate(1.0 / cost)


def size_rules(rng: np.random.Generator, kmax: int) -> np.ndarray:
    """The sizes one job accepts: all, powers of two, node multiples, whole groups, holes; some have a minimum."""
    rule = rng.integers(0, 5)
    every = np.arange(1, kmax + 1)
    if rule == 1:
        every = 2 ** np.arange(int(np.log2(kmax)) + 1)
    elif rule == 2:
        every = np.concatenate([2 ** np.arange(3), np.arange(8, kmax + 1, 8)])
    elif rule == 3:
        every = np.arange(int(rng.choice([2, 4])), kmax + 1, int(rng.choice([2, 4])))
    elif rule == 4:
        every = every[rng.random(len(every)) < 0.6]
    if rng.random() < 0.3:
        every = every[every >= rng.choice([2, 4])]
    return every if len(every) else np.array([kmax])


def make(family: str, jobs: int, capacity: int, kmax: int, seed: int = 0) -> Instance:
    """One instance. Every job may also get nothing (value 0), except in "minimum-8"."""
    rng = np.random.default_rng([seed, jobs, *family.encode()])
    shapes = [job(rng, family, kmax) for _ in range(12 if family == "identical" else jobs)]
    rows = [shapes[int(rng.integers(len(shapes)))] if family == "identical" else shapes[j] for j in range(jobs)]
    if family == "restart":
        rows = [(w, restart_term(rng, w, v, capacity // jobs)) for w, v in rows]
    lengths = [len(w) for w, _ in rows]
    starts = np.concatenate([[0], np.cumsum(lengths)])
    return Instance(starts, np.concatenate([w for w, _ in rows]), np.concatenate([v for _, v in rows]), capacity)


def job(rng: np.random.Generator, family: str, kmax: int) -> tuple[np.ndarray, np.ndarray]:
    """(weights, values) of one job of a family."""
    if family in ("smooth", "identical"):
        top = int(rng.integers(kmax // 4, kmax + 1))
        sizes = np.arange(1, top + 1)
        values = curve(rng, sizes)
    elif family in ("mixed", "restart"):
        sizes = size_rules(rng, kmax)
        values = curve(rng, sizes) * (1 + 0.03 * rng.standard_normal(len(sizes))) * rng.choice([0.5, 1.0, 1.0, 2.0])
    elif family == "subset-sum":
        sizes = np.unique(2 * rng.integers(1, kmax // 2, 4) + 1)
        values = sizes.astype(float)
    elif family == "correlated":
        sizes = np.unique(rng.integers(1, kmax, 8))
        values = sizes + float(kmax) / 10
    elif family == "one-big":
        sizes = np.array([int(rng.integers(kmax // 2, kmax))])
        values = curve(rng, sizes)
    else:
        sizes = np.arange(8, kmax + 1)
        return sizes, curve(rng, sizes)
    return np.concatenate([[0], sizes]), np.concatenate([[0.0], values])


def restart_term(rng: np.random.Generator, sizes: np.ndarray, values: np.ndarray, fair: int) -> np.ndarray:
    """Values with every size but the current one discounted by the pause."""
    current = int(np.abs(sizes - rng.integers(0, 2 * fair + 1)).argmin())
    out = values * (1 - rng.uniform(0.01, 0.1))
    out[current] = values[current]
    return out
