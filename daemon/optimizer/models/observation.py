"""What one configuration of a job was measured to do, and which measurements can be believed.

Limit: each is checked on its own; whether two contradict each other is left to the fit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import PlanInputError

STEP_S = (1e-6, 1e7)
"""The shortest and the longest step that is believed: a microsecond, a hundred days."""
MOST_COMM = 0.99
"""Largest share of communication, and of waiting for input: a step computes something."""
MOST = 10**9
"""Most GPUs, nodes, samples, micro batches."""


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
