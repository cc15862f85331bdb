"""How evenly groups of users were served: Jain's index, an equal division, and the time alone on an equal part; of a
simulation and of what is recorded in a window, by the same arithmetic.

Jain, Chiu, Hawe, A quantitative measure of fairness, DEC-TR-301, 1984; finish-time fairness: Mahajan et al., Themis,
NSDI 2020. Promise: pure. Limit: groups count alike, whatever their shares. Of a window speeds are those of a job's
curve, so at as many samples per GPU as were measured last, and up to twice the largest size measured; a job without a
curve is only present; the GPUs of all pools are taken together.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeVar

from slurm_elastic.db.rows import AllocationRow, JobRow
from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.answers.history import Fairness
from slurm_elastic.protocol.errors import RequestError

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


Speeds = Sequence[tuple[int, float]]
"""(GPUs, samples a second) in ascending order; empty: not known."""


@dataclass(frozen=True, slots=True)
class Window:
    """What is recorded of a time."""

    start: float
    end: float
    now: float
    jobs: Sequence[JobRow]
    """Those that were there with one of the window's."""
    allocations: Sequence[AllocationRow]
    """Of these jobs, from the first submission on; by job and start."""
    capacity: Sequence[tuple[float, float]]
    """(from when, GPUs that elastic jobs might hold)."""

    def gpus(self, start: float, end: float) -> float:
        """That elastic jobs might hold in the mean over a time, before the first moment known as many as then; 0: not
        known."""
        held, edges = 0.0, [-math.inf, *(at for at, _ in self.capacity[1:]), math.inf]
        for (_, gpus), left, right in zip(self.capacity, edges, edges[1:], strict=False):
            held += gpus * max(0.0, min(right, end) - max(left, start))
        return held / (end - start) if end > start else 0.0


class FairnessResult:
    """Whose the jobs of a window are, and how they were served."""

    def __init__(self, window: Window, by: str) -> None:
        self._window = window
        self._between, groups = groups_of([(job.account, job.user) for job in window.jobs], by)
        self._groups = {job.job_id: group for job, group in zip(window.jobs, groups, strict=True)}
        self._jobs = {job.job_id: job for job in window.jobs}
        self._rows: dict[int, list[AllocationRow]] = {job_id: [] for job_id in self._jobs}
        for row in window.allocations:
            if row.job_id in self._rows:
                self._rows[row.job_id].append(row)
        self._presence = Presence((self._groups[job_id], *self._life(job_id)) for job_id in self._jobs)

    def rho(self, job_id: int, speeds: Speeds) -> float | None:
        """Of a job, until its end or that of the window; None: not known, or it has done nothing."""
        sharer = self._sharer(job_id, speeds)
        if sharer is None:
            return None
        start, end = self._life(job_id)
        samples = sum(self._samples(row) for row in self._rows[job_id])
        gpus = self._window.gpus(start, end)
        return sharer.rho(samples, start, end, gpus, self._presence) if gpus and samples else None

    def _samples(self, row: AllocationRow) -> float:
        """Of the row, those of its part within the window, which came evenly over it."""
        end = self._window.now if row.end is None else row.end
        left = min(end, self._window.end) - row.start
        return row.samples * left / (end - row.start) if left > 0 else 0.0

    def fairness(self, speeds: Callable[[JobRow], Speeds]) -> Fairness | None:
        """Between all that had jobs; None where they are less than two. speeds: those of a job."""
        window = self._window
        trained = [job_id for job_id, rows in self._rows.items() if any(_within(row, window) for row in rows)]
        groups = len({self._groups[job_id] for job_id in trained})
        if groups < 2:
            return None
        known = {job_id: speeds(self._jobs[job_id]) for job_id in trained}
        division = self._division({job_id: self._sharer(job_id, known[job_id]) for job_id in trained})
        rhos = [rho for job_id in trained if self._ended(job_id) and (rho := self.rho(job_id, known[job_id]))]
        return Fairness(
            between=self._between,
            groups=groups,
            jain=_known(division.jain()),
            jain_gpus=_known(division.jain_gpus()),
            ended=len(rhos),
            rho_mean=math.fsum(rhos) / len(rhos) if rhos else None,
            rho_worst=max(rhos, default=None),
        )

    def _division(self, sharers: Mapping[int, Sharer | None]) -> ShareOfGpus:
        rows = [row for job_id in sharers for row in self._rows[job_id]]
        start = max(self._window.start, min(row.start for row in rows))
        known, division = {job_id: sharer for job_id, sharer in sharers.items() if sharer is not None}, ShareOfGpus()
        for _, held in looks(_changes(rows), start, self._window.end):
            division.add([(known[job_id], gpus) for job_id, gpus in held.items() if job_id in known])
        return division

    def _sharer(self, job_id: int, speeds: Speeds) -> Sharer | None:
        if not speeds or job_id not in self._jobs:
            return None
        try:
            sizes = elastic_request.parse(self._jobs[job_id].request).sizes()
        except RequestError:
            return None
        return Sharer(self._groups[job_id], speeds, sizes[0], sizes[-1]) if sizes else None

    def _ended(self, job_id: int) -> bool:
        at = self._jobs[job_id].end_time
        return at is not None and at <= self._window.end

    def _life(self, job_id: int) -> tuple[float, float]:
        """From submission, or where a requeue made that later than its first training, from that."""
        job, first = self._jobs[job_id], min((row.start for row in self._rows[job_id]), default=math.inf)
        end = self._window.end if job.end_time is None else min(job.end_time, self._window.end)
        return min(job.submit_time, first, end), end


def _within(row: AllocationRow, window: Window) -> bool:
    return row.start < window.end and (row.end is None or row.end > window.start)


def _changes(rows: Iterable[AllocationRow]) -> list[tuple[float, int, int]]:
    """(when, job, GPUs from then on), what ends before what begins."""
    lasting = [row for row in rows if row.end is None or row.end > row.start]
    ends = [(row.end, row.job_id, 0) for row in lasting if row.end is not None]
    found = [*ends, *((row.start, row.job_id, row.gpus) for row in lasting)]
    return sorted(found, key=lambda change: (change[0], change[2] > 0))


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value
