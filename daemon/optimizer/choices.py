"""What one job may have, at which batch, and what each move costs it.

What a move costs is part of the objective: penalty = max(pause / horizon, 6 * sigma), so neither noise nor a gain
that its own pause eats moves a job.

Promise: a job that may not move has one choice, what it has; a size is listed once, with its best batch; a running
job's larger sizes that were never measured are listed only where they pay for the move in nine cases of ten.
Limit: one job at a time; whether others need its GPUs more is the solver's question.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from .errors import PlanInputError
from .job_view import JobView, check, nodes_at
from .models import goodput
from .policies import POLICIES, Row, reference_speed, speedup_at, speedups, static_choices

NOISE_FACTOR = 6.0
"""Standard deviations of a curve's noise that a move must gain: two curves are compared, and the best of many choices
is taken. At 3, among a hundred alike jobs with independent noise, 5-12 % still move per decision; at 6, 0.4 %."""
BATCH_GAIN = 0.02
"""Least gain for which the batch alone is changed: learning rates move with it."""
QUANTILE = 1.2816
"""Standard deviations below the mean of the pessimistic (10 %) quantile that bounds exploration."""
UNMEASURED_PENALTY = 0.5
"""What moving a running job is charged before anything was measured of it."""


def rows(job: JobView, policy: str) -> list[Row]:
    """The choices of one job under a policy, the cost of each move charged to its progress."""
    if policy not in POLICIES:
        raise PlanInputError(f"policy '{policy}' is not known; accepted: {', '.join(POLICIES)}")
    check(job)
    reference = reference_speed(job)
    if job.current_gpus > 0 and (job.frozen or policy == "static"):
        nodes = nodes_at(job, job.current_gpus)
        speedup = speedup_at(job, policy, reference, job.current_gpus, nodes, job.current_batch)
        return [Row(job.current_gpus, job.current_batch, speedup, speedup)]
    wanted = static_choices(job) if policy == "static" else job.choices
    offered = [(gpus, nodes, _batches(job, policy, gpus)) for gpus, nodes in wanted]
    points = [(gpus, nodes, batch) for gpus, nodes, batches in offered for batch in batches]
    speeds, at, table, cost = speedups(job, policy, reference, points), 0, list[Row](), penalty(job)
    for gpus, _, batches in offered:
        if gpus == 0:
            table.append(Row(0, 0, 0.0, 0.0))
        elif batches:
            price = penalty(job, gpus) if gpus in job.dear else cost
            table.append(_best(job, gpus, batches, speeds[at : at + len(batches)], price))
            at += len(batches)
    if not table:
        raise PlanInputError(f"job {job.label} has no size with a feasible batch among {[k for k, _ in job.choices]}")
    return _explored(job, table)


def _batches(job: JobView, policy: str, gpus: int) -> tuple[int, ...]:
    """The batches to consider at one size: the feasible ones, and the present one."""
    if gpus == 0:
        return ()
    batches = job.batches(gpus)
    if policy in ("fixed-batch", "static"):
        batches = goodput.nearest(batches, job.reference_batch)
    if gpus == job.current_gpus and job.current_batch > 0 and job.current_batch not in batches:
        return (*batches, job.current_batch)
    return batches


def _best(job: JobView, gpus: int, batches: Sequence[int], speeds: Sequence[float], cost: float) -> Row:
    """The best batch at one size, or the current one while no other is worth its change."""
    speedup, negated = max(zip(speeds, [-b for b in batches], strict=True))
    batch = -negated
    if gpus != job.current_gpus:
        return Row(gpus, batch, speedup, speedup * (1.0 - cost))
    if batch == job.current_batch or job.current_batch <= 0:
        return Row(gpus, batch, speedup, speedup)
    kept = speeds[batches.index(job.current_batch)]
    changed = speedup * (1.0 - max(BATCH_GAIN, NOISE_FACTOR * _sigma(job)))
    if changed > kept:
        return Row(gpus, batch, speedup, changed)
    return Row(gpus, job.current_batch, kept, kept)


def penalty(job: JobView, gpus: int = 0) -> float:
    """Share of its progress that a move of this job (to this size) must bring to be worth it; 0 for one that waits."""
    if job.current_gpus == 0:
        return 0.0
    if job.model is None:
        return UNMEASURED_PENALTY
    pause = job.dear_pause_s if gpus in job.dear else job.pause_s
    return min(0.95, max(pause / job.horizon_s, NOISE_FACTOR * _sigma(job)))


def _sigma(job: JobView) -> float:
    if job.sigma is not None:
        return job.sigma
    return job.model.jitter if job.model is not None else 0.0


def _explored(job: JobView, table: list[Row]) -> list[Row]:
    """Without the larger sizes, never measured, that in one case of ten would not even pay for the move there."""
    if job.current_gpus == 0:
        return table
    if job.model is None:  # never grown blindly; smaller only where somebody needs it
        return [row for row in table if row.gpus <= job.current_gpus] or table
    now = next((r for r in table if r.gpus == job.current_gpus), None)
    if now is None:
        return table
    known = frozenset(job.model.sizes_seen)
    guessed = [row.gpus for row in table if row.gpus > now.gpus and row.gpus not in known]
    nodes = dict(job.choices)
    doubts = job.model.uncertainties([(k, max(1, nodes[k])) for k in guessed])
    rows, cost = zip(guessed, doubts, strict=True), penalty(job)
    kept = {k: 1.0 - penalty(job, k) for k in job.dear}
    least = {k: now.speedup / (math.exp(-QUANTILE * doubt) * kept.get(k, 1.0 - cost)) for k, doubt in rows}
    return [row for row in table if row.speedup >= least.get(row.gpus, 0.0)]
