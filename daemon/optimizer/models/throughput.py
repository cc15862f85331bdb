"""From a few noisy reports to a job's throughput at any size, with its uncertainty.

Promise: every prediction is positive and finite, one observation is enough, and the answer depends on nothing but the
observations and the prior. Limit: the step-time form's own error is about 8 % of measured profiles, and a size on
several nodes is little known until one such size was measured (`uncertainty` says so).

With one size known the prior fills the rest: no curve is linear, so ties between unmeasured jobs go to an even spread.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, product

from ..errors import PlanInputError
from . import fit_plain
from .fit_plain import Point
from .prior import Prior, precision
from .shipped_prior import DEFAULT
from .step_time import log_step_time, step_time

STEP_S = (1e-6, 1e7)
"""The shortest and the longest step that is believed: a microsecond, a hundred days."""
MOST = 10**9
"""Most GPUs, nodes, samples, micro batches."""
FORM_ERROR = 0.08
"""Relative error of the form itself at a placement that was not measured (median over measured profiles)."""


@dataclass(frozen=True, slots=True)
class Observation:
    """What one configuration was measured to do."""

    gpus: int
    nodes: int
    batch: int
    """Global batch, in samples."""
    micro_batch: int
    """Samples per GPU and micro batch."""
    accumulation: int
    """Micro batches per optimizer step, 1 or more."""
    step_time_s: float
    """Median time of one optimizer step over the global batch."""
    weight: float = 1.0
    """1: a median over a few dozen steps; more for more."""


@dataclass(frozen=True, slots=True, eq=False)
class ThroughputModel:
    """Step time and throughput of one job at any size; make it with `fit`.

    One is equal to itself alone: it is looked up by thousands of jobs in every round.
    """

    theta: tuple[float, ...]
    covariance: array[float]
    """Of theta, row by row."""
    scale_s: float
    """The step time that the coordinates are relative to."""
    micro: float
    """The micro batch that the coordinates are relative to."""
    micro_limit: int
    """Largest micro batch assumed to fit a GPU; 0: none known."""
    gpus_per_node: int
    observations: int
    sizes_seen: tuple[int, ...]
    seen: tuple[tuple[int, int, float], ...]
    """(GPUs, nodes, sum of weights) of each placement measured."""

    def step_time(self, gpus: int, nodes: int, batch: int, micro_batch: int | None = None) -> float:
        """Seconds of one optimizer step over `batch` samples on `gpus` GPUs of `nodes` nodes; positive and finite.

        `micro_batch`: the largest that fits a GPU; None: what was seen (a job that accumulates goes on to).
        """
        _check_size(gpus, nodes, batch)
        micro, accumulation = self._split(gpus, batch, micro_batch)
        return self.scale_s * step_time(self.theta, gpus, nodes, micro / self.micro, accumulation)

    def throughput(self, gpus: int, nodes: int, batch: int, micro_batch: int | None = None) -> float:
        """Samples per second."""
        return batch / self.step_time(gpus, nodes, batch, micro_batch)

    def uncertainty(self, gpus: int, nodes: int | None = None) -> float:
        """Relative 1-sigma of the throughput at this size, at the micro batch first measured."""
        nodes = nodes or max(1, -(-gpus // self.gpus_per_node))
        _, slope = log_step_time(self.theta, gpus, nodes, 1.0, 1.0)
        spread = sum(a * b * c for (a, b), c in zip(product(slope, repeat=2), self.covariance, strict=True))
        measured = any((k, n) == (gpus, nodes) for k, n, _ in self.seen)
        return math.sqrt(max(0.0, float(spread)) + (0.0 if measured else FORM_ERROR**2))

    @property
    def jitter(self) -> float:
        """Relative 1-sigma by which a curve refitted from as many new reports would differ, where it was measured."""
        total = sum(weight for _, _, weight in self.seen)
        return max(0.002, min(0.015, 0.015 / math.sqrt(1.0 + total)))

    def _split(self, gpus: int, batch: int, micro_batch: int | None) -> tuple[float, float]:
        """(micro batch, micro batches per step) of the slice of one GPU."""
        limit = micro_batch if micro_batch is not None else self.micro_limit
        slice_ = batch / gpus
        accumulation = max(1, math.ceil(slice_ / limit)) if limit and limit > 0 else 1
        return slice_ / accumulation, float(accumulation)


def fit(observations: Sequence[Observation], prior: Prior | None = None) -> ThroughputModel:
    """The model that the observations and the prior make most likely; one observation is enough.

    Raises PlanInputError for no observations, or one that is not a number or not a size.
    """
    prior = prior or DEFAULT
    observations = checked(observations)
    points, scale, micro = prepared(observations, prior)
    theta, covariance = fit_plain.fit(points, prior.mean_for(scale, micro), precision(prior, observations[0].gpus == 1))
    return assembled(observations, scale, micro, theta, covariance)


def fit_many(
    jobs: Sequence[Sequence[Observation]], priors: Prior | Sequence[Prior] | None = None
) -> list[ThroughputModel]:
    """`fit` for many jobs at once: vectorised where numpy is there, one by one where it is not."""
    if not jobs:
        return []
    each = [priors or DEFAULT] * len(jobs) if priors is None or isinstance(priors, Prior) else list(priors)
    try:
        from . import fit_numpy
    except ImportError:
        return [fit(rows, prior) for rows, prior in zip(jobs, each, strict=True)]
    sets = [checked(rows) for rows in jobs]
    ready = [prepared(rows, prior) for rows, prior in zip(sets, each, strict=True)]
    means = [prior.mean_for(scale, micro) for prior, (_, scale, micro) in zip(each, ready, strict=True)]
    precisions = [precision(prior, rows[0].gpus == 1) for prior, rows in zip(each, sets, strict=True)]
    thetas, covariances = fit_numpy.fit([r[0] for r in ready], means, precisions)
    return [
        assembled(rows, scale, micro, theta, covariance)
        for rows, (_, scale, micro), theta, covariance in zip(sets, ready, thetas, covariances, strict=True)
    ]


def fit_each(jobs: Sequence[Sequence[Observation]], priors: Sequence[Prior]) -> list[ThroughputModel | PlanInputError]:
    """`fit_many`, with the error in the place of a model that cannot be made: the others are made all the same."""
    try:
        return [_finite(model) for model in fit_many(jobs, priors)]
    except (PlanInputError, ArithmeticError, ValueError) as error:
        if len(jobs) == 1:
            return [error if isinstance(error, PlanInputError) else PlanInputError(f"{type(error).__name__}: {error}")]
    return [fit_each([rows], [prior])[0] for rows, prior in zip(jobs, priors, strict=True)]


def _finite(model: ThroughputModel) -> ThroughputModel | PlanInputError:
    if all(map(math.isfinite, chain(model.theta, model.covariance))):
        return model
    return PlanInputError("the fit did not come to finite numbers")


def checked(observations: Sequence[Observation]) -> list[Observation]:
    """The observations, fewest GPUs first; PlanInputError for one that cannot be."""
    if not observations:
        raise PlanInputError("a throughput model needs at least one observation")
    for o in observations:
        _check(o)
    return sorted(observations, key=lambda o: (o.gpus, o.nodes, o.micro_batch))


def _check(o: Observation) -> None:
    if not (math.isfinite(o.step_time_s) and o.step_time_s > 0):
        raise PlanInputError(f"step time {o.step_time_s} s at {o.gpus} GPUs is not a positive number")
    if not STEP_S[0] <= o.step_time_s <= STEP_S[1]:
        raise PlanInputError(
            f"step time {o.step_time_s:g} s at {o.gpus} GPUs is not between {STEP_S[0]} and {STEP_S[1]:g}"
        )
    if not (math.isfinite(o.weight) and o.weight > 0):
        raise PlanInputError(f"weight {o.weight} of the observation at {o.gpus} GPUs is not a positive number")
    if o.micro_batch < 1 or o.accumulation < 1:
        raise PlanInputError(f"micro batch {o.micro_batch} x {o.accumulation} at {o.gpus} GPUs: both are 1 or more")
    _check_size(o.gpus, o.nodes, o.batch)
    most = max(o.gpus, o.nodes, o.batch, o.micro_batch, o.accumulation)
    if most > MOST:
        raise PlanInputError(f"{most:.3g} GPUs, nodes or samples at {o.gpus:.3g} GPUs; accepted: at most {MOST:.0e}")


def prepared(observations: Sequence[Observation], prior: Prior) -> tuple[list[Point], float, float]:
    """(points for the fit, scale in s, micro batch they are relative to)."""
    first = observations[0]
    scale, micro = first.step_time_s / first.accumulation, float(first.micro_batch)
    points = list[Point]()
    for o in observations:
        seen = math.log(o.step_time_s / scale)
        points.append((o.gpus, o.nodes, o.micro_batch / micro, float(o.accumulation), seen, weight(o, prior)))
    return points, scale, micro


def weight(observation: Observation, prior: Prior) -> float:
    """1 / sigma^2: repeated measuring sharpens it, but never below half of the form's own error."""
    noise = prior.noise_apart if observation.nodes > 1 else prior.noise
    if observation.weight <= 1:
        return observation.weight / noise**2
    return 1.0 / (noise**2 * (0.25 + 0.75 / observation.weight))


def assembled(
    observations: Sequence[Observation],
    scale: float,
    micro: float,
    theta: Sequence[float],
    covariance: Sequence[Sequence[float]],
) -> ThroughputModel:
    """The model of a finished fit."""
    accumulates = any(o.accumulation > 1 for o in observations)
    seen = dict[tuple[int, int], float]()
    for o in observations:
        seen[o.gpus, o.nodes] = seen.get((o.gpus, o.nodes), 0.0) + o.weight
    return ThroughputModel(
        theta=tuple(theta),
        covariance=array("d", chain.from_iterable(covariance)),
        scale_s=scale,
        micro=micro,
        micro_limit=max(o.micro_batch for o in observations) if accumulates else 0,
        gpus_per_node=max(-(-o.gpus // o.nodes) for o in observations),
        observations=len(observations),
        sizes_seen=tuple(sorted({o.gpus for o in observations})),
        seen=tuple((gpus, nodes, total) for (gpus, nodes), total in sorted(seen.items())),
    )


def _check_size(gpus: int, nodes: int, batch: int) -> None:
    if gpus < 1 or nodes < 1 or batch < 1:
        raise PlanInputError(f"{gpus} GPUs on {nodes} nodes at batch {batch}: all three must be 1 or more")
