"""A prior from runs: the normal distribution that makes everything measured of them most likely (empirical Bayes).

Expectation-maximisation: each run is fitted under the present prior; mean, covariance and the line through x are then
those of the fits, each with its own uncertainty added (Laplace's approximation). A run that showed one size only moves
what one size tells, and leaves the rest as it was believed: short histories are safe.
Promise: a proper prior from any runs, however few or contradictory. Limit: runs of one program count as independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from ..errors import PlanInputError
from . import linear
from .prior import ASSUMED, Prior
from .step_time import N
from .throughput import Observation, ThroughputModel, fit_many

ROUNDS = 6
BASE_COUNTS = 6.0
"""Runs that the belief to start from is worth."""
RIDGE = 0.1
"""Added to every variance: what seven numbers of a few programs cannot have shown."""
FEATURE_RIDGE = 0.1
Run = Sequence[Observation]
Rows = list[list[float]]


def learn(
    runs: Sequence[Run],
    weights: Sequence[float] | None = None,
    base: Prior = ASSUMED,
    counts: float = BASE_COUNTS,
) -> Prior:
    """The prior of these runs, each the observations of one job.

    `weights`: how many runs each is worth (None: one). `base`: what is believed without them, worth `counts` runs.
    Raises PlanInputError for no run, a run without observations, or a weight that is not positive.
    """
    if not runs:
        raise PlanInputError("a prior needs at least one run to be learned from")
    weights = [1.0] * len(runs) if weights is None else weights
    if len(weights) != len(runs) or not all(math.isfinite(w) and w > 0 for w in weights):
        raise PlanInputError(f"every run needs a positive weight; given: {len(weights)} for {len(runs)} runs")
    share = [w / sum(weights) for w in weights]
    kept = counts / (counts + sum(weights))
    prior = replace(base, runs=len(runs))
    for _ in range(ROUNDS):
        prior = _maximised(fit_many(runs, prior), share, base, kept)
    return prior


def _maximised(models: Sequence[ThroughputModel], share: Sequence[float], base: Prior, kept: float) -> Prior:
    """The prior of the fits' moments, with the share `kept` of the base in it."""
    xs = [[math.log(m.scale_s), math.log(m.micro)] for m in models]
    at = _mean(xs, share)
    mean = _mean([m.theta for m in models], share)
    far = [[t - c for t, c in zip(m.theta, mean, strict=True)] for m in models]
    off = [[x - c for x, c in zip(row, at, strict=True)] for row in xs]
    total = _moments(far, far, share)
    for w, m in zip(share, models, strict=True):
        for i in range(N):
            for j in range(N):
                total[i][j] += w * m.covariance[i * N + j]
    features, cross = _moments(off, off, share), _moments(far, off, share)
    for i in range(N):
        total[i][i] += RIDGE
    for i in range(len(at)):
        features[i][i] += FEATURE_RIDGE
    slope = [linear.solve(features, row) for row in cross]
    own = [[total[i][j] - _dot(slope[i], cross[j]) for j in range(N)] for i in range(N)]
    start = base.mean_for(math.exp(at[0]), math.exp(at[1]))
    return replace(
        base,
        mean=tuple((1 - kept) * m + kept * b for m, b in zip(mean, start, strict=True)),
        covariance=_mixed(own, base.covariance, kept),
        slope=tuple(((1 - kept) * s[0] + kept * b[0], (1 - kept) * s[1] + kept * b[1])
                    for s, b in zip(slope, base.slope, strict=True)),
        at=(at[0], at[1]),
        spread=(_spread(features, at, base, kept, 0), _spread(features, at, base, kept, 1)),
        runs=len(models),
    )  # fmt: skip


def _spread(features: Rows, at: Sequence[float], base: Prior, kept: float, i: int) -> float:
    """How far x lies from its mean among the runs and those behind the base."""
    return math.sqrt((1 - kept) * features[i][i] + kept * (base.spread[i] ** 2 + (base.at[i] - at[i]) ** 2))


def _mixed(own: Rows, base: Sequence[Sequence[float]], kept: float) -> tuple[tuple[float, ...], ...]:
    """Symmetric to the last bit, as a covariance has to be."""
    return tuple(
        tuple((1 - kept) * (own[i][j] + own[j][i]) / 2 + kept * base[i][j] for j in range(N)) for i in range(N)
    )


def _mean(rows: Sequence[Sequence[float]], share: Sequence[float]) -> list[float]:
    return [sum(w * row[i] for w, row in zip(share, rows, strict=True)) for i in range(len(rows[0]))]


def _moments(left: Rows, right: Rows, share: Sequence[float]) -> Rows:
    """sum w left right' over the rows."""
    return [
        [sum(w * a[i] * b[j] for w, a, b in zip(share, left, right, strict=True)) for j in range(len(right[0]))]
        for i in range(len(left[0]))
    ]


def _dot(a: Sequence[float], b: Sequence[float]) -> float:
    return sum(x * y for x, y in zip(a, b, strict=True))
