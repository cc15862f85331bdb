"""How evenly a window's jobs were served: Jain's index and finish-time fairness, counted as in `selastic simulate`.

Promise: pure. Limit: speeds are those of a job's curve, so at as many samples per GPU as were measured last, and up to
twice the largest size measured; a job without a curve is only present; the GPUs of all pools are taken together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.answers.history import Fairness
from slurm_elastic.protocol.errors import RequestError

from .division import Presence, ShareOfGpus, Sharer, groups_of, looks

if TYPE_CHECKING:
    from slurm_elastic.db.rows import AllocationRow, JobRow

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
