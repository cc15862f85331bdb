"""What a resize, a restart or a checkpoint costs: seconds against bytes, affine, from what was measured.

    y = (a + b x) (1 + e)      a: fixed seconds, b: seconds per MB, x: MB of state, e: relative noise

a and b are held at 0 or more, and are what is believed of them until something was measured: this is ridge regression
towards a prior, with weights that make errors relative (a pause of 0.2 s and a restart of 60 s speak alike) and let a
straggler count less (Huber). Affine costs beat a support vector machine where programs are left out (Li et al.,
"Characterizing and Modeling Distributed Training with Transient Cloud GPU Servers", ICDCS 2020, has the measurements).
Promise: positive and finite, whatever was measured. Limit: one line for all sizes of a job; no queue for the storage.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import PlanInputError

ROUNDS = 8
"""Of the reweighting: errors are relative to the prediction, which the fit makes."""
PRIOR_COUNTS = 2.0
"""Measurements that the prior's noise is worth."""
STRAGGLER = 2.0
"""Standard deviations beyond which a measurement counts less."""
LEAST_S = 1e-3
QUANTILE = 1.2816
"""Of the normal distribution, for an interval that covers 80 %."""
Line = tuple[float, float]
"""(a in s, b in s per MB)."""


@dataclass(frozen=True, slots=True)
class CostPrior:
    """What is believed before anything was measured."""

    fixed_s: float
    per_mb_s: float
    doubt: float = 1.0
    """Relative 1-sigma of the fixed seconds."""
    per_mb_doubt: float = 10.0
    """The same of the slope: networks and file systems differ by orders of magnitude."""
    noise: float = 0.3
    """Relative 1-sigma of one measurement."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """A cost with the interval that covers 80 %, in seconds."""

    seconds: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Make it with `fit`."""

    line: Line
    covariance: tuple[float, float, float]
    """Of (a, a), (a, b), (b, b)."""
    noise: float
    count: int
    """Measurements behind it."""

    def at(self, mb: float) -> Estimate:
        """The cost with so many MB of state, 0 or more."""
        seconds = max(LEAST_S, self.line[0] + self.line[1] * mb)
        aa, ab, bb = self.covariance
        spread = max(0.0, aa + 2 * ab * mb + bb * mb * mb) / seconds**2
        free = PRIOR_COUNTS + self.count
        # Student's quantile, to its first correction (Abramowitz & Stegun 26.7.5).
        reach = QUANTILE + (QUANTILE**3 + QUANTILE) / (4 * free)
        wide = math.exp(min(10.0, reach * math.sqrt(spread + self.noise**2)))
        return Estimate(seconds, seconds / wide, seconds * wide)


def fit(measured: Sequence[tuple[float, float]], prior: CostPrior) -> CostModel:
    """The line through (MB, seconds). Raises PlanInputError for a number that no measurement can be."""
    for mb, seconds in measured:
        if not (math.isfinite(mb) and mb >= 0 and math.isfinite(seconds) and seconds > 0):
            raise PlanInputError(f"a cost of {seconds} s at {mb} MB; accepted: positive seconds at 0 MB or more")
    believed = max(LEAST_S, prior.fixed_s), max(1e-9, prior.per_mb_s)
    ridge = 1.0 / (prior.doubt * believed[0]) ** 2, 1.0 / (prior.per_mb_doubt * believed[1]) ** 2
    noise, line = prior.noise, believed
    expected = [max(LEAST_S, seconds) for _, seconds in measured]
    errors = [0.0] * len(measured)
    covariance = (1 / ridge[0], 0.0, 1 / ridge[1])
    for _ in range(ROUNDS):
        weights = [
            min(1.0, STRAGGLER * noise / max(abs(error), 1e-9)) / (noise * size) ** 2
            for error, size in zip(errors, expected, strict=True)
        ]
        line, covariance = _ridge(measured, weights, believed, ridge)
        expected = [max(LEAST_S, line[0] + line[1] * mb) for mb, _ in measured]
        errors = [seconds / size - 1.0 for (_, seconds), size in zip(measured, expected, strict=True)]
        kept = [min(error * error, (STRAGGLER * noise) ** 2) for error in errors]
        noise = math.sqrt((PRIOR_COUNTS * prior.noise**2 + sum(kept)) / (PRIOR_COUNTS + len(kept)))
    return CostModel(line, covariance, noise, len(measured))


def _ridge(
    measured: Sequence[tuple[float, float]], weights: Sequence[float], believed: Line, ridge: Line
) -> tuple[Line, tuple[float, float, float]]:
    """Weighted least squares towards `believed`, neither below 0."""
    aa, ab, bb = ridge[0], 0.0, ridge[1]
    ya, yb = ridge[0] * believed[0], ridge[1] * believed[1]
    for (mb, seconds), weight in zip(measured, weights, strict=True):
        aa, ab, bb = aa + weight, ab + weight * mb, bb + weight * mb * mb
        ya, yb = ya + weight * seconds, yb + weight * mb * seconds
    whole = aa * bb - ab * ab
    a, b = (ya * bb - yb * ab) / whole, (yb * aa - ya * ab) / whole
    if a < 0:
        a, b = 0.0, max(0.0, yb / bb)
    elif b < 0:
        a, b = max(0.0, ya / aa), 0.0
    return (a, b), (bb / whole, -ab / whole, aa / whole)
