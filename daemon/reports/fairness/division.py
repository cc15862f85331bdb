"""How evenly groups of users were served: Jain's index, an equal division, and the time alone on an equal part.

Jain, Chiu, Hawe, A quantitative measure of fairness, DEC-TR-301, 1984; finish-time fairness: Mahajan et al., Themis,
NSDI 2020. Promise: pure; simulations and the report count by it. Limit: groups count alike, whatever their shares.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

K = TypeVar("K")
Span = tuple[str, float, float]
"""A group's job, from when to when."""
LOOKS = 1000
"""Moments at which a time is looked at."""


def groups_of(owners: Sequence[tuple[str, str]], by: str) -> tuple[str, list[str]]:
    """("account" or "user", whose each job is), of (account, user) of each: by users with `by` = "user" or where there
    are no two accounts."""
    accounts = [account for account, _ in owners]
    if by == "user" or len(set(accounts)) < 2:
        return "user", [user for _, user in owners]
    return "account", accounts


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


@dataclass(frozen=True, slots=True)
class Sharer:
    """A job that shares GPUs with others."""

    group: str
    speeds: Sequence[tuple[int, float]]
    """(GPUs, samples a second) in ascending order."""
    least: int
    most: int

    def progress(self, gpus: float) -> float:
        """Of one second, in what one GPU does."""
        return at_size(self.speeds, gpus) / at_size(self.speeds, 1)

    def rho(self, samples: float, start: float, end: float, gpus: float, presence: Presence) -> float:
        """Finish-time fairness: the time that these samples took, by that alone on an equal part of so many GPUs: by
        the groups, and by its own group's jobs, that were there with it, in the mean over its time."""
        groups, own = presence.mean(self.group, start, end)
        return (end - start) / (samples / at_size(self.speeds, gpus / (groups * own)))


def looks(changes: Sequence[tuple[float, K, int]], start: float, end: float) -> Iterator[tuple[float, Mapping[K, int]]]:
    """LOOKS moments of this time, evenly spread, and the GPUs of each that holds some; changes: when, who, and how many
    from then on, in the order of time."""
    held, at = dict[K, int](), 0
    for look in range(LOOKS):
        moment = start + (end - start) * (look + 0.5) / LOOKS
        while at < len(changes) and changes[at][0] <= moment:
            _, who, gpus = changes[at]
            at += 1
            held.pop(who, None)
            if gpus:
                held[who] = gpus
        yield moment, held


@dataclass
class _Sum:
    """Over the moments looked at: what a group had, and what an equal division would have given it."""

    gpus: float = 0.0
    equal_gpus: float = 0.0
    progress: float = 0.0
    equal_progress: float = 0.0


class ShareOfGpus:
    """How the GPUs of running jobs were divided between groups, in the moments that are added."""

    def __init__(self) -> None:
        self._sums: dict[str, _Sum] = {}

    def add(self, held: Collection[tuple[Sharer, int]]) -> None:
        """What they have in this moment, if there are two groups."""
        present: dict[str, list[tuple[Sharer, int]]] = {}
        for sharer, gpus in held:
            present.setdefault(sharer.group, []).append((sharer, gpus))
        if len(present) < 2:
            return
        bounds = {group: [(job.least, job.most) for job, _ in jobs] for group, jobs in present.items()}
        whole = [(sum(low for low, _ in each), sum(high for _, high in each)) for each in bounds.values()]
        equal = equal_division(sum(gpus for _, gpus in held), whole)
        for (group, jobs), part in zip(present.items(), equal, strict=True):
            own = self._sums.setdefault(group, _Sum())
            own.gpus += sum(gpus for _, gpus in jobs)
            own.equal_gpus += part
            own.progress += sum(job.progress(gpus) for job, gpus in jobs)
            each = zip(jobs, equal_division(part, bounds[group]), strict=True)
            own.equal_progress += sum(job.progress(gpus) for (job, _), gpus in each)

    def jain(self) -> float:
        """Jain's index over the groups of the progress that its running jobs made, by that of an equal division of the
        same GPUs: among groups, then among the jobs of each; their least and most GPUs kept, and what one cannot use
        given to the others."""
        return jain([each.progress / each.equal_progress for each in self._sums.values()])

    def jain_gpus(self) -> float:
        """The same of GPUs."""
        return jain([each.gpus / each.equal_gpus for each in self._sums.values()])
