"""The policies: what each counts as a job's progress, and the term that progress has in the objective.

A policy chooses progress (samples, or samples times their statistical efficiency), the utility u of it, and which
batches may be used.

Promise: progress is 1 at a job's reference size and batch; a term grows with progress and with the job's weight.
Limit: a policy sees one job at a time; terms are added, so none expresses a wish about two jobs together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .job_view import JobView, nodes_at
from .models import goodput
from .solver.knapsack import Option

DEFAULT_POLICY = "auto"
"""A job that trains a fixed number of epochs ends when its samples are done, and its request says which batches its
user accepts: throughput within them is its progress. One that stops at a reached quality pays for the samples that a
large batch wastes: its progress is goodput. Logarithms of both have the same unit, a relative gain."""
POLICIES: dict[str, str] = {
    "auto": "sum of the logarithms of each job's own progress: goodput until a quality is reached, else throughput",
    "throughput": "sum of speedups, the batch as large as its range pays: the paper's objective",
    "goodput": "sum of speedups counted in goodput (throughput x statistical efficiency)",
    "log-throughput": "sum of the logarithms of speedups: proportional fairness, any accepted batch as good as another",
    "log-goodput": "sum of the logarithms of goodput: proportional fairness",
    "harmonic": "minus the sum of 1 / goodput: time per unit of progress",
    "fixed-batch": "sum of speedups with every job's batch held at its reference: the paper's baseline",
    "static": "every job keeps the size it asked for: what Slurm does by itself",
}
EVEN_SPREAD = 1e-4
"""Value lost per doubling of GPUs: exact ties go to an even spread and to fewer GPUs."""
IDLE_SHARE = 0.01
"""Progress a job without GPUs is credited with under log and harmonic, relative to its smallest size."""
UNMEASURED = 0.85
"""Exponent of the speedup assumed for a job that nothing is known of."""


@dataclass(frozen=True, slots=True)
class Row:
    """One choice of a job: progress relative to the reference before and after the cost of moving there."""

    gpus: int
    batch: int
    speedup: float
    effective: float


def reference_speed(job: JobView) -> float:
    """Samples per second at the reference size and batch."""
    if job.model is None:
        return 1.0
    return job.model.throughput(job.reference_gpus, nodes_at(job, job.reference_gpus), job.reference_batch)


def speedup_at(job: JobView, policy: str, reference: float, gpus: int, nodes: int, batch: int) -> float:
    """Progress per second relative to the reference size and batch."""
    return speedups(job, policy, reference, [(gpus, nodes, batch)])[0]


def speedups(job: JobView, policy: str, reference: float, points: Sequence[tuple[int, int, int]]) -> list[float]:
    """Progress per second at each (GPUs, nodes, batch), relative to the reference size and batch."""
    if job.model is None:
        return [math.pow(gpus / job.reference_gpus, UNMEASURED) for gpus, _, _ in points]
    speeds = job.model.throughputs(points)
    if not _counts_efficiency(job, policy):
        return [speed / reference for speed in speeds]
    worth = {b: goodput.efficiency(b, job.reference_batch, job.noise_scale) for b in {p[2] for p in points}}
    return [speed / reference * worth[point[2]] for speed, point in zip(speeds, points, strict=True)]


def _counts_efficiency(job: JobView, policy: str) -> bool:
    """Whether a sample at a large batch is worth less to this job under this policy."""
    return job.quality if policy == "auto" else policy in ("goodput", "log-goodput", "harmonic")


def static_choices(job: JobView) -> tuple[tuple[int, int], ...]:
    """What a job that starts may have without elasticity: nothing if it may wait, else what it asked for."""
    asked = tuple(c for c in job.choices if c[0] in (0, job.reference_gpus))
    return asked if any(k for k, _ in asked) else job.choices


def terms(job: JobView, table: list[Row], policy: str) -> list[Option]:
    """The objective's term of each choice, ties broken towards an even spread."""
    least = min((r.effective for r in table if r.gpus), default=1.0)
    out = list[Option]()
    for row in table:
        s = row.effective if row.gpus else 0.0
        s *= 1.0 - EVEN_SPREAD * math.log2(row.gpus) if row.gpus > 1 else 1.0
        if policy in ("auto", "log-throughput", "log-goodput"):
            value = math.log(max(s, IDLE_SHARE * least))
        elif policy == "harmonic":
            value = -1.0 / max(s, IDLE_SHARE * least)
        else:
            value = s
        out.append(Option(row.gpus, job.weight * value, row.batch))
    return out
