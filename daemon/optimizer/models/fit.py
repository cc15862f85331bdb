"""The maximum a posteriori fit of many models at once: one Levenberg-Marquardt over arrays.

Minimises sum_i ((ln T(theta) - ln t_i) / sigma_i)^2 + (theta - mean)' P (theta - mean) for each model; P is the
precision of its prior. Models that are done leave the arrays while the others go on.
Limit: a local minimum near the prior's mean; the covariance is Laplace's approximation.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .step_time import Array, log_step_time, parameters

ROUNDS, ENOUGH = 60, 1e-7
MOST_STEP = 2.0
"""Largest change of a coordinate in one round."""
Point = tuple[float, float, float, float, float, float]
"""(GPUs, nodes, micro batch / scale, accumulation, ln(step time / scale), weight = 1 / sigma^2)"""
FILLER: Point = (1.0, 1.0, 1.0, 1.0, 0.0, 0.0)
"""Pads a model's points to as many as the longest has; it weighs nothing."""


def fit(points: Sequence[Sequence[Point]], mean: Array, precision: Array) -> tuple[Array, Array]:
    """(theta, its covariance) of each model; `mean` and `precision` of each model's prior."""
    longest = max(map(len, points))
    columns = np.moveaxis(np.array([[*rows, *[FILLER] * (longest - len(rows))] for rows in points]), 2, 0)
    found, curvature = mean.copy(), precision.copy()
    rows = np.arange(len(points))  # of the models that still move
    theta, damping = mean.copy(), np.full(len(points), 1e-3)
    cost, gradient, matrix = _equations(theta, columns, mean, precision)
    going = np.ones(len(points), dtype=bool)
    for _ in range(ROUNDS):
        damped = matrix.copy()
        np.einsum("jaa->ja", damped)[...] *= 1 + damping[:, None]
        step = np.linalg.solve(damped, gradient[..., None])[..., 0]
        step = np.minimum(np.maximum(step, -MOST_STEP), MOST_STEP)
        trial = np.where(going[:, None], theta - step, theta)
        new_cost, new_gradient, new_matrix = _equations(trial, columns, mean, precision)
        better = going & (new_cost <= cost)
        settled = better & (cost - new_cost <= ENOUGH * (1e-6 + cost))
        theta = np.where(better[:, None], trial, theta)
        gradient = np.where(better[:, None], new_gradient, gradient)
        matrix = np.where(better[:, None, None], new_matrix, matrix)
        cost = np.where(better, new_cost, cost)
        damping = np.where(better, np.maximum(1e-9, damping / 5), damping * 4)
        going &= ~settled & (damping <= 1e9)
        if 4 * np.count_nonzero(going) <= 3 * len(going):  # the few that take long do not make the others wait
            found[rows], curvature[rows] = theta, matrix
            rows, columns, mean, precision = rows[going], columns[:, going], mean[going], precision[going]
            theta, damping, cost = theta[going], damping[going], cost[going]
            gradient, matrix, going = gradient[going], matrix[going], going[going]
        if not len(rows):
            break
    found[rows], curvature[rows] = theta, matrix
    covariance = np.linalg.inv(curvature)
    return found, (covariance + np.swapaxes(covariance, 1, 2)) / 2


def _equations(theta: Array, columns: Array, mean: Array, precision: Array) -> tuple[Array, Array, Array]:
    """(cost, gradient / 2, Gauss-Newton matrix) of each model."""
    gpus, nodes, micro, accumulation, seen, weight = columns
    log_time, slope = log_step_time(parameters(theta[:, None]), gpus, nodes, micro, accumulation)
    miss, off = log_time - seen, theta - mean
    pulled = (precision @ off[..., None])[..., 0]
    weighted = np.swapaxes(slope * weight[..., None], 1, 2)
    cost = (off * pulled).sum(1) + (weight * miss**2).sum(1)
    return cost, pulled + (weighted @ miss[..., None])[..., 0], precision + weighted @ slope
