"""The exact search over several capacities: two halves of the jobs that have to add up.

A plan is a set of moves away from the base plan, at most one for each job, and GPUs left unused: together they fill
exactly what the base leaves of each capacity. The jobs are dealt into two halves; for each, every sum of changes that
loses at most `tau` is listed, with the least that it loses. A plan within `tau` of the bound is a pair that fits. So n
open jobs cost twice what n / 2 do. `tau` rises until bound and value meet.
Source: Horowitz and Sahni, "Computing partitions with applications to the knapsack problem", JACM 1974.
Promise: exact, also where numbers do not fit into 64 bits (Python's integers then, slowly). Limit: as many sums as
`work` allows; what was proven until then stands.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

Array = Any
Vector = tuple[int, ...]
FIRST, MORE = 24, 1.35
"""Moves within the first `tau`, and by what factor their number rises."""
MOST = 1 << 61
"""Largest loss, largest key that an int64 is trusted with: sums of two still fit."""


class Moves(NamedTuple):
    """All other choices of all jobs, by rising loss."""

    loss: Array
    change: Array
    """Of each what it takes more of each capacity: move x capacity."""
    job: Array
    at: Array
    """The position of the choice among all."""


class _Row(NamedTuple):
    """The open moves of one job, or a number of GPUs left unused."""

    loss: Array
    key: Array
    """The change, as one number."""
    moves: Array
    """Positions in the moves; -1: GPUs left unused."""


class Search:
    """What is known of the best set of moves: `run` finds out more."""

    def __init__(self, moves: Moves, slack: Vector, prices: Vector, capacity: Sequence[int], unit: int) -> None:
        """unit: the smallest difference between two plans' losses that counts."""
        self.moves, self.slack, self.prices, self.unit, self.work = moves, slack, prices, unit, 0
        self.loss: int | None = None
        """Of the best plan found; None: none was."""
        self.found = list[int]()
        """Its moves, as positions."""
        self.proven, self.open = 0, True
        worst = int(moves.loss[-1]) * (int(moves.job.max()) + 1) if len(moves.loss) else 0
        self.largest = worst + sum(p * c for p, c in zip(prices, capacity, strict=True)) + unit
        self.scarce = [t for t, price in enumerate(prices) if price]
        """The capacities that are looked at: others only once a plan has broken one."""
        if min(slack) >= 0:
            self.loss = sum(p * s for p, s in zip(prices, slack, strict=True))
        self.tau = int(moves.loss[min(FIRST, len(moves.loss)) - 1]) + unit if len(moves.loss) else unit

    def run(self, work: int) -> None:
        """Until proven, or out of work."""
        self.work += work
        while self.loss is None or self.proven + self.unit <= self.loss:
            limit = self.tau if self.loss is None else min(self.tau, self.loss - self.unit)
            answer = self._within(limit)
            if self.work < 0:
                return
            if answer is not None and self._breaks(answer[1]):
                self.scarce = list(range(len(self.slack)))
                continue
            if answer is not None and (self.loss is None or answer[0] < self.loss):
                self.loss, self.found = answer
            if self.loss is not None and self.loss <= limit:
                break
            self.proven = limit + 1
            if limit >= self.largest:
                break
            count = int(self.moves.loss.searchsorted(limit, side="right"))
            more = int(count * MORE) + 4
            self.tau = int(self.moves.loss[more]) if more < len(self.moves.loss) else 2 * limit + self.unit
        self.open = False

    def _breaks(self, found: list[int]) -> bool:
        used = self.moves.change[found].sum(0).tolist() if found else [0] * len(self.slack)
        return any(u > s for u, s in zip(used, self.slack, strict=True))

    def _within(self, tau: int) -> tuple[int, list[int]] | None:
        """The least that a plan of two halves within tau loses, and its moves; None: none fits, or no work is left.

        When it loses more than tau, another may lose less, but more than tau, too.
        """
        rows, target = self._rows(tau)
        one = _Half(rows[::2], tau, self.work)
        self.work -= one.work
        other = _Half(rows[1::2], tau, max(0, self.work))
        self.work -= other.work
        return _fitting(one, other, target) if self.work >= 0 else None

    def _rows(self, tau: int) -> tuple[list[_Row], int]:
        """The rows of what loses at most tau, the cheapest first, and the key of what they have to add up to."""
        count = int(self.moves.loss.searchsorted(tau, side="right"))
        change, slack = self.moves.change[:count, self.scarce], [self.slack[t] for t in self.scarce]
        order = self.moves.job[:count].argsort(kind="stable")
        each = np.split(order, (np.diff(self.moves.job[order]) != 0).nonzero()[0] + 1) if count else []
        widest = [abs(change[own]).max(0).tolist() for own in each]
        reach = [abs(s) + sum(own[t] for own in widest) for t, s in enumerate(slack)]
        unused = list[tuple[int, int, int]]()
        for t, capacity in enumerate(self.scarce):
            gpus, most = 1, reach[t]
            while gpus <= most and gpus * self.prices[capacity] <= tau:  # 1, 2, 4, ... add up to any number
                unused.append((gpus * self.prices[capacity], t, gpus))
                reach[t] += gpus
                gpus *= 2
        radix = [1]
        for r in reach:
            radix.append(radix[-1] * (2 * r + 1))
        kind = np.int64 if max(radix[-1], tau) < MOST else object
        keys, losses = change.astype(kind) @ np.array(radix[:-1], dtype=kind), self.moves.loss[:count].astype(kind)
        rows = [_Row(losses[own], keys[own], own) for own in each]
        rows += [
            _Row(np.array([loss], dtype=kind), np.array([gpus * radix[t]], dtype=kind), np.array([-1]))
            for loss, t, gpus in unused
        ]
        rows.sort(key=lambda row: row.loss[0])
        return rows, sum(s * r for s, r in zip(slack, radix, strict=False))


