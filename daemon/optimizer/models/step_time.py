"""The step-time form: compute per micro batch, synchronisation by class of placement, overlapped by a power.

    G = alpha_c + beta_c * m                    gradients of one micro batch of m samples per GPU, in s
    S = 0                                       on one GPU
        alpha_l * r(k) + beta_l * (k - 2)       on k GPUs of one node
        alpha_n * r(k) + beta_n * (k - 2)       on k GPUs of several nodes      r(k) = 2 - 2 / k
    T = (A - 1) * G + (G^gamma + S^gamma)^(1/gamma)      one optimizer step of A micro batches

Source: Qiao et al., "Pollux", OSDI 2021, section 3.2, with r(k): a ring sends 2 (k - 1) / k times the gradients
(Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009). Promise: every
prediction is positive and finite, and longer for a larger micro batch, more micro batches, or more GPUs in the same
class of placement (the parameters are held as logarithms). Limit: no term for the network's topology beyond one node /
several; what a step waits for its input is input_wait.py's.

The form is arithmetic alone: it takes numbers, or arrays that numpy can broadcast.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

LARGEST_LOG = 30.0
"""Logarithms are held within +-30: e^30 times the scale is centuries, and no power below overflows."""
TINY = 1e-300

Array = Any
Number = Any
"""A float or an array of them."""


class Parameters(NamedTuple):
    """Of one model; times in units of the model's scale."""

    alpha_c: float
    beta_c: float
    alpha_l: float
    beta_l: float
    alpha_n: float
    beta_n: float
    gamma: float
    """The overlap's power, between 1 (no overlap) and 10 (whole overlap)."""


N = len(Parameters._fields)


def parameters(theta: Sequence[float]) -> Parameters:
    """Those of one model, from its unbounded coordinates."""
    return Parameters(*parameter_array(theta).tolist())


def parameter_array(theta: Array | Sequence[float]) -> Array:
    """From the unbounded coordinates, the first axis of `theta`: six logarithms, and gamma's logit."""
    values: Array = np.exp(np.minimum(np.maximum(theta, -LARGEST_LOG), LARGEST_LOG))  # np.clip takes five times as long
    values[6] = 1.0 + 9.0 * values[6] / (1.0 + values[6])
    return values


def _factors(gpus: Number, nodes: Number, micro: Number) -> tuple[Number, ...]:
    """What each of the six times is multiplied by."""
    inside, apart, more, ring = (gpus > 1) & (nodes <= 1), (gpus > 1) & (nodes > 1), gpus - 2, 2.0 - 2.0 / gpus
    return 1.0, micro, inside * ring, inside * more, apart * ring, apart * more


def factor_array(gpus: Array, nodes: Array, micro: Number) -> Array:
    """The same as the first axis of one array."""
    return np.stack(np.broadcast_arrays(*_factors(gpus, nodes, micro)))


def _compute_and_sync(terms: Array | Sequence[Number]) -> tuple[Number, Number]:
    """(G, S), of the six times multiplied by their factors."""
    return terms[0] + terms[1], terms[2] + terms[3] + terms[4] + terms[5]


def sync_time(p: Sequence[Number], gpus: Number, nodes: Number) -> Number:
    """S."""
    factors = _factors(gpus, nodes, 0.0)
    return p[2] * factors[2] + p[3] * factors[3] + p[4] * factors[4] + p[5] * factors[5]


def overlapped(compute: Number, sync_power: Number, gamma: Number, accumulation: Number, power: Number = 1.0) -> Number:
    """T^power, from G and S^gamma."""
    whole = compute**gamma  # in place from here on: a new array of every step takes longer than what is computed
    whole += sync_power
    once = whole ** (power / gamma)
    if np.ndim(accumulation) == 0 and accumulation == 1:
        return once
    whole **= 1 / gamma
    whole += (accumulation - 1) * compute
    whole **= power
    return np.where(accumulation == 1, once, whole)  # to the last bit what is returned above


def step_time(p: Parameters, gpus: Number, nodes: Number, micro: Number, accumulation: Number) -> Number:
    """Time of one optimizer step of `accumulation` micro batches."""
    return overlapped(p.alpha_c + p.beta_c * micro, sync_time(p, gpus, nodes) ** p.gamma, p.gamma, accumulation)


def log_step_time(p: Array, factors: Array, accumulation: Number) -> tuple[Array, Array]:
    """(ln T, its gradient in the seven coordinates as the first axis); p and factors as the functions above give them,
    their other axes made to broadcast."""
    terms, gamma, more = p[:6] * factors, p[6], accumulation - 1
    compute, sync = _compute_and_sync(terms)
    u, v = compute**gamma, sync**gamma
    powers = u + v
    both = powers ** (1 / gamma)
    u, v = u / powers, v / powers
    whole = more * compute + both
    mixed = u * np.log(np.maximum(u, TINY)) + v * np.log(np.maximum(v, TINY))
    gradient = np.empty((N, *np.shape(whole)))
    gradient[:2] = terms[:2] * ((more + u * both / compute) / whole)
    gradient[2:6] = terms[2:] * (v * both / (np.maximum(sync, TINY) * whole))
    gradient[6] = both / whole * mixed * ((gamma - 1) * (10 - gamma) / (9 * gamma**2))
    return np.log(whole), gradient
