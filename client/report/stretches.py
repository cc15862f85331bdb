"""What of the recorded allocations lies in a report's window.

Promise: pure; hours are those of the window. Limit: rows that the viewer sees in full; samples are taken to have come
evenly over a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_elastic.protocol.answers.acct import Allocation
from slurm_elastic.protocol.answers.usage import CapacityPoint


@dataclass(frozen=True, slots=True)
class Stretch:
    """An allocation, cut to the window; times in unix seconds."""

    allocation: Allocation
    job_id: int
    gpus: int
    start: float
    end: float
    samples: float
    """Its share of the allocation's."""
    pause_s: float
    """Of the resize that began it; 0 where that was before the window."""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.seconds / 3600


def clipped(rows: Iterable[Allocation], start: float, end: float) -> list[Stretch]:
    """The parts of the rows that lie within [start, end]."""
    found = []
    for row in rows:
        began = row.start or 0.0
        left, right = max(start, began), min(end, end if row.end is None else row.end)
        if right <= left:
            continue
        samples = (row.samples or 0) * (min(1.0, (right - left) / row.elapsed_s) if row.elapsed_s else 1.0)
        pause_s = (row.pause_s or 0.0) if left == began else 0.0
        found.append(Stretch(row, row.job_id, row.gpus, left, right, samples, pause_s))
    return found


def used(rows: Iterable[Stretch], capacity: Sequence[CapacityPoint], end: float) -> float | None:
    """Share of the GPU-hours that elastic jobs might have had in which they trained, from the first moment at which
    capacity is known; None: it never is."""
    ends = [point.at for point in capacity[1:]] + [end]
    might = sum(point.gpus * max(0.0, until - point.at) for point, until in zip(capacity, ends, strict=True))
    if not might:
        return None
    since = capacity[0].at
    return sum(row.gpus * max(0.0, row.end - max(since, row.start)) for row in rows) / might
