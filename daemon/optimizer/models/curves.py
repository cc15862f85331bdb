"""A job's throughput at all its sizes and batches in one call, and how unsure the model is of its sizes. Pure.

Promise: equal to the model's own methods, to rounding. Limit: models of the step form only, and only where numpy is;
others are asked point by point.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .step_time import LARGEST_LOG, N, gamma_of
from .throughput import FORM_ERROR, ThroughputModel

try:  # an accelerator, never a need
    import numpy as np
except ImportError:  # pragma: no cover - the tests hide numpy from the callers instead
    np = None  # type: ignore[assignment]

Point = tuple[int, int, int]
"""(GPUs, nodes, global batch)"""
FEW = 12
"""Below so many points the calls into numpy cost more than they save."""


def throughputs(model: Any, points: Sequence[Point]) -> list[float]:
    """Samples per second at each point."""
    if np is None or len(points) < FEW or type(model) is not ThroughputModel:
        return [model.throughput(gpus, nodes, batch) for gpus, nodes, batch in points]
    gpus, nodes, batch = np.array(points, dtype=np.float64).T
    slices = batch / gpus
    steps = np.ones(len(points))
    if model.micro_limit > 0:
        steps = np.maximum(1.0, np.ceil(slices / model.micro_limit))
    compute, both = _parts(model, gpus, nodes, slices / steps / model.micro)
    out: list[float] = (batch / (model.scale_s * ((steps - 1.0) * compute + both))).tolist()
    return out


def _parts(model: ThroughputModel, gpus: Any, nodes: Any, micro: Any) -> tuple[Any, Any]:
    """(compute of a micro batch, the same with its synchronisation), in units of the model's scale."""
    e = np.exp(np.clip(model.theta[:6], -LARGEST_LOG, LARGEST_LOG))
    compute = e[0] + e[1] * micro
    apart = nodes > 1
    sync = np.where(apart, e[4], e[2]) + np.where(apart, e[5], e[3]) * (gpus - 2.0)
    gamma = gamma_of(model.theta[6])
    top = np.maximum(compute, sync)
    low = np.maximum(np.minimum(compute, sync), 0.0)
    both = top * (1.0 + (low / top) ** gamma) ** (1.0 / gamma)
    return compute, np.where(gpus > 1, both, compute)


def uncertainties(model: Any, sizes: Sequence[tuple[int, int]]) -> list[float]:
    """Relative 1-sigma of the throughput at each (GPUs, nodes), at the micro batch first measured."""
    if np is None or len(sizes) < FEW or type(model) is not ThroughputModel:
        return [model.uncertainty(gpus, nodes) for gpus, nodes in sizes]
    gpus, nodes = np.array(sizes, dtype=np.float64).T
    slopes = _slopes(model, gpus, nodes)
    spread = np.einsum("ij,jk,ik->i", slopes, np.frombuffer(model.covariance).reshape(N, N), slopes)
    measured = {(k, n) for k, n, _ in model.seen}
    form = np.array([0.0 if size in measured else FORM_ERROR**2 for size in sizes])
    out: list[float] = np.sqrt(np.maximum(0.0, spread) + form).tolist()
    return out


def _slopes(model: ThroughputModel, gpus: Any, nodes: Any) -> Any:
    """The gradient of the logarithm of the step time in the seven coordinates, a row for each size."""
    e = np.exp(np.clip(model.theta[:6], -LARGEST_LOG, LARGEST_LOG))
    gamma = gamma_of(model.theta[6])
    compute, apart, alone = e[0] + e[1], nodes > 1, gpus <= 1
    first = np.where(apart, e[4], e[2])
    more = np.where(apart, e[5], e[3]) * np.maximum(0.0, gpus - 2.0)
    sync = np.maximum(first + more, 1e-300)
    top = np.maximum(compute, sync)
    u, v = (compute / top) ** gamma, (sync / top) ** gamma
    u, v = u / (u + v), v / (u + v)
    out = np.zeros((len(gpus), 7))
    by_compute = np.where(alone, 1.0, u)
    out[:, 0], out[:, 1] = by_compute * e[0] / compute, by_compute * e[1] / compute
    shares = np.where(alone, 0.0, v / sync)
    for at, where in ((2, ~apart), (4, apart)):
        out[:, at], out[:, at + 1] = where * shares * first, where * shares * more
    logs = u * np.log(np.maximum(u, 1e-300)) + v * np.log(np.maximum(v, 1e-300))
    out[:, 6] = np.where(alone, 0.0, logs / gamma**2 * (gamma - 1.0) * (10.0 - gamma) / 9.0)
    return out
