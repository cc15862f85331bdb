"""What is believed of a job before it is measured: mean and covariance of its step-time form's logarithms.

Scale free: times are divided by the job's own step time at its first measured micro batch, micro batches by that micro
batch. So profiles of other programs, other GPUs and other batch sizes speak about this one.
Limit: a normal distribution over logarithms; correlations are learned, several kinds of programs in one prior are not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from . import linear
from .errors import PlanInputError
from .step_form import N

FULL_SHARE, DIAGONAL_SHARE, RIDGE = 0.7, 0.3, 0.1
"""How a covariance from a few records is held together: 70 % as seen, 30 % its diagonal, plus 0.1."""
ASSUMED_COUNTS = 6
"""Records that the assumed prior is worth: two programs, each seen from three micro batches."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Normal over the seven coordinates, and the relative error that measurement and form together have."""

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    noise: float = 0.2
    """Relative 1-sigma of one observation of weight 1 about the form: the form's own error included."""
    records: int = 0
    """Programs it was learned from; 0: assumed."""


def _independent(mean: Sequence[float], deviation: Sequence[float]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(d * d if i == j else 0.0 for j in range(len(mean))) for i, d in enumerate(deviation))


_MEAN = (-1.2, -0.5, -3.0, -5.3, -1.0, -4.3, -1.5)
ASSUMED = Prior(_MEAN, _independent(_MEAN, (0.8, 0.5, 1.2, 1.5, 1.2, 1.2, 1.0)))
"""Without any data: sync is 5 % of a step inside a node and a third of it between nodes."""


def learn(
    rows: Sequence[Sequence[float]],
    weights: Sequence[float] | None = None,
    noise: float = 0.2,
    toward: float | None = None,
) -> Prior:
    """A prior from the fitted coordinates of earlier programs (scale free, as `models.coordinates` gives them).

    `weights` count a record of the same cluster or the same program more. `toward`: the share of the assumed prior in
    it; None: as if that were six of the records, so a short history says little. PlanInputError on no rows.
    """
    if not rows:
        raise PlanInputError("a prior needs the coordinates of at least one program")
    toward = ASSUMED_COUNTS / (ASSUMED_COUNTS + len(rows)) if toward is None else toward
    share = [w / sum(weights) for w in weights] if weights else [1.0 / len(rows)] * len(rows)
    mean = [sum(s * row[i] for s, row in zip(share, rows, strict=True)) for i in range(N)]
    covariance = []
    for i in range(N):
        line = []
        for j in range(N):
            seen = sum(s * (r[i] - mean[i]) * (r[j] - mean[j]) for s, r in zip(share, rows, strict=True))
            own = seen * (FULL_SHARE + DIAGONAL_SHARE * (i == j)) + RIDGE * (i == j)
            line.append((1 - toward) * own + toward * ASSUMED.covariance[i][j])
        covariance.append(tuple(line))
    mean = [(1 - toward) * m + toward * a for m, a in zip(mean, ASSUMED.mean, strict=True)]
    return Prior(tuple(mean), tuple(covariance), noise, len(rows))


def precision(prior: Prior, scale_known: bool) -> list[list[float]]:
    """The inverse covariance. When the first size was not one GPU the scale itself is a guess: widen along it."""
    widen = 0.0 if scale_known else 0.25
    rows = [[c + (widen if i < 6 and j < 6 else 0.0) for j, c in enumerate(r)] for i, r in enumerate(prior.covariance)]
    return linear.inverse(rows)


RECORD = Prior(_MEAN, _independent(_MEAN, (1.0,) * N), 0.1)
"""Under which a whole profile is fitted before it is learned from: what a table does not show stays ordinary."""

DEFAULT = Prior(
    mean=(-1.13, -1.23, -1.99, -3.83, -0.79, -3.84, -2.19),
    covariance=(
        (1.51, -0.81, -0.11, 0.08, 0.21, 0.30, 0.21),
        (-0.81, 3.02, 0.15, -0.57, 0.09, -0.33, 0.05),
        (-0.11, 0.15, 1.51, 0.53, 0.32, 0.09, -0.44),
        (0.08, -0.57, 0.53, 2.63, 0.06, 0.61, -1.19),
        (0.21, 0.09, 0.32, 0.06, 0.96, 0.16, 0.11),
        (0.30, -0.33, 0.09, 0.61, 0.16, 0.99, -0.45),
        (0.21, 0.05, -0.44, -1.19, 0.11, -0.45, 3.67),
    ),
    records=36,
)
"""Learned from 36 public profiles (6 programs on T4, A100, RTX and DGX clusters; `bench_models.py --print-prior`)."""
