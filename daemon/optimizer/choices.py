"""What one job may have, at which batch, what a move there costs, and what each choice is worth in the objective.

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
from .policies import POLICIES, Policy
from .solver.table import Choice

NOISE_FACTOR = 6.0
"""Standard deviations of a curve's noise that a move must gain: two curves are compared, and the best of many choices
is taken. At 3, among a hundred alike jobs with independent noise, 5-12 % still move per decision; at 6, 0.4 %."""
BATCH_GAIN = 0.02
"""Least gain for which the batch alone is changed: learning rates move with it."""
QUANTILE = 1.2816
"""Standard deviations below the mean of the pessimistic (10 %) quantile that bounds exploration."""
UNMEASURED_PENALTY = 0.5
"""What moving a running job is charged before anything was measured of it."""
UNMEASURED = 0.85
"""Exponent of the speedup assumed for a job that nothing is known of."""
FASTEST = 1e100
"""Most samples per second that are believed."""
EVEN_SPREAD = 1e-4
"""Value lost per doubling of GPUs: exact ties go to an even spread and to fewer GPUs."""


def choices(job: JobView, policy_name: str) -> list[Choice]:
    """The choices of one job under a policy, each with its term in the objective."""
    policy = POLICIES.get(policy_name)
    if policy is None:
        raise PlanInputError(f"policy '{policy_name}' is not known; accepted: {', '.join(POLICIES)}")
    check(job)
    if job.current_gpus > 0 and (job.frozen or policy.fixed_size):
        progress = speedup_at(job, policy, job.current_gpus, nodes_at(job, job.current_gpus), job.current_batch)
        return _terms(job, policy, [Choice(job.current_gpus, progress, job.current_batch, progress)])
    sizes = _asked_for(job) if policy.fixed_size else job.choices
    offered = [(gpus, nodes, _batches(job, policy, gpus)) for gpus, nodes in sizes]
    points = [(gpus, nodes, batch) for gpus, nodes, batches in offered for batch in batches]
    speeds, at, found, cost = speedups(job, policy, points), 0, list[Choice](), penalty(job)
    for gpus, _, batches in offered:
        if gpus == 0:
            found.append(Choice(0, 0.0))
        elif batches:
            own_cost = penalty(job, gpus) if gpus in job.restart_sizes else cost
            found.append(_best(job, gpus, batches, speeds[at : at + len(batches)], own_cost))
            at += len(batches)
    if not found:
        raise PlanInputError(f"job {job.label} has no size with a feasible batch among {[k for k, _ in job.choices]}")
    return _terms(job, policy, _explored(job, _worth_each_gpu(job, found)))


def _asked_for(job: JobView) -> tuple[tuple[int, int], ...]:
    """What a job that starts may have without elasticity: nothing if it may wait, else what it asked for."""
    asked = tuple(c for c in job.choices if c[0] in (0, job.reference_gpus))
    return asked if any(k for k, _ in asked) else job.choices


def _batches(job: JobView, policy: Policy, gpus: int) -> tuple[int, ...]:
    """The batches to consider at one size: the feasible ones, and the present one."""
    if gpus == 0:
        return ()
    batches = job.batches(gpus)
    if policy.fixed_batch:
        batches = goodput.nearest(batches, job.reference_batch)
    if gpus == job.current_gpus and job.current_batch > 0 and job.current_batch not in batches:
        return (*batches, job.current_batch)
    return batches


def speedup_at(job: JobView, policy: Policy, gpus: int, nodes: int, batch: int) -> float:
    """Progress per second relative to one GPU at the reference batch."""
    return speedups(job, policy, [(gpus, nodes, batch)])[0]


def speedups(job: JobView, policy: Policy, points: Sequence[tuple[int, int, int]]) -> list[float]:
    """Progress per second at each (GPUs, nodes, batch), relative to one GPU at the reference batch.

    Not to the size that the job started with: a sum of such speedups would give of two equal jobs the one more that
    happened to begin smaller.
    """
    if job.model is None:
        return [math.pow(gpus, UNMEASURED) for gpus, _, _ in points]
    reference = job.model.throughput(1, 1, job.reference_batch)
    speeds = job.model.throughputs(points)
    if points and not (0 < reference <= FASTEST and min(speeds) > 0 and sum(speeds) <= FASTEST):
        _check_speeds(job, points, speeds, reference)
    if not (job.quality if policy.efficiency is None else policy.efficiency):
        return [speed / reference for speed in speeds]
    worth = {b: goodput.efficiency(b, job.reference_batch, job.noise_scale) for b in {p[2] for p in points}}
    return [speed / reference * worth[point[2]] for speed, point in zip(speeds, points, strict=True)]


def _check_speeds(
    job: JobView, points: Sequence[tuple[int, int, int]], speeds: Sequence[float], reference: float
) -> None:
    at = (1, 1, job.reference_batch)
    for (gpus, nodes, batch), speed in zip([*points, at], [*speeds, reference], strict=True):
        if not 0 < speed <= FASTEST:
            where = f"at {gpus} GPUs on {nodes} nodes, batch {batch}"
            raise PlanInputError(f"job {job.label}: {speed} samples/s {where}; accepted: above 0, up to {FASTEST:.0e}")


def _best(job: JobView, gpus: int, batches: Sequence[int], speeds: Sequence[float], cost: float) -> Choice:
    """The best batch at one size, or the current one while no other is worth its change; valued less its cost."""
    speedup, negated = max(zip(speeds, [-b for b in batches], strict=True))
    batch = -negated
    if gpus != job.current_gpus:
        return Choice(gpus, speedup * (1.0 - cost), batch, speedup)
    if batch == job.current_batch or job.current_batch <= 0:
        return Choice(gpus, speedup, batch, speedup)
    kept = speeds[batches.index(job.current_batch)]
    changed = speedup * (1.0 - max(BATCH_GAIN, NOISE_FACTOR * _sigma(job)))
    if changed > kept:
        return Choice(gpus, changed, batch, speedup)
    return Choice(gpus, kept, job.current_batch, kept)


def penalty(job: JobView, gpus: int = 0) -> float:
    """Share of its progress that a move of this job (to this size) must bring to be worth it; 0 for one that waits."""
    if job.current_gpus == 0:
        return 0.0
    if job.model is None:
        return UNMEASURED_PENALTY
    pause = job.restart_pause_s if gpus in job.restart_sizes else job.pause_s
    return min(0.95, max(pause / job.horizon_s, NOISE_FACTOR * _sigma(job)))


def _sigma(job: JobView) -> float:
    if job.sigma is not None:
        return job.sigma
    return job.model.jitter if job.model is not None else 0.0


def _explored(job: JobView, found: list[Choice]) -> list[Choice]:
    """Without the larger sizes, never measured, that in one case of ten would not even pay for the move there."""
    if job.current_gpus == 0:
        return found
    if job.model is None:  # never grown blindly; smaller only where somebody needs it
        return [choice for choice in found if choice.gpus <= job.current_gpus] or found
    now = next((choice for choice in found if choice.gpus == job.current_gpus), None)
    if now is None:
        return found
    known = job.model.sizes_seen
    guessed = [choice.gpus for choice in found if choice.gpus > now.gpus and choice.gpus not in known]
    nodes, kept = dict(job.choices), 1.0 - penalty(job)
    doubts = job.model.uncertainties([(k, max(1, nodes[k])) for k in guessed])
    restarted = {k: 1.0 - penalty(job, k) for k in job.restart_sizes}
    least = {
        k: now.speedup / (math.exp(-QUANTILE * doubt) * restarted.get(k, kept))
        for k, doubt in zip(guessed, doubts, strict=True)
    }
    return [choice for choice in found if choice.speedup >= least.get(choice.gpus, 0.0)]


def _worth_each_gpu(job: JobView, found: list[Choice]) -> list[Choice]:
    """Without the larger sizes whose further GPUs each bring too little, against the size before them that is left."""
    if job.least_per_gpu <= 0.0 or job.current_gpus == 0:
        return found
    kept = list[Choice]()
    least = job.least_per_gpu * max((choice.speedup / choice.gpus for choice in found if choice.gpus), default=0.0)
    for choice in found:
        more = choice.gpus - kept[-1].gpus if kept else 0
        if choice.gpus <= job.current_gpus or not kept or choice.speedup - kept[-1].speedup >= least * more:
            kept.append(choice)
    return kept


def _terms(job: JobView, policy: Policy, found: list[Choice]) -> list[Choice]:
    """The same choices with their terms in the objective as values, ties broken towards an even spread."""
    floor = policy.least_progress * min((choice.value for choice in found if choice.gpus), default=1.0)
    progress = list[float]()
    for choice in found:
        even = 1.0 - EVEN_SPREAD * math.log2(choice.gpus) if choice.gpus > 1 else 1.0
        progress.append(max(choice.value * even, floor))
    utilities = policy.utilities(progress)
    return [Choice(o.gpus, job.weight * u, o.batch, o.speedup) for o, u in zip(found, utilities, strict=True)]
