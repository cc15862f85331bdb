"""Throughput models as others fit them: for the models' table, never for the product. Needs scipy.

Each fitter takes observations (and compute-only times, where the method uses them) and returns a predictor
(GPUs, nodes, micro batch per GPU) -> step time in s.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from scipy.optimize import minimize, nnls

from slurm_elastic.daemon.optimizer.models.observation import Observation
from slurm_elastic.daemon.optimizer.models.prior import Prior
from slurm_elastic.daemon.optimizer.models.throughput import fit

Predictor = Callable[[int, int, float], float]
Features = Callable[[np.ndarray, np.ndarray], np.ndarray]


def _nonnegative(features: Features) -> Callable[[Sequence[Observation], dict[int, float]], Predictor]:
    """Least squares of the relative error with coefficients >= 0."""

    def fitter(rows: Sequence[Observation], compute: dict[int, float]) -> Predictor:
        k, m = np.array([r.gpus for r in rows], float), np.array([r.micro_batch for r in rows], float)
        times = np.array([r.step_time_s for r in rows])
        x, _ = nnls(features(k, m) / times[:, None], np.ones(len(rows)))
        floor = float(times.min()) * 1e-3
        return lambda gpus, nodes, micro: max(
            floor, float((features(np.array([float(gpus)]), np.array([float(micro)])) @ x)[0])
        )

    return fitter


perfect = _nonnegative(lambda k, m: np.stack([m], 1))
amdahl = _nonnegative(lambda k, m: np.stack([m, k * m], 1))
usl = _nonnegative(lambda k, m: np.stack([m, m * (k - 1), m * k * (k - 1)], 1))
optimus = _nonnegative(lambda k, m: np.stack([m, np.ones_like(m), k - 1], 1))


def pollux(rows: Sequence[Observation], compute: dict[int, float]) -> Predictor:
    """adaptdl's fit: logarithmic errors of compute and step times, what was not seen fixed near zero, L-BFGS-B."""
    k, n = np.array([r.gpus for r in rows], float), np.array([r.nodes for r in rows], float)
    m, seen = np.array([r.micro_batch for r in rows], float), np.log([r.step_time_s for r in rows])
    alone = np.log([compute.get(r.micro_batch, r.step_time_s) for r in rows])
    x0 = np.array([0.1, 0.01, 0.1, 0.01, 0.1, 0.01, 1.001])  # compute, between nodes, inside a node, gamma
    low, high = np.full(7, 1e-8), np.full(7, np.inf)
    low[6], high[6] = 1.0, 10.0
    if len(np.unique(m)) == 1:
        x0[0] = low[0] = high[0] = float(np.exp(alone).mean()) / 2
    apart, inside = n > 1, (n <= 1) & (k > 1)
    for where, at in ((apart, 2), (inside, 4)):
        if not where.any():
            x0[at] = low[at] = high[at] = 1e-8
        if not (where & (k > 2)).any():
            x0[at + 1] = low[at + 1] = high[at + 1] = 1e-8

    def times(x: np.ndarray, k: np.ndarray, n: np.ndarray, m: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        grad = x[0] + x[1] * m
        more = np.maximum(k - 2, 1e-8)
        sync = np.where(n > 1, x[2] + x[3] * more, np.where(k > 1, x[4] + x[5] * more, 1e-8))
        top = np.maximum(grad, sync)
        return grad, top * ((grad / top) ** x[6] + (sync / top) ** x[6]) ** (1 / x[6])

    def cost(x: np.ndarray) -> float:
        grad, whole = times(x, k, n, m)
        error = np.sqrt(((np.log(grad) - alone) ** 2).mean()) + np.sqrt(((np.log(whole) - seen) ** 2).mean())
        return float(error + 1e-3 * (x[6] - 1) ** 2 + 1e-2 * ((x[3] / x[2]) ** 2 + (x[5] / x[4]) ** 2))

    x = minimize(cost, x0, method="L-BFGS-B", bounds=list(zip(low, high, strict=True))).x
    return lambda gpus, nodes, micro: float(
        times(x, np.array([float(gpus)]), np.array([float(nodes)]), np.array([float(micro)]))[1][0]
    )


def straight(rows: Sequence[Observation], compute: dict[int, float]) -> Predictor:
    """A straight line in logarithms: ln T = a + b ln m + c ln k + d on several nodes.

    Slopes are held near what programs have (b 0.6 +- 0.3, c 0.1 +- 0.2, d 0.2 +- 0.4) until reports say more.
    """

    def terms(k: np.ndarray, n: np.ndarray, m: np.ndarray) -> np.ndarray:
        return np.stack([np.ones(len(k)), np.log(m), np.log(k), 1.0 * (n > 1)], 1)

    at = terms(*(np.array([getattr(r, name) for r in rows], float) for name in ("gpus", "nodes", "micro_batch")))
    mean, spread = np.array([0.0, 0.6, 0.1, 0.2]), np.diag(np.array([100.0, 0.3, 0.2, 0.4]) ** 2)
    off = np.log([r.step_time_s for r in rows]) - at @ mean
    line = mean + spread @ at.T @ np.linalg.solve(at @ spread @ at.T + 0.05**2 * np.eye(len(rows)), off)
    return lambda gpus, nodes, micro: float(
        np.exp(terms(np.array([float(gpus)]), np.array([float(nodes)]), np.array([micro])) @ line)[0]
    )


def ours(prior: Prior, comm_share: bool = True) -> Callable[[Sequence[Observation], dict[int, float]], Predictor]:
    """The product's model under a prior, from reports with or without their share of communication."""

    def fitter(rows: Sequence[Observation], compute: dict[int, float]) -> Predictor:
        model = fit(rows if comm_share else [replace(o, comm_share=0.0) for o in rows], prior)
        return lambda gpus, nodes, micro: model.step_time(gpus, nodes, max(1, round(gpus * micro)))

    return fitter
