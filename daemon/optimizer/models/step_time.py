"""The step-time form: compute per micro batch, synchronisation by class of placement, overlapped by a power.

    G = alpha_c + beta_c * m                    gradients of one micro batch of m samples per GPU, in s
    S = 0                                       on one GPU
        alpha_l + beta_l * (k - 2)              on k GPUs of one node
        alpha_n + beta_n * (k - 2)              on k GPUs of several nodes
    T = (A - 1) * G + (G^gamma + S^gamma)^(1/gamma)      one optimizer step of A micro batches

Source: Qiao et al., "Pollux", OSDI 2021, section 3.2. Promise: every prediction is positive and finite, and longer for
a larger micro batch, more micro batches, or more GPUs in the same class of placement (the parameters are held as
logarithms). Limit: no term for the network's topology beyond one node / several, none for the input pipeline.

The form is arithmetic alone: it takes numbers, or arrays that numpy can broadcast.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

LARGEST_LOG = 30.0
"""Logarithms are held within +-30: e^30 times the scale is centuries, and no power below overflows."""
TINY = 1e-300

Array = Any
Number = Any
"""A float or an array of them."""


class Parameters(NamedTuple):
    """Of one model as floats, or of many models as arrays; times in units of the model's scale."""

    alpha_c: Number
    beta_c: Number
    alpha_l: Number
    beta_l: Number
    alpha_n: Number
    beta_n: Number
    gamma: Number
    """The overlap's power, between 1 (no overlap) and 10 (whole overlap)."""


N = len(Parameters._fields)


def parameters(theta: Array) -> Parameters:
    """From the unbounded coordinates, the last axis of `theta`: six logarithms, and gamma's logit."""
    values = np.exp(np.minimum(np.maximum(theta, -LARGEST_LOG), LARGEST_LOG))  # np.clip takes five times as long
    values[..., 6] = 1.0 + 9.0 * values[..., 6] / (1.0 + values[..., 6])
    return Parameters(*(values.tolist() if values.ndim == 1 else (values[..., i] for i in range(N))))


def compute_and_sync(p: Parameters, gpus: Number, nodes: Number, micro: Number) -> tuple[Number, Number]:
    """(G, S): gradients of one micro batch, in units of the model's micro batch, and their synchronisation."""
    inside, apart = (gpus > 1) & (nodes <= 1), (gpus > 1) & (nodes > 1)
    more = gpus - 2
    sync = inside * (p.alpha_l + p.beta_l * more) + apart * (p.alpha_n + p.beta_n * more)
    return p.alpha_c + p.beta_c * micro, sync


def step_time(p: Parameters, gpus: Number, nodes: Number, micro: Number, accumulation: Number) -> Number:
    """Time of one optimizer step of `accumulation` micro batches."""
    compute, sync = compute_and_sync(p, gpus, nodes, micro)
    return (accumulation - 1) * compute + (compute**p.gamma + sync**p.gamma) ** (1 / p.gamma)


def log_step_time(p: Parameters, gpus: Array, nodes: Array, micro: Array, accumulation: Array) -> tuple[Array, Array]:
    """(ln T, its gradient in the seven coordinates as the last axis); arrays of one shape."""
    compute, sync = compute_and_sync(p, gpus, nodes, micro)
    u, v = compute**p.gamma, sync**p.gamma
    both = (u + v) ** (1 / p.gamma)
    u, v = u / (u + v), v / (u + v)
    whole = (accumulation - 1) * compute + both
    by_compute = (accumulation - 1 + u * both / compute) / whole
    by_sync = v * both / (np.maximum(sync, TINY) * whole)
    inside, more = by_sync * (nodes <= 1), gpus - 2
    apart = by_sync - inside
    mixed = u * np.log(np.maximum(u, TINY)) + v * np.log(np.maximum(v, TINY))
    gradient = np.empty((*np.shape(whole), N))
    gradient[..., 0] = by_compute * p.alpha_c
    gradient[..., 1] = by_compute * p.beta_c * micro
    gradient[..., 2] = inside * p.alpha_l
    gradient[..., 3] = inside * p.beta_l * more
    gradient[..., 4] = apart * p.alpha_n
    gradient[..., 5] = apart * p.beta_n * more
    gradient[..., 6] = both / whole * mixed * (p.gamma - 1) * (10 - p.gamma) / (9 * p.gamma**2)
    return np.log(whole), gradient
