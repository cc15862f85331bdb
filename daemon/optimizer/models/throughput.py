"""From a few noisy reports to a job's throughput at any size, with its uncertainty.

Promise: every prediction is positive and finite, one observation is enough, what was measured is predicted as measured,
and the answer depends on nothing but the observations and the prior. The step-time form is averaged with a straight
line, by how well each predicted the observations. Limit: the form's own error is about 7 % of measured profiles, and a
size on several nodes is little known until one such size was measured (`sigmas` says so). A step without its
communication is taken for that of one GPU, though GPUs of one node cost each other a little.

With one size known the prior fills the rest: no curve is linear, so ties between unmeasured jobs go to an even spread.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np

from slurm_elastic.protocol.records import record

from ..errors import PlanInputError
from . import fit as map_fit
from . import straight_line
from .fit import Point
from .observation import LARGEST_LOG, Input, Observation, check_size, checked, input_of, lengthened, longer
from .prior import DEFAULT, Prior, precision
from .residual import NOISE, Misses, factors_of, misses_of, variances_of
from .step_time import (
    Array,
    Configurations,
    N,
    Parameters,
    factor_array,
    log_step_time,
    of_points,
    overlapped,
    parameter_array,
    step_time,
    sync_time,
)

SHARE_NOISE = 0.1
"""Relative 1-sigma about a step of one GPU of the rest of a step without its communication: GPUs of one node cost each
other -8 to +20 % in measured tables."""


LEAST_COMPUTE = 0.01
"""Of a step without its wait for input."""


def scale_of(first: Observation, fed: Input) -> tuple[float, float]:
    """(seconds, micro batch) that a model's parameters are relative to."""
    return compute_s(first, fed.busy_s(first)) / first.accumulation, float(first.micro_batch)


def compute_s(o: Observation, busy_s: float) -> float:
    """Time of the step without exposed communication: about what one GPU takes for as many micro batches. busy_s: the
    step without its wait for input."""
    return max(LEAST_COMPUTE * busy_s, busy_s - o.step_time_s * o.comm_share) if o.gpus > 1 else busy_s


def scale_known(first: Observation) -> bool:
    """Whether the first observation says what one GPU takes."""
    return first.gpus == 1 or first.comm_share > 0


def points_of(
    observations: Sequence[Observation], prior: Prior, fed: Input
) -> tuple[list[Point], list[float], list[float]]:
    """The steps as they were measured without their wait for input, and of each whose communication was, the rest as a
    step of one GPU; the variance of each one's noise; and ln of the steps with the wait, relative to the scale.

    Not where a step of one GPU was measured at that micro batch: it says the same without what GPUs of one node cost
    each other.
    """
    scale, micro = scale_of(observations[0], fed)
    alone = {o.micro_batch for o in observations if o.gpus == 1}
    points, noise, whole = list[Point](), list[float](), list[float]()
    for o in observations:
        m, weight, busy_s = o.micro_batch / micro, weight_of(o, prior), fed.busy_s(o)
        points.append((o.gpus, o.nodes, m, o.accumulation, math.log(busy_s / scale), weight))
        whole.append(math.log(o.step_time_s / scale))
        noise.append(NOISE**2 / max(o.weight, 1e-9))
        if o.gpus > 1 and o.comm_share and o.micro_batch not in alone:
            rest = compute_s(o, busy_s)
            points.append((1, 1, m, o.accumulation, math.log(rest / scale), 1.0 / prior.noise**2))
            whole.append(math.log(fed.step_s(rest, o.micro_batch * o.accumulation) / scale))
            noise.append(SHARE_NOISE**2)
    return points, noise, whole


def weight_of(observation: Observation, prior: Prior) -> float:
    """1 / sigma^2: repeated measuring sharpens it, but never below half of the form's own error."""
    noise = prior.noise_apart if observation.nodes > 1 else prior.noise
    if observation.weight <= 1:
        return observation.weight / noise**2
    return 1.0 / (noise**2 * (0.25 + 0.75 / observation.weight))