class _Half:
    """Every sum of changes of some rows that loses at most tau, with the least that it loses, by rising key."""

    def __init__(self, rows: Sequence[_Row], tau: int, most: int) -> None:
        kind = rows[0].key.dtype if rows else np.int64
        self.rows, self.work = rows, 0
        self.keys, self.losses = np.zeros(1, dtype=kind), np.zeros(1, dtype=kind)
        self.steps = list[tuple[Array, int]]()
        """Of each row where its sums come from, and how many there were before it."""
        for row in rows:
            before = len(self.keys)
            self.work += before * (len(row.key) + 1)
            if self.work > most:  # above it: the caller sees that by its own count
                self.work = most + 1
                return
            keys = np.concatenate([self.keys, (row.key[:, None] + self.keys).ravel()])
            losses = np.concatenate([self.losses, (row.loss[:, None] + self.losses).ravel()])
            came = (losses <= tau).nonzero()[0]
            came = came[losses[came].argsort(kind="stable")]
            came = came[keys[came].argsort(kind="stable")]
            keys = keys[came]
            first = np.ones(len(keys), dtype=bool)
            first[1:] = keys[1:] != keys[:-1]
            came = came[first]
            self.keys, self.losses = keys[first], losses[came]
            self.steps.append((came.astype(np.int32), before))

    def moves(self, at: int) -> list[int]:
        """Of the sum at a position."""
        found = list[int]()
        for row, (came, before) in zip(reversed(self.rows), reversed(self.steps), strict=True):
            move, at = divmod(int(came[at]), before)
            if move and row.moves[move - 1] >= 0:
                found.append(int(row.moves[move - 1]))
        return found


def _fitting(one: _Half, other: _Half, target: int) -> tuple[int, list[int]] | None:
    """The pair of sums that adds up to the target and loses least."""
    wanted = target - other.keys
    at = np.minimum(one.keys.searchsorted(wanted), len(one.keys) - 1)
    pairs = (one.keys[at] == wanted).nonzero()[0]
    if not len(pairs):
        return None
    losses = one.losses[at[pairs]] + other.losses[pairs]
    best = int(losses.argmin())
    return int(losses[best]), one.moves(int(at[pairs[best]])) + other.moves(int(pairs[best]))
