"""How evenly groups of users were served: Jain's index, an equal division, and the time alone on an equal part.

Jain, Chiu, Hawe, A quantitative measure of fairness, DEC-TR-301, 1984; finish-time fairness: Mahajan et al., Themis,
NSDI 2020. Promise: pure. Limit: groups count alike, whatever their shares.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

Span = tuple[str, float, float]
"""A group's job, from when to when."""


def jain(values: Sequence[float]) -> float:
    """1: all equal; 1/n: one of n has everything. NaN of nothing."""
    squares = math.fsum(value * value for value in values)
    return math.fsum(values) ** 2 / (len(values) * squares) if squares else math.nan


def equal_division(total: float, bounds: Sequence[tuple[float, float]]) -> list[float]:
    """What each has where all get as much, as far as its (least, most) lets it; `total` lies between their sums."""
    edges = sorted({edge for least_most in bounds for edge in least_most})

    def given(level: float) -> float:
        return sum([min(most, max(least, level)) for least, most in bounds])

    low, high = edges[0], edges[-1]
    at = bisect_right(edges, total, key=given)  # the division is linear in the level between two edges
    if 0 < at < len(edges):
        low, high = edges[at - 1], edges[at]
    elif at:
        low = high
    below, above = given(low), given(high)
    level = low + (high - low) * (total - below) / (above - below) if above > below else low
    return [min(most, max(least, level)) for least, most in bounds]


class Presence:
    """Which groups had jobs, and how many, over time."""

    def __init__(self, spans: Iterable[Span]) -> None:
        changes: dict[str, list[tuple[float, int]]] = {}
        for group, start, end in spans:
            changes.setdefault(group, []).extend([(start, 1), (end, -1)])
        self._jobs = {group: _Steps(of_group) for group, of_group in changes.items()}
        self._groups = _Steps([change for steps in self._jobs.values() for change in steps.presence()])

    def mean(self, group: str, start: float, end: float) -> tuple[float, float]:
        """(groups that had jobs, jobs of this one) between two times, in the mean."""
        length = max(1e-9, end - start)
        own, all_groups = self._jobs[group], self._groups
        groups = (all_groups.integral(end) - all_groups.integral(start)) / length
        return max(1.0, groups), max(1.0, (own.integral(end) - own.integral(start)) / length)


class _Steps:
    """A count over time, and its integral."""

    def __init__(self, changes: Iterable[tuple[float, int]]) -> None:
        ordered = sorted(changes)
        self.times = [at for at, _ in ordered]
        self.counts = list(accumulate(change for _, change in ordered))
        lengths = [after - before for before, after in pairwise(self.times)]
        areas = (length * count for length, count in zip(lengths, self.counts, strict=False))
        self.areas = [0.0, *accumulate(areas)]

    def integral(self, at: float) -> float:
        """Up to that time."""
        index = bisect_right(self.times, at) - 1
        return 0.0 if index < 0 else self.areas[index] + self.counts[index] * (at - self.times[index])

    def presence(self) -> list[tuple[float, int]]:
        """When the count leaves zero, and comes back to it."""
        found, before = [], 0
        for at, count in zip(self.times, self.counts, strict=True):
            if bool(count) != bool(before):
                found.append((at, 1 if count else -1))
            before = count
        return found


def at_size(speeds: Sequence[tuple[int, float]], gpus: float) -> float:
    """The speed on so many GPUs, of (GPUs, speed) in ascending order: what lies between two sizes linearly, less than
    the smallest as that for a part of the time; never less than a smaller size brings."""
    size, speed = speeds[0]
    if gpus <= size:
        return speed * gpus / size
    for (low, slow), (high, fast) in pairwise(speeds):
        speed = max(speed, slow)
        if gpus <= high:
            return max(speed, slow + (fast - slow) * (gpus - low) / (high - low))
    return max(speed, speeds[-1][1])
