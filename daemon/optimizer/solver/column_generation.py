"""Multipliers of several capacities: the linear relaxation by Dantzig and Wolfe's decomposition, in a tiny basis.

The master problem mixes whole plans: maximise sum mu_i V_i, sum mu_i W_i <= K, sum mu_i = 1, with one row per pool and
one more. Each round prices out the best plan at the present multipliers. Any multipliers >= 0 give a valid bound, so
stopping early or rounding costs sharpness, never truth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

ROUNDS = 200
Array = Any
Vector = tuple[int, ...]
Plan = tuple[float, list[float]]
"""(value, weight per pool)"""


def multipliers(starts: Array, usage: Array, values: Array, capacity: Sequence[int], unit: int) -> Vector | None:
    """Integers p with p / unit the multipliers in value units per GPU; None when no mix of plans fits.

    `starts`: where each job's choices begin, and the end; `usage`: choice x capacity; `values` as integers in doubles.
    """
    best_plan = _oracle(starts, usage.astype(np.float64), values)
    pools = len(capacity)
    most, least = np.maximum.reduceat(values, starts[:-1]), np.minimum.reduceat(values, starts[:-1])
    spread = float((most - least).sum() + abs(most).sum()) + 1.0
    basis = _Basis([float(c) for c in capacity], -4.0 * spread)
    for _ in range(ROUNDS):
        prices, level = basis.prices()
        short = next((t for t in range(pools) if prices[t] < -1e-9 * spread), None)
        if short is not None:  # an idle GPU is worth something: let the slack in
            basis.enter([1.0 if r == short else 0.0 for r in range(pools)] + [0.0], 0.0, False)
            continue
        value, used = best_plan([max(0.0, p) for p in prices])
        reduced = value - sum(p * u for p, u in zip(prices, used, strict=True)) - level
        if reduced <= 1e-12 * spread or not basis.enter([*used, 1.0], value, False):
            break
    if basis.artificial() > 1e-7:
        return None
    return tuple(max(0, round(p * unit)) for p in basis.prices()[0])


class _Basis:
    """Primal simplex on pools + 1 rows, the inverse kept whole."""

    def __init__(self, capacity: list[float], penalty: float) -> None:
        self.size = len(capacity) + 1
        self.inverse = [[float(i == j) for j in range(self.size)] for i in range(self.size)]
        self.amount = [*capacity, 1.0]
        self.worth = [0.0] * len(capacity) + [penalty]
        self.made_up = [False] * len(capacity) + [True]

    def prices(self) -> tuple[list[float], float]:
        dual = [sum(w * row[c] for w, row in zip(self.worth, self.inverse, strict=True)) for c in range(self.size)]
        return dual[:-1], dual[-1]

    def artificial(self) -> float:
        """The share of the made-up plan that fits everywhere: above 0, nothing real does."""
        return sum(a for a, made_up in zip(self.amount, self.made_up, strict=True) if made_up)

    def enter(self, column: list[float], worth: float, made_up: bool) -> bool:
        """Bring a column in; False when nothing changes by it."""
        moved = [sum(a * b for a, b in zip(row, column, strict=True)) for row in self.inverse]
        ratios = [(self.amount[r] / moved[r], -moved[r], r) for r in range(self.size) if moved[r] > 1e-9]
        if not ratios:
            return False
        _, _, out = min(ratios)
        pivot = moved[out]
        self.inverse[out] = [x / pivot for x in self.inverse[out]]
        self.amount[out] /= pivot
        for r in range(self.size):
            if r != out and moved[r]:
                self.inverse[r] = [a - moved[r] * b for a, b in zip(self.inverse[r], self.inverse[out], strict=True)]
                self.amount[r] = max(0.0, self.amount[r] - moved[r] * self.amount[out])
        self.worth[out], self.made_up[out] = worth, made_up
        return True


def _oracle(starts: Array, usage: Array, values: Array) -> Callable[[list[float]], Plan]:
    """The plan that is best at given prices."""
    lengths = starts[1:] - starts[:-1]

    def best(prices: list[float]) -> Plan:
        reduced = values - usage @ np.array(prices)
        at_best = np.flatnonzero(reduced >= np.maximum.reduceat(reduced, starts[:-1]).repeat(lengths))
        pick = at_best[np.searchsorted(at_best, starts[:-1])]
        return float(values[pick].sum()), usage[pick].sum(axis=0).tolist()

    return best