@record(frozen=True, slots=True, eq=False)
class ThroughputModel:
    """Step time and throughput of one job at any size; make it with `fit`.

    One is equal to itself alone: it is looked up by thousands of jobs in every round.
    """

    theta: tuple[float, ...]
    covariance: Array
    """Of theta."""
    parameters: Parameters
    """The step-time form's, from theta."""
    scale_s: float
    """The step time that the parameters are relative to."""
    micro: float
    """The micro batch that the parameters are relative to."""
    micro_limit: int
    """Largest micro batch assumed to fit a GPU, of a job that accumulates; 0: none known."""
    gpus_per_node: int
    sizes_seen: tuple[int, ...]
    seen: tuple[tuple[int, int, float], ...]
    """(GPUs, nodes, sum of weights) of each placement measured."""
    line: straight_line.Line
    """The straight line's, in the same units."""
    line_share: float
    """What share of a prediction the straight line has, by how well it predicted the reports; 0 to 1."""
    misses: Misses
    """What form and line miss where it was measured."""
    fed: Input
    """What its input takes; form and line are those of a step that does not wait for it."""

    def step_time(self, gpus: int, nodes: int, batch: int) -> float:
        """Seconds of one optimizer step over `batch` samples on `gpus` GPUs of `nodes` nodes; positive and finite."""
        check_size(gpus, nodes, batch)
        micro, accumulation, formed_s, line = self._averaged(gpus, nodes, batch)
        missed = self.misses.factor(gpus, nodes, micro, accumulation, line)
        return formed_s * missed * self._longer(formed_s, line, batch / gpus)

    def input_share(self, gpus: int, nodes: int, batch: int) -> float:
        """Share of that step in which it waits for its input."""
        *_, formed_s, line = self._averaged(gpus, nodes, batch)
        return 1.0 - 1.0 / self._longer(formed_s, line, batch / gpus)

    def _averaged(self, gpus: int, nodes: int, batch: int) -> tuple[float, int, float, float]:
        """(micro batch relative to the model's, micro batches a step; form's part of the average in s, ln of line's)"""
        share = batch / gpus
        accumulation = max(1, math.ceil(share / self.micro_limit)) if self.micro_limit else 1
        micro = share / accumulation / self.micro
        formed = math.pow(step_time(self.parameters, gpus, nodes, micro, accumulation), 1.0 - self.line_share)
        line = self.line_share * straight_line.log_time(self.line, gpus, nodes, micro, accumulation)
        return micro, accumulation, self.scale_s * formed, line

    def _longer(self, formed_s: float, line: float, samples: float) -> float:
        """How many times longer the wait for so many samples on each GPU makes a step."""
        if not self.fed.seconds:
            return 1.0
        return self.fed.longer(formed_s * math.exp(max(-LARGEST_LOG, min(LARGEST_LOG, line))), samples)

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        return batch / self.step_time(gpus, nodes, batch)

    def throughputs(self, points: Sequence[tuple[int, int, int]]) -> list[float]:
        """Samples per second at each (GPUs, nodes, global batch)."""
        if not points:
            return []
        speeds: list[float] = throughputs_of([self], of_points(points))[0].tolist()
        return speeds

    def uncertainties(self, sizes: Sequence[tuple[int, int]]) -> list[float]:
        """Relative 1-sigma of the throughput at each (GPUs, nodes), at the micro batch first measured."""
        if not sizes:
            return []
        gpus, nodes = np.array(sizes, dtype=np.float64).T
        sigmas: list[float] = uncertainties_of([self], gpus, nodes, np.array([0, len(gpus)])).tolist()
        return sigmas

    def sigmas(self, points: Sequence[tuple[int, int, int]]) -> list[float]:
        """Relative 1-sigma of the throughput at each (GPUs, nodes, global batch): 1.28 of it either side of the
        logarithm hold 80 cases of 100."""
        if not points:
            return []
        gpus, nodes, batch = np.array(points, dtype=np.float64).T
        micro, steps = batch / gpus, np.ones_like(gpus)
        if self.micro_limit:
            steps = np.maximum(1.0, np.ceil(micro / self.micro_limit))
        places = np.stack([gpus, nodes, micro / steps / self.micro, steps])
        sigmas: list[float] = _sigmas_of([self], places, np.array([0, len(gpus)])).tolist()
        return sigmas

    @property
    def form(self) -> Literal["step time", "straight line"]:
        """Which of the two has the larger share of a prediction."""
        return "straight line" if self.line_share > 0.5 else "step time"

    @property
    def jitter(self) -> float:
        """Relative 1-sigma by which a curve refitted from as many new reports would differ, where it was measured."""
        total = sum(weight for _, _, weight in self.seen)
        return max(0.002, min(0.015, 0.015 / math.sqrt(1.0 + total)))


