"""The step-time form: compute per micro batch, synchronisation by class of placement, overlapped by a power.

    G = alpha_c + beta_c * m                    gradients of one micro batch of m samples per GPU, in s
    S = 0                                       on one GPU
        alpha_l + beta_l * (k - 2)              on k GPUs of one node
        alpha_n + beta_n * (k - 2)              on k GPUs of several nodes
    T = (A - 1) * G + (G^gamma + S^gamma)^(1/gamma)      one optimizer step of A micro batches

Source: Qiao et al., "Pollux", OSDI 2021, section 3.2. Promise: every prediction is positive and finite, and longer for
a larger micro batch, more micro batches, or more GPUs in the same class of placement (the parameters are held as
logarithms). Limit: no term for the network's topology beyond one node / several, none for the input pipeline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

PARAMETERS = ("alpha_c", "beta_c", "alpha_l", "beta_l", "alpha_n", "beta_n", "gamma")
N = len(PARAMETERS)
LARGEST_LOG = 30.0
"""Logarithms are held within +-30: e^30 times the scale is centuries."""

Vector = Sequence[float]


def gamma_of(x: float) -> float:
    """The overlap's power, between 1 (no overlap) and 10 (whole overlap), from its unbounded coordinate."""
    return 1.0 + 9.0 / (1.0 + exp(-x))


def step_time(theta: Vector, gpus: int, nodes: int, micro: float, accumulation: float) -> float:
    """Seconds (in units of the model's scale) of one optimizer step; `micro` in units of the model's micro batch."""
    compute = exp(theta[0]) + exp(theta[1]) * micro
    if gpus <= 1:
        return accumulation * compute
    at = 2 if nodes <= 1 else 4
    sync = exp(theta[at]) + exp(theta[at + 1]) * (gpus - 2)
    gamma = gamma_of(theta[6])
    top, low = (compute, sync) if compute > sync else (sync, compute)
    return (accumulation - 1.0) * compute + top * math.pow(1.0 + math.pow(low / top, gamma), 1.0 / gamma)


def exp(x: float) -> float:
    """e^x, with x held within +-LARGEST_LOG."""
    return math.exp(-LARGEST_LOG if x < -LARGEST_LOG else LARGEST_LOG if x > LARGEST_LOG else x)


def log_step_time(theta: Vector, gpus: int, nodes: int, micro: float, accumulation: float) -> tuple[float, list[float]]:
    """(T, gradient of ln T in the seven coordinates)."""
    e = [exp(x) for x in theta[:6]]
    alpha, slope = e[0], e[1] * micro
    compute = alpha + slope
    gradient = [0.0] * N
    if gpus <= 1:
        whole = accumulation * compute
        gradient[0], gradient[1] = alpha / compute, slope / compute
        return whole, gradient
    at = 2 if nodes <= 1 else 4
    first, more = e[at], e[at + 1] * max(0, gpus - 2)
    sync = first + more
    gamma = gamma_of(theta[6])
    top = max(compute, sync)
    u, v = (compute / top) ** gamma, (sync / top) ** gamma
    both = top * (u + v) ** (1.0 / gamma)
    whole = (accumulation - 1.0) * compute + both
    u, v = u / (u + v), v / (u + v)  # shares of the power sum
    by_compute = accumulation - 1.0 + u * both / compute
    gradient[0], gradient[1] = by_compute * alpha / whole, by_compute * slope / whole
    by_sync = v * both / sync
    gradient[at], gradient[at + 1] = by_sync * first / whole, by_sync * more / whole
    mixed = (u * math.log(u) if u > 0 else 0.0) + (v * math.log(v) if v > 0 else 0.0)
    slope_gamma = (gamma - 1.0) * (10.0 - gamma) / 9.0
    gradient[6] = both / whole * mixed / gamma**2 * slope_gamma
    return whole, gradient
