"""The key figures of `selastic report`, for its page and as text, and what of the recorded allocations lies in its
window.

Promise: pure, without the packages that a page needs; hours, samples and resizes are those of the jobs shown and of the
window, fairness is between all. Limit: the median pause is that of resizes that paused at all; samples are taken to
have come evenly over a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from slurm_elastic.protocol.answers.history import Allocation, CapacityPoint, Fairness, Usage
from slurm_elastic.protocol.text.tables import number


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


Figure = tuple[str, str]
"""A value, and what it is."""


def text(usage: Usage) -> str:
    """Window and figures, a line each."""
    rows = clipped(usage.allocations, usage.start, usage.end)
    shown = key_figures(usage, rows) + (fairness_figures(usage.fairness) if usage.fairness else [])
    width = max(len(value) for value, _ in shown)
    return "\n".join([shown_time(usage, rows), *(f"{value:>{width}}  {label}" for value, label in shown)]) + "\n"


def key_figures(usage: Usage, rows: Sequence[Stretch]) -> list[Figure]:
    """Of the jobs shown; rows: their allocations, cut to the window."""
    jobs, pauses = {row.job_id for row in rows}, [row.pause_s for row in rows if row.pause_s]
    hours = sum(row.gpu_hours for row in rows)
    lost = sum(row.pause_s * row.gpus for row in rows) / 3600
    share = used(rows, usage.capacity, usage.end) if usage.capacity else None
    return [
        (str(len(jobs)), "jobs"),
        (f"{hours:,.0f}" if hours >= 1000 else number(hours), "GPU-hours"),
        (
            "unknown" if share is None else f"{100 * min(1.0, share):.0f}%",
            "of the GPUs they might hold were in training",
        ),
        _samples(sum(row.samples for row in rows)),
        (str(len(pauses)), "resizes"),
        (f"{sorted(pauses)[len(pauses) // 2]:.2f} s" if pauses else "none", "median pause"),
        (_percent(lost / hours) if hours else "none", "of the GPU-hours lost to pauses"),
    ]


def fairness_figures(fairness: Fairness) -> list[Figure]:
    """Between all whose jobs shared the GPUs."""
    ended = f"{fairness.ended} {'job' if fairness.ended == 1 else 'jobs'} that ended"
    return [
        (_known(fairness.jain, 3), f"Jain's index of the progress of {fairness.groups} {fairness.between}s (1: even)"),
        (_known(fairness.jain_gpus, 3), "Jain's index of their GPUs"),
        (_known(fairness.rho_mean, 2), f"rho, mean of {ended}"),
        (_known(fairness.rho_worst, 2), "rho of the worst of them"),
    ]


def first_moment(usage: Usage, rows: Sequence[Stretch]) -> float:
    """When the first job shown trained in the window."""
    return min((row.start for row in rows), default=usage.start)


def shown_time(usage: Usage, rows: Sequence[Stretch]) -> str:
    """From when to when, in words."""
    here = datetime.fromtimestamp(usage.end).astimezone()
    zone = f"{here.tzname()} ({here.strftime('%z')[:3]}:{here.strftime('%z')[3:5]})"
    return f"{_when(first_moment(usage, rows))} to {_when(usage.end)}, times in {zone}"


def _known(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


def _samples(count: float) -> Figure:
    for size, name in ((1e9, "billion "), (1e6, "million ")):
        if count >= size:
            return number(count / size), f"{name}samples trained on"
    return f"{count:,.0f}", "samples trained on"


def _percent(share: float) -> str:
    return "under 0.01%" if 0 < share < 1e-4 else f"{100 * share:.2f}%"


def _when(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
