"""The choices of one job by plain rules, one size and one batch after the other: what the array form is tested against.

Limit: slow; jobs that are refused are not its business.
"""

from __future__ import annotations

import math

from slurm_elastic.daemon.optimizer.choices import EVEN_SPREAD, MOST_PENALTY, NOISE_FACTOR, QUANTILE, UNMEASURED_PENALTY
from slurm_elastic.daemon.optimizer.job_view import JobView, nodes_at
from slurm_elastic.daemon.optimizer.models import goodput
from slurm_elastic.daemon.optimizer.policies import POLICIES, Policy
from slurm_elastic.daemon.optimizer.solver.table import Choice
from slurm_elastic.daemon.optimizer.speedups import UNMEASURED


def choices_reference(job: JobView, policy_name: str) -> list[Choice]:
    """The choices of one job under a policy, each with its term in the objective."""
    policy = POLICIES[policy_name]
    if job.current_gpus > 0 and (job.frozen or policy.fixed_size):
        speedup = _speedup(job, policy, job.current_gpus, nodes_at(job, job.current_gpus), job.current_batch)
        return _terms(job, policy, [Choice(job.current_gpus, speedup, job.current_batch, speedup)])
    found = list[Choice]()
    for gpus, nodes in job.choices:
        asked = gpus in (0, job.reference_gpus) or not any(k == job.reference_gpus for k, _ in job.choices)
        if policy.fixed_size and not asked:
            continue
        if gpus == 0:
            found.append(Choice(0, 0.0))
            continue
        batches = job.batches(gpus)
        if policy.fixed_batch:
            batches = goodput.nearest(batches, job.reference_batch)
        if gpus == job.current_gpus and job.current_batch > 0:
            batches = tuple({*batches, job.current_batch})
        speeds = {batch: _speedup(job, policy, gpus, nodes, batch) for batch in batches}
        if speeds:
            found.append(_best(job, gpus, speeds))
    return _terms(job, policy, _explored(job, _worth_each_gpu(job, found)))


def _speedup(job: JobView, policy: Policy, gpus: int, nodes: int, batch: int) -> float:
    if job.model is None:
        return math.pow(gpus, UNMEASURED)
    speed = job.model.throughput(gpus, nodes, batch) / job.model.throughput(1, 1, job.reference_batch)
    if not (job.quality if policy.efficiency is None else policy.efficiency):
        return speed
    return speed * goodput.efficiency(batch, job.reference_batch, job.noise_scale)


def _best(job: JobView, gpus: int, speeds: dict[int, float]) -> Choice:
    batch = min(speeds, key=lambda b: (-speeds[b], b))
    if gpus != job.current_gpus:
        return Choice(gpus, speeds[batch] * (1.0 - _penalty(job, gpus)), batch, speeds[batch])
    if batch == job.current_batch or job.current_batch <= 0:
        return Choice(gpus, speeds[batch], batch, speeds[batch])
    penalty = min(MOST_PENALTY, max(job.batch_pause_s / job.horizon_s, NOISE_FACTOR * _sigma(job)))
    changed = speeds[batch] * (1.0 - penalty)
    if changed > speeds[job.current_batch]:
        return Choice(gpus, changed, batch, speeds[batch])
    return Choice(gpus, speeds[job.current_batch], job.current_batch, speeds[job.current_batch])


def _penalty(job: JobView, gpus: int) -> float:
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
    now = next((choice for choice in found if choice.gpus == job.current_gpus), None)
    if job.current_gpus == 0:
        return found
    if job.model is None:
        return [choice for choice in found if choice.gpus <= job.current_gpus] or found
    kept, nodes = list[Choice](), dict(job.choices)
    for choice in found:
        if now is not None and choice.gpus > now.gpus and choice.gpus not in job.model.sizes_seen:
            (doubt,) = job.model.uncertainties([(choice.gpus, max(1, nodes[choice.gpus]))])
            least = now.speedup / (math.exp(-QUANTILE * doubt) * (1.0 - _penalty(job, choice.gpus)))
            if choice.speedup < least:
                continue
        kept.append(choice)
    return kept


def _worth_each_gpu(job: JobView, found: list[Choice]) -> list[Choice]:
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
    floor = policy.least_progress * min((choice.value for choice in found if choice.gpus), default=1.0)
    out = list[Choice]()
    for choice in found:
        even = choice.value * (1.0 - EVEN_SPREAD * math.log2(choice.gpus)) if choice.gpus > 1 else choice.value
        value = job.weight * float(policy.utility(max(even, floor)))
        out.append(Choice(choice.gpus, value, choice.batch, choice.speedup))
    return out
