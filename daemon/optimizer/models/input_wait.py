"""What a step waits for its input: the loader of each GPU delivers at most so many samples a second.

    I = tau m A                      what a loader takes for one GPU's samples of a step, in s
    T = (B^p + I^p)^(1/p)            B: the step without the wait        p = 8 | 1

p = 8: loaders read ahead (Little's law: workers over the time of a sample is the most that they deliver), so the longer
of the two is what a step takes, and a little more where both are alike, for neither is even. p = 1: nothing is read
ahead, and each step waits for all of its samples. One report cannot tell which: 8 is taken until reports of several
sizes speak for 1. Promise: no report that waited, no term; reports that none tau explains (a file system or a node's
CPUs that all GPUs share) leave what is unexplained in the step, for form and residual. Limit: tau is the same at every
size until then; what a loader takes beside its samples, such as at the beginning of a pass, counts as samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .observation import Observation
from .step_time import Array, Number

LEAST = 0.02
"""Share of a step that loaders make it wait now and then, though they are fast enough: no sign of a shortage."""
AHEAD, AT_ONCE = 8.0, 1.0
"""p of loaders that read ahead, and of those that do not."""
ODDS = 4.0
"""How much more probable the former is before anything was measured."""
NOISE = 0.05
"""Relative 1-sigma of a measured step about this law."""
TOLERATED = 1.1
"""Times the law that a step may take until it counts as explained by something else."""
LARGEST_RATIO = 1e30
LARGEST_LOG = 300.0


class Input(NamedTuple):
    """Of one model."""

    seconds: float = 0.0
    """tau, of one sample on one GPU; 0: no wait was seen."""
    power: float = AHEAD

    def step_s(self, busy_s: float, samples: float) -> float:
        """T of a step that would take `busy_s` without its wait, with so many samples on each GPU."""
        return busy_s * self.longer(busy_s, samples)

    def longer(self, busy_s: float, samples: float) -> float:
        """T / B."""
        return float(longer(self.seconds * samples / busy_s, self.power)) if self.seconds else 1.0

    def busy_s(self, o: Observation) -> float:
        """B of a measured step: without the wait, as far as that is explained."""
        if not self.seconds:
            return o.step_time_s
        own = _busy_s(o)
        return own + max(0.0, o.step_time_s / TOLERATED - self.step_s(own, o.micro_batch * o.accumulation))


NONE = Input()


def longer(ratio: Number, power: Number) -> Number:
    """T / B, of I / B."""
    most, least = np.maximum(ratio, 1.0), np.minimum(ratio, 1.0)
    return most * (1.0 + (least / most) ** power) ** (1.0 / power)


def lengthened(log_busy: Array, slope: Array, needed: Array, power: Array) -> tuple[Array, Array]:
    """(ln T, its slope) of ln B and its slope, whose first axis is further coordinates; needed: I, in B's unit."""
    ratio = np.minimum(needed / np.exp(np.clip(log_busy, -LARGEST_LOG, LARGEST_LOG)), LARGEST_RATIO)
    return log_busy + np.log(longer(ratio, power)), slope / (1.0 + ratio**power)


def input_of(observations: Sequence[Observation]) -> Input:
    """The law that makes what was measured of one job most likely."""
    if not any(o.input_share > LEAST for o in observations):
        return NONE
    ahead, at_once = (_fitted(observations, power) for power in (AHEAD, AT_ONCE))
    return at_once[1] if ahead[0] - at_once[0] > 2.0 * math.log(ODDS) else ahead[1]


def _fitted(observations: Sequence[Observation], power: float) -> tuple[float, Input]:
    """(sum of the squared misses, in sigmas; the law) for one p."""
    logs = weights = 0.0
    for o in observations:
        if o.input_share > LEAST:
            # The less of a step is waiting, the less it says of how long the loader took.
            weight = (1.0 - (1.0 - o.input_share + LEAST) ** power) ** 2 * _weight(o)
            logs += weight * math.log(_needed_s(o, power, -LEAST))
            weights += weight
    most = min(TOLERATED * _needed_s(o, power, LEAST) for o in observations)  # one that waited less knows better
    found = Input(min(math.exp(logs / weights), most), power)
    off = (math.log(found.step_s(_busy_s(o), o.micro_batch * o.accumulation) / o.step_time_s) for o in observations)
    return sum(_weight(o) * (miss / NOISE) ** 2 for o, miss in zip(observations, off, strict=True)), found


def _needed_s(o: Observation, power: float, more: float) -> float:
    """tau by one report, had it waited for `more` of its step."""
    busy = max(0.0, 1.0 - o.input_share - more)
    return float(o.step_time_s * (1.0 - busy**power) ** (1.0 / power) / (o.micro_batch * o.accumulation))


def _busy_s(o: Observation) -> float:
    return o.step_time_s * (1.0 - o.input_share)


def _weight(o: Observation) -> float:
    return min(1.0, o.weight)
