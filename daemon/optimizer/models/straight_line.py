"""A straight line in logarithms, for a program whose steps are unlike what the step-time form expects.

    ln T = a + b ln m + c ln k + d [several nodes] + ln A        A micro batches of m samples on each of k GPUs

The form says more, and is wrong where its prior is: of a cluster whose network nobody has measured, or a program unlike
those that it was learned from. So the two are averaged, each by how probable it made the job's own reports (Hoeting et
al., "Bayesian Model Averaging: A Tutorial", 1999):

    ln T = (1 - w) ln form + w line         w / (1 - w) = v / (1 - v) x p(reports | line) / p(reports | form)

with both probabilities given the first report, which each takes as it is; v is the prior's `line_share`, which is
learned: of programs that the form predicted the line soon has nothing. Promise: exact (a linear model with a normal
prior). Limit: what is believed of the slopes is the same for all programs; nothing is learned about them.
"""

import math

import numpy as np

from .fit import evidence
from .step_time import Array, Number

MEAN = (0.0, 0.6, 0.1, 0.2)
"""What is believed of a, b, c, d: a step takes longer with the micro batch, little longer with more GPUs."""
SPREAD = (100.0, 0.3, 0.2, 0.4)
Line = tuple[float, float, float, float]


def terms(gpus: Number, nodes: Number, micro: Number) -> Array:
    """What a, b, c, d are multiplied by, as the first axis."""
    several = (gpus > 1) & (nodes > 1)
    return np.stack(np.broadcast_arrays(1.0, log(micro), log(gpus), several))


def log(values: Array) -> Array:
    """ln of each, the same for a value wherever it stands: numpy computes what lies apart in memory otherwise."""
    found: Array = np.log(np.ascontiguousarray(values))
    return found


def log_time(line: Line, gpus: float, nodes: float, micro: float, accumulation: float) -> float:
    """ln T of one model at one configuration."""
    a, b, c, d = line
    return a + b * math.log(micro) + c * math.log(gpus) + d * (gpus > 1 and nodes > 1) + math.log(accumulation)


def fit(points: Array) -> tuple[Array, Array]:
    """(a, b, c, d) of each model, models x 4, and the evidence as fit.Found has it; `points` as fit.columns_of."""
    at, seen, weight = terms(*points[:3]), points[4] - log(points[3]), points[5]
    cost, pull, matrix = _equations(at, seen, weight)
    first = evidence(*_equations(at[:, :1], seen[:1], weight[:1]))
    lines = MEAN - np.linalg.solve(matrix, pull[..., None])[..., 0]
    return lines, evidence(cost, pull, matrix) - first


def _equations(at: Array, seen: Array, weight: Array) -> tuple[Array, Array, Array]:
    """(cost, gradient / 2, half of the curvature) at MEAN of each model."""
    miss = np.tensordot(MEAN, at, 1) - seen
    weighted = (at * weight).transpose(2, 0, 1)
    pull = (weighted @ miss.T[..., None])[..., 0]
    return (weight * miss**2).sum(0), pull, np.diag(np.power(SPREAD, -2.0)) + weighted @ at.transpose(2, 1, 0)


def shares(before: Array, line: Array, form: Array) -> Array:
    """What the line has of each model, from what it has without reports and the evidence of both."""
    gain = np.clip(line - form, -100.0, 100.0)
    found: Array = before / (before + (1.0 - before) * np.exp(-gain))
    return found


def gap(lines: Array, places: Array, formed: Array) -> Array:
    """ln line - ln form at (GPUs, nodes, micro batch, accumulation); the four of `lines` as the first axis, the other
    axes made to broadcast."""
    return (lines * terms(*places[:3])).sum(0) + log(places[3]) - formed
