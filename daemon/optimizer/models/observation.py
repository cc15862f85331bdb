"""What one configuration of a job was measured to do, which measurements can be believed, and what of a step is a wait
for input: the loader of each GPU delivers at most so many samples a second.

    I = tau m A                      what a loader takes for one GPU's samples of a step, in s
    T = (B^p + I^p)^(1/p)            B: the step without the wait        p = 8 | 1

p = 8: loaders read ahead (Little's law: workers over the time of a sample is the most that they deliver), so the longer
of the two is what a step takes, and a little more where both are alike, for neither is even. p = 1: nothing is read
ahead, and each step waits for all of its samples. One report cannot tell which: 8 is taken until reports of several
sizes speak for 1. Promise: no report that waited, no term; reports that none tau explains (a file system or a node's
CPUs that all GPUs share) leave what is unexplained in the step, for form and residual. Limit: each observation is
checked on its own; whether two contradict each other is left to the fit. tau is the same at every size until then; what
a loader takes beside its samples, such as at the beginning of a pass, counts as samples.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from slurm_elastic.protocol.records import record

from ..errors import PlanInputError
from .step_time import Array, Number

STEP_S = (1e-6, 1e7)
"""The shortest and the longest step that is believed: a microsecond, a hundred days."""
MOST_COMM = 0.99
"""Largest share of communication, and of waiting for input: a step computes something."""
MOST = 10**9
"""Most GPUs, nodes, samples, micro batches."""


@record(frozen=True, slots=True)
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
    comm_share: float = 0.0
    """Share of the step in which a GPU only waits for communication; 0: not measured. Of one GPU it means nothing."""
    input_share: float = 0.0
    """Share of the step in which a GPU only waits for its samples; 0: it did not, or that was not measured."""


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
    if not 0 <= o.comm_share <= MOST_COMM:
        raise PlanInputError(f"share {o.comm_share} of communication at {o.gpus} GPUs is not between 0 and {MOST_COMM}")
    if not 0 <= o.input_share <= MOST_COMM:
        raise PlanInputError(f"share {o.input_share} of input at {o.gpus} GPUs is not between 0 and {MOST_COMM}")
    check_size(o.gpus, o.nodes, o.batch)
    most = max(o.gpus, o.nodes, o.batch, o.micro_batch, o.accumulation)
    if most > MOST:
        raise PlanInputError(f"{most:.3g} GPUs, nodes or samples at {o.gpus:.3g} GPUs; accepted: at most {MOST:.0e}")


def check_size(gpus: int, nodes: int, batch: int) -> None:
    """PlanInputError for a configuration that no job can have."""
    if gpus < 1 or nodes < 1 or batch < 1:
        raise PlanInputError(f"{gpus} GPUs on {nodes} nodes at batch {batch}: all three must be 1 or more")
    if nodes > gpus:
        raise PlanInputError(f"{gpus} GPUs on {nodes} nodes: each node has at least one of a job's GPUs")


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
            weight = (1.0 - (1.0 - o.input_share + LEAST) ** power) ** 2 * _at_most_one(o)
            logs += weight * math.log(_needed_s(o, power, -LEAST))
            weights += weight
    most = min(TOLERATED * _needed_s(o, power, LEAST) for o in observations)  # one that waited less knows better
    found = Input(min(math.exp(logs / weights), most), power)
    off = (math.log(found.step_s(_busy_s(o), o.micro_batch * o.accumulation) / o.step_time_s) for o in observations)
    return sum(_at_most_one(o) * (miss / NOISE) ** 2 for o, miss in zip(observations, off, strict=True)), found


def _needed_s(o: Observation, power: float, more: float) -> float:
    """tau by one report, had it waited for `more` of its step."""
    busy = max(0.0, 1.0 - o.input_share - more)
    return float(o.step_time_s * (1.0 - busy**power) ** (1.0 / power) / (o.micro_batch * o.accumulation))


def _busy_s(o: Observation) -> float:
    return o.step_time_s * (1.0 - o.input_share)


def _at_most_one(o: Observation) -> float:
    return min(1.0, o.weight)
