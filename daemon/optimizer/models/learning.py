"""A prior from runs: the normal distribution that makes everything measured of them most likely (empirical Bayes).

Expectation-maximisation: each run is fitted under the present prior; mean, covariance and the line through x are then
those of the fits, each with its own uncertainty added (Laplace's approximation). A run that showed one size only moves
what one size tells, and leaves the rest as it was believed: short histories are safe.
Promise: a proper prior from any runs, however few or contradictory. Limit: runs of one program count as independent;
the share of communication in their steps is left out (with it the error after one report on one GPU was 2 points more).
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ..errors import PlanInputError
from .observation import Observation
from .prior import ASSUMED, Prior, as_tuples
from .step_time import Array, N
from .throughput import ThroughputModel, fit_many

ROUNDS = 6
BASE_COUNTS = 6.0
"""Runs that the belief to start from is worth."""
RIDGE = 0.1
"""Added to every variance: what seven numbers of a few programs cannot have shown."""
FEATURE_RIDGE = 0.1
Run = Sequence[Observation]


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
    share = np.array(weights) / sum(weights)
    kept = counts / (counts + sum(weights))
    prior = replace(base, runs=len(runs))
    steps = [[replace(o, comm_share=0.0) for o in run] for run in runs]
    for _ in range(ROUNDS):
        prior = _maximised(fit_many(steps, prior), share, base, kept)
    return prior


def _maximised(models: Sequence[ThroughputModel], share: Array, base: Prior, kept: float) -> Prior:
    """The prior of the fits' moments, with the share `kept` of the base in it."""
    theta, x = np.array([m.theta for m in models]), np.log([[m.scale_s, m.micro] for m in models])
    mean, at = share @ theta, share @ x
    far, off = theta - mean, x - at
    each = share[:, None]
    total = (far * each).T @ far + np.tensordot(share, [m.covariance for m in models], 1) + RIDGE * np.eye(N)
    features = (off * each).T @ off + FEATURE_RIDGE * np.eye(len(at))
    cross = (far * each).T @ off
    slope = np.linalg.solve(features, cross.T).T
    own = total - slope @ cross.T
    start = np.array(base.mean_for(*np.exp(at)))
    # How far x lies from its mean among the runs and those behind the base.
    variance = (1 - kept) * features.diagonal() + kept * (np.square(base.spread) + (base.at - at) ** 2)
    return replace(
        base,
        mean=as_tuples((1 - kept) * mean + kept * start),
        covariance=as_tuples((1 - kept) * (own + own.T) / 2 + kept * np.array(base.covariance)),
        slope=as_tuples((1 - kept) * slope + kept * np.array(base.slope)),
        at=as_tuples(at),
        spread=as_tuples(np.sqrt(variance)),
        line_share=(1 - kept) * float(share @ [m.line_share for m in models]) + kept * base.line_share,
        runs=len(models),
    )
