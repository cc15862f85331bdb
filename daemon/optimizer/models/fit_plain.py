"""The maximum a posteriori fit of one model by Levenberg-Marquardt, on the standard library alone.

Minimises sum_i ((ln T(theta) - ln t_i) / sigma_i)^2 + (theta - mean)' P (theta - mean); P is the prior's precision.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from . import linear
from .step_time import N, log_step_time

ROUNDS, ENOUGH = 60, 1e-7
Point = tuple[int, int, float, float, float, float]
"""(GPUs, nodes, micro batch / scale, accumulation, ln(step time / scale), weight = 1 / sigma^2)"""


def normal_equations(
    theta: Sequence[float], points: Sequence[Point], mean: Sequence[float], precision: linear.Matrix
) -> tuple[float, list[float], list[list[float]]]:
    """(cost, gradient / 2, Gauss-Newton matrix) at theta."""
    off = [t - m for t, m in zip(theta, mean, strict=True)]
    pulled = [sum(p * o for p, o in zip(row, off, strict=True)) for row in precision]
    cost = sum(a * b for a, b in zip(pulled, off, strict=True))
    gradient, matrix = list(pulled), [list(row) for row in precision]
    for gpus, nodes, micro, accumulation, seen, weight in points:
        time, slope = log_step_time(theta, gpus, nodes, micro, accumulation)
        miss = math.log(time) - seen
        cost += weight * miss * miss
        for i in range(N):
            if slope[i]:
                gradient[i] += weight * miss * slope[i]
                for j in range(N):
                    matrix[i][j] += weight * slope[i] * slope[j]
    return cost, gradient, matrix


def fit(
    points: Sequence[Point], mean: Sequence[float], precision: linear.Matrix
) -> tuple[list[float], list[list[float]]]:
    """(theta, its covariance by Laplace's approximation)."""
    theta, damping = list(mean), 1e-3
    cost, gradient, matrix = normal_equations(theta, points, mean, precision)
    for _ in range(ROUNDS):
        damped = [[v * (1 + damping) if i == j else v for j, v in enumerate(row)] for i, row in enumerate(matrix)]
        step = linear.solve(damped, gradient)
        trial = [t - max(-2.0, min(2.0, s)) for t, s in zip(theta, step, strict=True)]
        new = normal_equations(trial, points, mean, precision)
        if new[0] <= cost:
            settled = cost - new[0] <= ENOUGH * (1e-6 + cost)
            theta, damping = trial, max(1e-9, damping / 5)
            cost, gradient, matrix = new
            if settled:
                break
        else:
            damping *= 4
            if damping > 1e9:
                break
    return theta, linear.inverse(matrix)
