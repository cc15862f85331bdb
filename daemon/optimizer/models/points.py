"""What a fit takes of a job's observations: points relative to its first step, each with a weight.

Limit: a step without its communication is taken for that of one GPU, though GPUs of one node cost each other a little.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .fit import Point
from .input_wait import Input
from .observation import Observation
from .prior import Prior
from .residual import NOISE

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