def throughputs_of(models: Sequence[ThroughputModel], at: Configurations) -> Array:
    """Samples per second of each model at its own configurations: batch x size."""
    own = np.array(
        [(*m.parameters, m.scale_s, m.micro, m.micro_limit, m.line_share, *m.line, *m.fed) for m in models]
    ).T
    own[1] /= own[8]  # time a sample, from time a micro batch of the first size measured
    own[11] -= own[12] * straight_line.log(own[8])
    own[11:15] *= own[10]
    of_size = own.repeat(at.sizes[1:] - at.sizes[:-1], axis=1)
    alpha, beta, gamma, scale, limit, share = of_size[[0, 1, 6, 7, 9, 10]]
    micro, accumulation = at.batch / at.gpus, 1.0
    if own[9].any():
        accumulation = np.maximum(1.0, np.ceil(micro / np.where(limit > 0, limit, np.inf)))
        micro /= accumulation
    more = _lined(of_size[11:15], at, micro)
    if np.ndim(accumulation):
        more += share * straight_line.log(accumulation)
    waits = np.flatnonzero(of_size[15]) if own[15].any() else ()
    lined = np.exp(np.clip(more[:, waits], -LARGEST_LOG, LARGEST_LOG)) if len(waits) else 1.0
    factors = factors_of([m.misses for m in models], at, micro, accumulation, own[8], more)
    micro *= beta
    micro += alpha
    times = overlapped(micro, sync_time(of_size, at.gpus, at.nodes) ** gamma, gamma, accumulation, 1.0 - share)
    times *= scale
    if len(waits):
        needed = of_size[15, waits] * at.batch[:, waits] / at.gpus[waits]
        factors[:, waits] *= longer(needed / (times[:, waits] * lined), of_size[16, waits])
    times *= factors
    return np.divide(at.batch, times, out=times)


def _lined(line: Array, at: Configurations, micro: Array) -> Array:
    """The straight line at each configuration, batch x size, for one micro batch a step."""
    a, b, c, d = line
    lined = straight_line.log(micro)
    lined *= b
    lined += a + c * straight_line.log(at.gpus) + d * ((at.gpus > 1) & (at.nodes > 1))
    return lined


def uncertainties_of(models: Sequence[ThroughputModel], gpus: Array, nodes: Array, ends: Array) -> Array:
    """Relative 1-sigma of each model's throughput at its own sizes, those from one of `ends` to the next, at the micro
    batch first measured."""
    one = np.ones_like(gpus)
    return _sigmas_of(models, np.stack([gpus, nodes, one, one]), ends)


def _sigmas_of(models: Sequence[ThroughputModel], places: Array, ends: Array) -> Array:
    """The same at (GPUs, nodes, micro batch relative to the model's, micro batches a step), 4 x configurations."""
    lengths = ends[1:] - ends[:-1]
    own = np.array([(*m.parameters, *m.line) for m in models]).T.repeat(lengths, axis=1)
    formed, slope = log_step_time(own[:N], factor_array(*places[:3]), places[3])
    slope = np.concatenate([slope, straight_line.gap(own[N:], places, formed)[None]])
    fed = np.array([(m.fed.seconds * m.micro / m.scale_s, m.fed.power, m.line_share) for m in models]).T
    if fed[0].any():
        seconds, power, share = fed.repeat(lengths, axis=1)
        averaged = formed + share * slope[N]
        slope = lengthened(averaged, slope, seconds * places[2] * places[3], power)[1]
    rows, column = np.arange(len(models)).repeat(lengths), np.arange(places.shape[1]) - ends[:-1].repeat(lengths)
    each = np.zeros((len(models), N + 1, int(lengths.max(initial=0))))  # one product for each model
    theirs = np.ones((4, len(models), each.shape[2]))
    each[rows, :, column], theirs[:, rows, column] = slope.T, places
    share = np.array([m.line_share for m in models])
    covariance = np.array([m.covariance for m in models])
    variances = variances_of([m.misses for m in models], theirs, each, covariance, share * (1.0 - share))
    return np.sqrt(variances[rows, column])


def fit(observations: Sequence[Observation], prior: Prior | None = None) -> ThroughputModel:
    """The model that the observations and the prior make most likely; one observation is enough.

    Raises PlanInputError for no observations, or one that is not a number or not a size.
    """
    return fit_many([observations], prior)[0]


