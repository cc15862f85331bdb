"""The fit of fit_plain.py for many models at once: one Levenberg-Marquardt over arrays, about 0.1 ms a model.

Same cost, same damping, same answer to rounding. Rows that are done stop moving while the others go on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .fit_plain import ENOUGH, ROUNDS, Point
from .linear import Matrix
from .step_time import LARGEST_LOG, N

Array = Any


class _Batch:
    """The observations of all models, padded to the longest; padding weighs nothing."""

    def __init__(self, points: Sequence[Sequence[Point]]) -> None:
        longest = max(len(rows) for rows in points)
        filler: Point = (1, 1, 1.0, 1.0, 0.0, 0.0)
        columns = np.array([[*rows, *[filler] * (longest - len(rows))] for rows in points], dtype=float)
        self._take(np.moveaxis(columns, 2, 0))

    def _take(self, columns: Array) -> None:
        self.columns = columns
        self.gpus, self.nodes, self.micro, self.accumulation, self.seen, self.weight = columns
        self.more = np.maximum(self.gpus - 2, 0)
        self.apart = self.nodes > 1
        self.alone = self.gpus <= 1

    def only(self, kept: Array) -> _Batch:
        """Some of the models."""
        some = _Batch.__new__(_Batch)
        some._take(self.columns[:, kept])
        return some

    def model(self, theta: Array) -> tuple[Array, Array]:
        """(ln T, its gradient) for each model and observation."""
        e = np.exp(np.clip(theta[:, :6], -LARGEST_LOG, LARGEST_LOG))[:, None, :]
        alpha, slope = e[..., 0] + 0 * self.micro, e[..., 1] * self.micro
        compute = alpha + slope
        first = np.where(self.apart, e[..., 4], e[..., 2])
        grow = np.where(self.apart, e[..., 5], e[..., 3]) * self.more
        sync = np.where(self.alone, compute * 1e-300, first + grow)
        share = 1 / (1 + np.exp(-np.clip(theta[:, 6:7], -LARGEST_LOG, LARGEST_LOG)))
        gamma = 1 + 9 * share
        top = np.maximum(compute, sync)
        u, v = (compute / top) ** gamma, (sync / top) ** gamma
        both = top * (u + v) ** (1 / gamma)
        u, v = u / (u + v), v / (u + v)
        whole = (self.accumulation - 1) * compute + both
        by_compute = (self.accumulation - 1 + u * both / compute) / whole
        by_sync = np.where(self.alone, 0.0, v * both / sync / whole)
        gradient = np.zeros((*self.gpus.shape, N))
        gradient[..., 0], gradient[..., 1] = by_compute * alpha, by_compute * slope
        for at, where in ((2, ~self.apart), (4, self.apart)):
            gradient[..., at] = np.where(where, by_sync * first, 0.0)
            gradient[..., at + 1] = np.where(where, by_sync * grow, 0.0)
        mixed = u * np.log(np.maximum(u, 1e-300)) + v * np.log(np.maximum(v, 1e-300))
        gradient[..., 6] = np.where(self.alone, 0.0, both / whole * mixed / gamma**2 * 9 * share * (1 - share))
        return np.log(whole), gradient

    def equations(self, theta: Array, mean: Array, precision: Array) -> tuple[Array, Array, Array]:
        """(cost, gradient / 2, Gauss-Newton matrix) of each model."""
        log_time, slope = self.model(theta)
        miss, off = log_time - self.seen, theta - mean
        pulled = np.einsum("jab,jb->ja", precision, off)
        cost = (off * pulled).sum(1) + (self.weight * miss**2).sum(1)
        weighted = slope * self.weight[..., None]
        matrix = precision + np.swapaxes(weighted, 1, 2) @ slope
        return cost, pulled + np.einsum("jn,jna->ja", miss, weighted), matrix


def fit(
    points: Sequence[Sequence[Point]], means: Sequence[Sequence[float]], precisions: Sequence[Matrix]
) -> tuple[list[list[float]], list[list[list[float]]]]:
    """(theta, covariance by Laplace's approximation) of each model."""
    batch = _Batch(points)
    mean, precision = np.array(means, dtype=float), np.array(precisions, dtype=float)
    found, curvature = mean.copy(), precision.copy()
    rows = np.arange(len(points))  # of the models that still move
    theta, damping = mean.copy(), np.full(len(points), 1e-3)
    cost, gradient, matrix = batch.equations(theta, mean, precision)
    going, diagonal = np.ones(len(points), dtype=bool), np.arange(N)
    for _ in range(ROUNDS):
        damped = matrix.copy()
        damped[:, diagonal, diagonal] *= 1 + damping[:, None]
        step = np.clip(np.linalg.solve(damped, gradient[..., None])[..., 0], -2.0, 2.0)
        trial = np.where(going[:, None], theta - step, theta)
        new_cost, new_gradient, new_matrix = batch.equations(trial, mean, precision)
        better = going & (new_cost <= cost)
        settled = better & (cost - new_cost <= ENOUGH * (1e-6 + cost))
        theta = np.where(better[:, None], trial, theta)
        gradient = np.where(better[:, None], new_gradient, gradient)
        matrix = np.where(better[:, None, None], new_matrix, matrix)
        cost = np.where(better, new_cost, cost)
        damping = np.where(better, np.maximum(1e-9, damping / 5), damping * 4)
        going &= ~settled & (damping <= 1e9)
        if 4 * going.sum() <= 3 * len(going):  # the few that take long do not make the others wait
            found[rows], curvature[rows] = theta, matrix
            rows, batch, mean, precision = rows[going], batch.only(going), mean[going], precision[going]
            theta, damping, cost = theta[going], damping[going], cost[going]
            gradient, matrix, going = gradient[going], matrix[going], going[going]
        if not len(rows):
            break
    found[rows], curvature[rows] = theta, matrix
    return found.tolist(), np.linalg.inv(curvature).tolist()
