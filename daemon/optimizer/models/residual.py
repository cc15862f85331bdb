"""What was measured is kept as measured: what form and line miss where a job reported, believed less the further away.

    ln T = ln formed + c      c = sigma(x) sum_j near(x, j) sigma_j (W r)_j      r = ln measured - ln formed
    W = (K + noise)^-1      K_ij = sigma_i sigma_j near(i, j)
    near: the smaller number of GPUs over the larger, times the same of the micro batches, times the same of the micro
    batches a step; half of that between one node and several

A Gaussian process with an exponential covariance in logarithms: between two measured sizes the miss is interpolated in
ln k, and a factor of two outside halves it. Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning",
2006, chapters 2 and 4. Promise: where a job reported, the prediction is nine tenths what was measured, and more with
each further report. Limit: of the `MOST` configurations reported most; a curve falls where the reports do.
"""

import math
from collections.abc import Sequence

import numpy as np

from slurm_elastic.protocol.records import record

from . import straight_line
from .fit import Point
from .observation import lengthened
from .prior import Prior
from .step_time import Array, Configurations, N, Number, factor_array, log_step_time, parameter_array

NOISE = 0.03
"""Relative 1-sigma of the median step time that a report of weight 1 brings."""
VARIANCE = (1e-5, 1e4)
"""Least and largest variance of a point's noise, whatever its weight: matrices stay invertible."""
ACROSS = 0.5
"""What a miss inside a node says of several nodes, and the other way round."""
LARGEST = 40.0
"""Largest logarithm of a miss that is believed."""
MOST = 32


@record(frozen=True, slots=True, eq=False)
class Misses:
    """Of one model at its n points."""

    at: Array
    """5 x n: sigma W r, GPUs, whether on several nodes, micro batch relative to the model's, micro batches a step."""
    inside: float
    """1-sigma of what the form misses inside a node."""
    apart: float
    """The same on several nodes."""
    weight: Array
    """sigma W sigma, n x n."""
    lean: Array
    """J W sigma, 8 x n: near what was measured, the prediction follows the coordinates less, and the line no more than
    the form. J: the slope of ln form in the seven coordinates, and ln line - ln form."""

    def factor(self, gpus: float, nodes: float, micro: float, accumulation: float, more: float = 0.0) -> float:
        """Measured over formed step time at one configuration, times e^more; positive and finite."""
        several, miss = gpus > 1 and nodes > 1, 0.0
        for pull, k, spread, m, steps in self.at.T.tolist():
            close = min(k / gpus, gpus / k) * min(m / micro, micro / m)
            close *= min(steps / accumulation, accumulation / steps)
            miss += pull * (close if several == spread else ACROSS * close)
        miss = more + miss * (self.apart if several else self.inside)
        return math.exp(max(-LARGEST, min(LARGEST, miss)))


def misses_of(
    taken: Sequence[tuple[Sequence[Point], Sequence[float], Sequence[float]]],
    fed: Sequence[tuple[float, float]],
    theta: Array,
    lines: tuple[Array, Array],
    priors: Sequence[Prior],
) -> list[Misses]:
    """What each model misses at its points, computed together for those of as many points. `taken`: as points_of;
    `fed`: what the input takes for a sample, relative to the model's units, and its power."""
    points, noise, whole = zip(*taken, strict=True)
    found: dict[int, Misses] = {}
    alike: dict[int, list[int]] = {}
    for i, rows in enumerate(points):
        alike.setdefault(min(MOST, len(rows)), []).append(i)
    for count, members in alike.items():
        best = [sorted(range(len(noise[i])), key=noise[i].__getitem__)[:count] for i in members]
        at = np.array([[points[i][j] for j in own] for i, own in zip(members, best, strict=True)]).transpose(0, 2, 1)
        unsure = np.array([[noise[i][j] for j in own] for i, own in zip(members, best, strict=True)])
        seen = np.array([[whole[i][j] for j in own] for i, own in zip(members, best, strict=True)])
        sigmas = [(priors[i].noise, priors[i].noise_apart) for i in members]
        own_lines = lines[0][members], lines[1][members]
        seconds, power = np.array([fed[i] for i in members]).T
        needed = (seconds[:, None] * at[:, 2] * at[:, 3], power) if seconds.any() else None
        found |= zip(members, misses(at[:, :4], seen, unsure, theta[members], own_lines, sigmas, needed), strict=True)
    return [found[i] for i in range(len(points))]