@lru_cache(maxsize=256)
def unmeasured(prior: Prior) -> ThroughputModel:
    """The model of a job that was never measured: a program in the middle of what the prior was learned from. Its
    speedups mean something, its samples per second nothing. The same object for the same prior."""
    seconds, micro = math.exp(prior.at[0]), max(1, round(math.exp(prior.at[1])))
    return fit([Observation(1, 1, micro, micro, 1, seconds, LITTLE)], prior)


LITTLE = 0.01
"""The weight of a report that was never made."""


def fit_many(
    jobs: Sequence[Sequence[Observation]], priors: Prior | Sequence[Prior] | None = None
) -> list[ThroughputModel]:
    """`fit` for many jobs at once, which costs each a tenth of what it costs alone."""
    if not jobs:
        return []
    each = [priors or DEFAULT] * len(jobs) if priors is None or isinstance(priors, Prior) else priors
    measured = [checked(rows) for rows in jobs]
    inputs = [input_of(rows) for rows in measured]
    taken = [points_of(*one) for one in zip(measured, each, inputs, strict=True)]
    points = [own for own, _, _ in taken]
    means = [prior.mean_for(*scale_of(rows[0], fed)) for prior, rows, fed in zip(each, measured, inputs, strict=True)]
    precisions = [precision(prior, scale_known(rows[0])) for prior, rows in zip(each, measured, strict=True)]
    columns = map_fit.columns_of(points)
    theta, covariance, form = map_fit.fit(columns, np.array(means), np.array(precisions))
    lines, line = straight_line.fit(columns)
    shares = straight_line.shares(np.array([prior.line_share for prior in each]), line, form)
    fed = [
        (own.seconds * rows[0].micro_batch / scale_of(rows[0], own)[0], own.power)
        for own, rows in zip(inputs, measured, strict=True)
    ]
    kept = misses_of(taken, fed, theta, (lines, shares), each)
    forms = [Parameters(*row) for row in parameter_array(theta.T).T.tolist()]
    thetas = zip(theta.tolist(), forms, covariance, strict=True)
    found = zip(measured, thetas, lines.tolist(), shares.tolist(), kept, inputs, strict=True)
    return [_model(*one) for one in found]


def fit_each(jobs: Sequence[Sequence[Observation]], priors: Sequence[Prior]) -> list[ThroughputModel | PlanInputError]:
    """`fit_many`, where a job of which no model can be made has the error, and keeps no other from its own."""
    try:
        return [_finite(model) for model in fit_many(jobs, priors)]
    except (PlanInputError, ArithmeticError, ValueError) as error:
        if len(jobs) == 1:
            return [error if isinstance(error, PlanInputError) else PlanInputError(f"{type(error).__name__}: {error}")]
    return [fit_each([rows], [prior])[0] for rows, prior in zip(jobs, priors, strict=True)]


def _finite(model: ThroughputModel) -> ThroughputModel | PlanInputError:
    if all(map(math.isfinite, model.theta)) and np.isfinite(model.covariance).all():
        return model
    return PlanInputError("the fit did not come to finite numbers")


def _model(
    observations: Sequence[Observation],
    form: tuple[list[float], Parameters, Array],
    line: list[float],
    share: float,
    kept: Misses,
    fed: Input,
) -> ThroughputModel:
    """The model of a finished fit."""
    (theta, formed, covariance), (scale, micro) = form, scale_of(observations[0], fed)
    accumulates = any(o.accumulation > 1 for o in observations)
    seen = dict[tuple[int, int], float]()
    for o in observations:
        seen[o.gpus, o.nodes] = seen.get((o.gpus, o.nodes), 0.0) + o.weight
    return ThroughputModel(
        theta=tuple(theta),
        covariance=covariance.copy(),  # the models of one fit end at different times
        parameters=formed,
        scale_s=scale,
        micro=micro,
        micro_limit=max(o.micro_batch for o in observations) if accumulates else 0,
        gpus_per_node=max(-(-o.gpus // o.nodes) for o in observations),
        sizes_seen=tuple(sorted({o.gpus for o in observations})),
        seen=tuple((gpus, nodes, total) for (gpus, nodes), total in sorted(seen.items())),
        line=(line[0], line[1], line[2], line[3]),
        line_share=share,
        misses=kept,
        fed=fed,
    )
