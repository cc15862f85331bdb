"""The maximum a posteriori fit of many models at once: one Levenberg-Marquardt over arrays.

Minimises sum_i ((ln T(theta) - ln t_i) / sigma_i)^2 + (theta - mean)' P (theta - mean) for each model; P is the
precision of its prior. Models that are done leave the arrays while the others go on.
Limit: a local minimum near the prior's mean; covariance and evidence are Laplace's approximation.
"""

from collections.abc import Sequence
from typing import NamedTuple

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


class Found(NamedTuple):
    """Of each model."""

    theta: Array
    covariance: Array
    evidence: Array
    """ln of how probable the reports after the first were, given that one; a constant of the reports is left out."""


def columns_of(points: Sequence[Sequence[Point]]) -> Array:
    """The points of many models as one array, field x point x model."""
    longest = max(map(len, points))
    return np.array([[*rows, *[FILLER] * (longest - len(rows))] for rows in points]).T


def fit(points: Array, mean: Array, precision: Array) -> Found:
    """The models of these points, as `columns_of` gives them; `mean` and `precision` of each model's prior."""
    columns = np.concatenate([factor_array(*points[:3]), points[3:]])  # each of them: point x model
    first = evidence(*_equations(mean, columns[:, :1], mean, precision))
    found, curvature = mean.copy(), precision.copy()
    rows, costs = np.arange(len(mean)), np.zeros(len(mean))  # rows: of the models that still move
    damping, going = np.full(len(mean), 1e-3), np.ones(len(mean), dtype=bool)
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
            found[rows], costs[rows], curvature[rows] = now[0], now[1], now[3]
            rows, columns, mean, precision = rows[going], columns[..., going], mean[going], precision[going]
            now, damping, going = tuple(value[going] for value in now), damping[going], going[going]
        if not len(rows):
            break
    found[rows], costs[rows], curvature[rows] = now[0], now[1], now[3]
    covariance = np.linalg.inv(curvature)
    whole = evidence(costs, np.zeros_like(found), curvature)
    return Found(found, (covariance + np.swapaxes(covariance, 1, 2)) / 2, whole - first)


def evidence(cost: Array, gradient: Array, matrix: Array) -> Array:
    """ln of how probable each model makes its points, by the parabola of (cost, gradient / 2, Gauss-Newton matrix)
    somewhere; what depends on the points and the prior alone is left out."""
    lowest = cost - (gradient * np.linalg.solve(matrix, gradient[..., None])[..., 0]).sum(1)
    return -(lowest + np.linalg.slogdet(matrix)[1]) / 2


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
