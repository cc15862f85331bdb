"""The speeds in decisions' evidence: before, after, and at the sizes that were considered. Pure.

Promise: the models of all rows of a round are asked at once. Limit: of a job without a model only its reports are
known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slurm_elastic.protocol.records import record

from ..optimizer.targets import Target
from .pools.candidate import Candidate
from .pools.speeds import doubts_at, speeds_at
from .running.job import RunningJob


@record(frozen=True, slots=True)
class Row:
    """What a row is about: what a job comes to, and what the optimizer was asked and said of it, if it was."""

    running: RunningJob
    gpus: int
    batch: int
    member: Candidate | None = None
    target: Target | None = None


@dataclass(frozen=True, slots=True)
class Speeds:
    """Throughput and progress before and after, with the reports behind them."""

    reports_from: int
    reports_to: int
    samples_per_s_from: float | None = None
    samples_per_s_to: float | None = None
    modelled: bool | None = None
    doubt: float | None = None
    speedup_from: float | None = None
    speedup_to: float | None = None
    considered: tuple[tuple[int, int, float, float | None], ...] = ()
    """The next best sizes: GPUs, batch, value, samples/s."""


def speeds_of(rows: Sequence[Row]) -> list[Speeds]:
    """Those of each row."""
    reports = [_reports(row.running) for row in rows]
    others = [row.target.alternatives if row.target is not None else () for row in rows]
    speeds = speeds_at([(row.member, _sizes(row, own)) for row, own in zip(rows, others, strict=True)])
    unseen = (row.member if row.gpus not in known else None for row, known in zip(rows, reports, strict=True))
    doubts = doubts_at([(member, row.gpus) for member, row in zip(unseen, rows, strict=True)])
    return [_speeds(*each) for each in zip(rows, reports, others, speeds, doubts, strict=True)]


_Others = tuple[tuple[int, int, float], ...]
"""(GPUs, batch, value)"""


def _reports(running: RunningJob) -> dict[int, int]:
    """By GPUs, how many reports there are."""
    counts: dict[int, int] = {}
    for seen in running.state.observations:
        counts[seen.gpus] = counts.get(seen.gpus, 0) + seen.count
    return counts


def _sizes(row: Row, others: _Others) -> list[tuple[int, int]]:
    """Before, after, the least that the request accepts, and the others."""
    running, request = row.running, row.running.job.request
    least = request.min_gpus, max(request.batches(request.min_gpus), default=row.batch)
    return [(running.gpus, running.batch), (row.gpus, row.batch), least, *((gpus, batch) for gpus, batch, _ in others)]


def _speeds(
    row: Row, reports: Mapping[int, int], others: _Others, speeds: Sequence[float], doubt: float | None
) -> Speeds:
    counts = reports.get(row.running.gpus, 0), reports.get(row.gpus, 0)
    if not speeds:
        return Speeds(*counts, considered=tuple((*other, None) for other in others))
    before, after, unit, *rest = speeds
    return Speeds(
        *counts,
        samples_per_s_from=before,
        samples_per_s_to=after,
        modelled=row.gpus not in reports,
        doubt=None if doubt is None else round(doubt, 3),
        speedup_from=before / unit,
        speedup_to=after / unit,
        considered=tuple((*other, round(speed, 3)) for other, speed in zip(others, rest, strict=True)),
    )