def misses(
    at: Array,
    seen: Array,
    noise: Array,
    theta: Array,
    lines: tuple[Array, Array],
    sigmas: Sequence[tuple[float, float]],
    fed: tuple[Array, Array] | None = None,
) -> list[Misses]:
    """Those of many models with as many points each.

    `at`: models x 4 x n, of each point GPUs, nodes, micro batch, micro batches a step. `seen`, `noise`: models x n, ln
    of the step time relative to the scale, and the variance of its noise. `theta`: models x 7. `lines`: the straight
    lines, models x 4, and their shares. `sigmas`: inside, apart. `fed`: what the input takes at each point, models x n,
    and its power, if any waits for it.
    """
    gpus, nodes, micro, steps = columns = at.transpose(1, 2, 0)  # each: point x model
    formed, slope = log_step_time(parameter_array(theta.T[:, None]), factor_array(gpus, nodes, micro), steps)
    gap = straight_line.gap(lines[0].T[:, None], columns, formed)
    formed, slope = formed + lines[1] * gap, np.concatenate([slope, gap[None]])
    if fed is not None:
        formed, slope = lengthened(formed, slope, fed[0].T, fed[1])
    several = ((gpus > 1) & (nodes > 1)).T
    inside, apart = np.array(sigmas).T
    sigma = np.where(several, apart[:, None], inside[:, None])
    gpus, _, micro, steps = (column.T for column in columns)
    close = _alike(several[:, :, None], several[:, None])
    for column in (gpus, micro, steps):
        close = close * _ratio(column[:, :, None], column[:, None])
    own = np.minimum(np.maximum(noise, VARIANCE[0]), VARIANCE[1])
    inverse = np.linalg.inv(close * sigma[:, :, None] * sigma[:, None] + own[:, :, None] * np.eye(own.shape[1]))
    weight = (inverse + inverse.swapaxes(1, 2)) / 2 * sigma[:, :, None]
    pull = (weight @ (seen - formed.T)[..., None])[..., 0]
    lean = slope.transpose(2, 0, 1) @ weight.swapaxes(1, 2)
    places = np.stack([pull, gpus, several, micro, steps], 1)
    return [
        Misses(place, *both, w * spread, turned)
        for place, both, w, spread, turned in zip(places, sigmas, weight, sigma, lean, strict=True)
    ]


def factors_of(
    each: Sequence[Misses], at: Configurations, micro: Array, accumulation: Number, unit: Array, more: Array
) -> Array:
    """`factor` of each model at its own configurations, batch x size, in place of `more`; `micro`: in samples, `unit`:
    the micro batch that each model's are relative to; `accumulation` may be 1 for all."""
    lengths, several = at.sizes[1:] - at.sizes[:-1], (at.gpus > 1) & (at.nodes > 1)
    sigma, miss = np.where(several, *_sigmas(each).T.repeat(lengths, axis=1)), more
    for point in _stacked(each):  # each: of the models, at their first point, second, ...
        point[3] *= unit
        pull, k, spread, m, steps = point.repeat(lengths, axis=1)
        close = _ratio(micro, m)
        close *= pull * sigma * _ratio(at.gpus, k) * _alike(several, spread)
        if np.ndim(accumulation):
            close *= _ratio(accumulation, steps)
        miss += close
    np.clip(miss, -LARGEST, LARGEST, out=miss)
    return np.exp(miss, out=miss)


def variances_of(each: Sequence[Misses], places: Array, slope: Array, covariance: Array, apart: Array) -> Array:
    """Of ln T, models x configurations: of what form and line miss there, of the coordinates, and of which is right.

    `places`: 4 x models x configurations (GPUs, nodes, micro batch, micro batches a step); `slope`: J there, models x 8
    x configurations; `covariance`: of the coordinates, models x 7 x 7; `apart`: w (1 - w) of each model.
    """
    gpus, nodes, micro, steps = places
    several = (gpus > 1) & (nodes > 1)
    sigma = np.where(several, *_sigmas(each).T[:, :, None])
    close = np.stack([
        sigma * _alike(several, spread[:, None]) * _ratio(gpus, k[:, None]) * _ratio(micro, m[:, None])
        * _ratio(steps, a[:, None])
        for _, k, spread, m, a in _stacked(each)
    ], 1)  # fmt: skip
    count = close.shape[1]
    weight, lean = np.zeros((len(each), count, count)), np.zeros((len(each), N + 1, count))
    for i, own in enumerate(each):
        n = own.at.shape[1]
        weight[i, :n, :n], lean[i, :, :n] = own.weight, own.lean
    unknown = sigma**2 - (close * (weight @ close)).sum(1)
    left = slope - lean @ close
    own, gap = left[:, :N], left[:, N]
    return np.maximum(0.0, unknown) + np.maximum(0.0, (own * (covariance @ own)).sum(1)) + apart[:, None] * gap**2


def _stacked(each: Sequence[Misses]) -> Array:
    """n x 5 x models, as many points as the one with most has; the others' are filled up with points that pull not."""
    lengths = np.array([own.at.shape[1] for own in each])
    out = np.ones((int(lengths.max()), 5, len(each)))
    out[:, 0] = 0.0
    starts = np.cumsum(lengths) - lengths
    point = np.arange(int(lengths.sum())) - starts.repeat(lengths)
    out[point, :, np.arange(len(each)).repeat(lengths)] = np.concatenate([own.at for own in each], axis=1).T
    return out


def _sigmas(each: Sequence[Misses]) -> Array:
    """(on several nodes, inside one) of each model."""
    return np.array([(own.apart, own.inside) for own in each])


def _ratio(a: Number, b: Number) -> Array:
    """The smaller over the larger."""
    ratio = a / b
    return np.minimum(ratio, 1.0 / ratio)


def _alike(a: Array, b: Array) -> Array:
    return np.where(a == b, 1.0, ACROSS)
