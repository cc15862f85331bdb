"""A mean completion time that no policy reaches in the artifact's simulator: divisible GPUs, known curves, free moves.

A training phase needs at least `area` GPU-seconds (at its best samples' worth per GPU) and `height` seconds (at its
fastest). Let every job first spend the pause of its start and the share `a` of its height, then need only the share
1 - a of its area, on one machine that does the work of all GPUs: there, shortest remaining first is optimal. What any
policy does is one such schedule, so the largest of these means over `a` bounds them all.
Limit: speeds and worths are taken at the placements and micro batches that were measured, those in between are not.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

BATCHES = 48
"""Batches at which a sample's worth is read; between them it is interpolated."""
SHARES = 21


@dataclass(frozen=True)
class Need:
    """The least that a training needs."""

    area: float
    """GPU-seconds."""
    height: float
    """Seconds."""


def need(app: Any, one_gpu_batch: int = 0) -> Need:
    """Of one of the artifact's applications; `one_gpu_batch`: it runs on one GPU at this batch alone."""
    points = _points(app, one_gpu_batch)
    gpus, batch, seconds = (np.array(column, dtype=float) for column in zip(*points, strict=True))
    grid = np.unique(np.geomspace(app.init_batch_size, app.max_batch_size, BATCHES).round().astype(int))
    area = height = 0.0
    for epoch in range(app.get_completion_epoch(app.init_batch_size) + 1):
        work = float(app.get_progress(epoch + 1) - app.get_progress(epoch))
        gains = [_gain(app, int(size), epoch) for size in grid]
        each = seconds / np.interp(batch, grid, gains)
        area += work * float((gpus * each).min())
        height += work * float(each.min())
    return Need(area, height)


def _gain(app: Any, batch: int, epoch: int) -> float:
    """Steps of the first batch that a step of this batch is worth."""
    squared, variance = app.get_grad_stats(batch, epoch)
    return float((variance + squared) / (variance * app.init_batch_size / batch + squared))


def _points(app: Any, one_gpu_batch: int) -> list[tuple[int, int, float]]:
    """(GPUs, batch, seconds a step) of all that was measured, with as many accumulated micro batches as fit."""
    out = list[tuple[int, int, float]]()
    for table in (app.placements, app.scalability):
        for row in table.itertuples():
            gpus, micro = int(row.num_replicas), int(row.local_bsz)
            if one_gpu_batch and gpus > 1:
                continue
            most = (one_gpu_batch or app.max_batch_size) // (gpus * micro)
            for steps in range(1, min(most, 64) + 1):
                if gpus * micro * steps >= app.init_batch_size:
                    seconds = row.step_time + (steps - 1) * (row.step_time - row.sync_time)
                    out.append((gpus, gpus * micro * steps, seconds))
    return out


def mean_bound(jobs: Sequence[tuple[float, Need]], gpus: int, pause_s: float) -> float:
    """The largest of the lower bounds of the mean completion time of jobs (submitted at, need)."""
    return max(_bound(jobs, gpus, pause_s, share) for share in np.linspace(0.0, 1.0, SHARES))


def _bound(jobs: Sequence[tuple[float, Need]], gpus: int, pause_s: float, share: float) -> float:
    later = [(at + pause_s + share * need.height, (1 - share) * need.area / gpus) for at, need in jobs]
    return (_shortest_first(later) - sum(at for at, _ in jobs)) / len(jobs)


def _shortest_first(jobs: Sequence[tuple[float, float]]) -> float:
    """Sum of the ends of jobs (released at, work) on one machine that may interrupt them."""
    coming, ready, now, ends = sorted(jobs), list[float](), 0.0, 0.0
    at = 0
    while at < len(coming) or ready:
        if not ready:
            now = max(now, coming[at][0])
        while at < len(coming) and coming[at][0] <= now:
            heapq.heappush(ready, coming[at][1])
            at += 1
        left = heapq.heappop(ready)
        until = coming[at][0] if at < len(coming) else float("inf")
        if now + left <= until:
            now += left
            ends += now
        else:
            heapq.heappush(ready, left - (until - now))
            now = until
    return ends
