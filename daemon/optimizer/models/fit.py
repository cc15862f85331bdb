"""The maximum a posteriori fit of many models at once: one Levenberg-Marquardt over arrays.

Minimises sum_i ((ln T(theta) - ln t_i) / sigma_i)^2 + (theta - mean)' P (theta - mean) for each model; P is the
precision of its prior. Models that are done leave the arrays while the others go on.
Limit: a local minimum near the prior's mean; the covariance is Laplace's approximation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .step_time import Array, N, factor_array, log_step_time, parameter_array

ROUNDS, ENOUGH = 60, 1e-7
MOST_STEP = 2.0
"""Largest change of a coordinate in one round."""
Point = tuple[float, float, float, float, float, float]
"""(GPUs, nodes, micro batch / scale, accumulation, ln(step time / scale), weight = 1 / sigma^2)"""
State = tuple[Array, ...]
"""(theta, cost, gradient / 2, Gauss-Newton matrix) of each model"""
FILLER: Point = (1.0, 1.0, 1.0, 1.0, 0.0, 0.0)
"""Pads a model's points to as many as the longest has; it weighs nothing."""


def fit(points: Sequence[Sequence[Point]], mean: Array, precision: Array) -> tuple[Array, Array]:
    """(theta, its covariance) of each model; `mean` and `precision` of each model's prior."""
    longest = max(map(len, points))
    gpus, nodes, micro, *others = np.array([[*rows, *[FILLER] * (longest - len(rows))] for rows in points]).T
    columns = np.concatenate([factor_array(gpus, nodes, micro), others])  # each of them: point x model
    found, curvature = mean.copy(), precision.copy()
    rows = np.arange(len(points))  # of the models that still move
    damping, going = np.full(len(points), 1e-3), np.ones(len(points), dtype=bool)
    now: State = (mean, *_equations(mean, columns, mean, precision))
    for _ in range(ROUNDS):
        theta, cost, gradient, matrix = now
        step = np.linalg.solve(matrix * (1 + damping[:, None, None] * np.eye(N)), gradient[..., None])[..., 0]
        trial = theta - np.minimum(np.maximum(step, -MOST_STEP), MOST_STEP)
        new = (trial, *_equations(trial, columns, mean, precision))
        better = going & (new[1] <= cost)
        settled = better & (cost - new[1] <= ENOUGH * (1e-6 + cost))
        now = _replaced(now, new, better)
        damping = np.where(better, np.maximum(1e-9, damping / 5), damping * 4)
        going &= ~settled & (damping <= 1e9)
        if 4 * np.count_nonzero(going) <= 3 * len(going):  # the few that take long do not make the others wait
            found[rows], curvature[rows] = now[0], now[3]
            rows, columns, mean, precision = rows[going], columns[..., going], mean[going], precision[going]
            now, damping, going = tuple(value[going] for value in now), damping[going], going[going]
        if not len(rows):
            break
    found[rows], curvature[rows] = now[0], now[3]
    covariance = np.linalg.inv(curvature)
    return found, (covariance + np.swapaxes(covariance, 1, 2)) / 2


def _replaced(old: State, new: State, better: Array) -> State:
    """The new state of the models that are better by it, the old one of the others."""
    if better.all():
        return new
    return tuple(np.where(better.reshape(-1, *[1] * (a.ndim - 1)), b, a) for a, b in zip(old, new, strict=True))


def _equations(theta: Array, columns: Array, mean: Array, precision: Array) -> tuple[Array, Array, Array]:
    """(cost, gradient / 2, Gauss-Newton matrix) of each model."""
    accumulation, seen, weight = columns[6:]
    log_time, slope = log_step_time(parameter_array(theta.T[:, None]), columns[:6], accumulation)
    miss, off = log_time - seen, theta - mean
    pulled = (precision @ off[..., None])[..., 0]
    cost = (off * pulled).sum(1) + (weight * miss**2).sum(0)
    slope = slope.transpose(2, 0, 1)
    weighted = slope * weight.T[:, None]
    return cost, pulled + (weighted @ miss.T[..., None])[..., 0], precision + weighted @ slope.swapaxes(1, 2)
