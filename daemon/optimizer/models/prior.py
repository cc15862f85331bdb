"""What is believed of a job before it is measured: mean and covariance of its step-time form's logarithms.

    theta ~ N(mean + slope (x - at), covariance)        x = (ln first step time in s, ln first micro batch)

Scale free: times are divided by the job's own step time at its first measured micro batch, micro batches by that micro
batch; x says how much of such a step is overhead and synchronisation rather than samples (a step of 5 ms is mostly
overhead, one of 5 s is not). So profiles of other programs, other GPUs and other batch sizes speak about this one.
Limit: a normal distribution over logarithms; several kinds of programs in one prior only widen it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any

import numpy as np

from ..errors import PlanInputError
from .step_time import Array, N

FEATURES = 2
REACH = 3.0
"""Standard deviations of x that the slope is followed for: further out nobody has seen how it goes on."""

LINE_SHARE = 1 / 3
"""What `line_share` is before anything was learned of it."""


@dataclass(frozen=True, slots=True)
class Prior:
    """Normal over the seven coordinates given x, and the relative error that measurement and form together have."""

    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]
    slope: tuple[tuple[float, float], ...] = ((0.0, 0.0),) * N
    at: tuple[float, float] = (0.0, 0.0)
    spread: tuple[float, float] = (1.0, 1.0)
    """Standard deviation of x among what this was learned from."""
    noise: float = 0.1
    """Relative 1-sigma of one observation of weight 1 about the form, inside a node: the form's own error included."""
    noise_apart: float = 0.2
    """The same on several nodes."""
    line_share: float = LINE_SHARE
    """How probable it is that a straight line in logarithms predicts a job better than the form with this prior."""
    runs: int = 0
    """What it was learned from; 0: assumed."""

    def __hash__(self) -> int:
        return hash((self.mean, self.runs))  # it is looked up under for each job, and has seventy numbers

    def mean_for(self, scale_s: float, micro: float) -> list[float]:
        """The mean for a job whose first step took `scale_s` seconds a micro batch of `micro` samples."""
        x = (math.log(scale_s), math.log(micro))
        off = [
            max(-REACH * s, min(REACH * s, value - centre))
            for value, centre, s in zip(x, self.at, self.spread, strict=True)
        ]
        return [m + row[0] * off[0] + row[1] * off[1] for m, row in zip(self.mean, self.slope, strict=True)]


@lru_cache(maxsize=1024)
def precision(prior: Prior, scale_known: bool) -> Array:
    """The inverse covariance. When the first size was not one GPU the scale itself is a guess: widen along it."""
    covariance = np.array(prior.covariance)
    if not scale_known:
        covariance[:6, :6] += 0.25
    inverse = np.linalg.inv(covariance)
    return (inverse + inverse.T) / 2


def from_plain(values: Mapping[str, Any]) -> Prior:
    """A stored prior: its fields by name, arrays as lists. Raises PlanInputError for anything that is not a prior.

    One that a release without straight lines has stored has none: it gets what is assumed of them.
    """
    try:
        values = {"line_share": LINE_SHARE, **values}
        prior = Prior(**{item.name: as_tuples(values[item.name]) for item in fields(Prior)})
        numbers = [*prior.mean, *prior.at, *prior.spread, prior.noise, prior.noise_apart]
        numbers += [x for row in (*prior.covariance, *prior.slope) for x in row]
        sizes = {len(prior.mean), len(prior.covariance), len(prior.slope), *map(len, prior.covariance)}
        if sizes != {N} or {*map(len, prior.slope), len(prior.at), len(prior.spread)} != {FEATURES}:
            raise ValueError("its shape is another version's")
        if not all(math.isfinite(x) for x in numbers) or min(*prior.spread, prior.noise, prior.noise_apart) <= 0:
            raise ValueError("it holds a number that is not finite or not positive")
        if not 0 < prior.line_share < 1:
            raise ValueError("its share of straight lines is not between 0 and 1")
        np.linalg.cholesky(prior.covariance)
    except (KeyError, TypeError, ValueError) as error:
        raise PlanInputError(f"a stored prior cannot be used: {type(error).__name__}: {error}") from None
    return prior


def as_tuples(value: Any) -> Any:
    """Lists, arrays and what is in them as tuples of plain numbers."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    return tuple(map(as_tuples, value)) if isinstance(value, (list, tuple)) else value


ASSUMED = Prior(
    mean=(-1.2, -0.5, -3.0, -5.3, -1.0, -4.3, -1.5),
    covariance=as_tuples(np.diag((0.8, 0.5, 1.2, 1.5, 1.2, 1.2, 1.0)) ** 2),
)
"""Without any data: sync is 5 % of a step inside a node and a third of it between nodes."""


DEFAULT = Prior(
    mean=(-1.358, -0.789, -1.508, -4.42, -1.001, -4.622, -2.031),
    covariance=(
        (0.66, -0.315, 0.169, 0.388, 0.103, 0.37, 0.207),
        (-0.315, 1.194, -0.04, -0.267, 0.186, -0.232, -0.685),
        (0.169, -0.04, 0.9, -0.272, 0.461, 0.217, 0.313),
        (0.388, -0.267, -0.272, 4.531, -0.066, 1.682, -1.508),
        (0.103, 0.186, 0.461, -0.066, 1.024, 0.342, -0.153),
        (0.37, -0.232, 0.217, 1.682, 0.342, 2.59, -1.236),
        (0.207, -0.685, 0.313, -1.508, -0.153, -1.236, 3.67),
    ),
    slope=(
        (-0.42, -0.165),
        (0.459, 0.101),
        (-0.314, -0.252),
        (-0.265, -0.285),
        (-0.426, -0.304),
        (-0.491, -0.261),
        (0.099, 0.095),
    ),
    at=(-1.702, 4.215),
    spread=(1.465, 2.316),
    noise=0.1,
    noise_apart=0.2,
    runs=170,
)
"""The normal distribution over what a step consists of that an unknown program starts from."""
