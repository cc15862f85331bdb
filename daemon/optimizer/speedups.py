"""The progress that jobs make at their configurations, relative to one GPU at the reference batch.

Not to the size that a job started with: a sum of such speedups would give of two equal jobs the one more that happened
to begin smaller. Promise: jobs of fitted models are computed at once; every speed is positive and finite, or refused
with the job and the configuration. Limit: of other models each is asked by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .errors import PlanInputError
from .job_view import JobView
from .models import configurations
from .models.configurations import Configurations
from .models.step_time import Array
from .models.throughput import ThroughputModel, throughputs_of, uncertainties_of
from .policies import Policy

UNMEASURED = 0.85
"""Exponent of the speedup assumed for a job that nothing is known of."""
FASTEST = 1e100
"""Most samples per second that are believed."""


def speedups_of(job: JobView, policy: Policy, points: Sequence[tuple[int, int, int]]) -> list[float]:
    """Progress per second of one job at each (GPUs, nodes, batch)."""
    at = configurations.of_points(points)
    found: list[float] = speedups([job], policy, [at], at).tolist() if points else []
    return found


def speedups(jobs: Sequence[JobView], policy: Policy, each: Sequence[Configurations], at: Configurations) -> Array:
    """Progress per second at each batch of `at`, which are the configurations of `each` job together."""
    speeds, first = np.empty(len(at.batch)), at.first_batch
    reference = np.ones(len(jobs))
    models = {j: job.model for j, job in enumerate(jobs) if isinstance(job.model, ThroughputModel)}
    fitted = list(models)
    if fitted:
        whole = len(fitted) == len(jobs)
        theirs = at if whole else configurations.together([each[j] for j in fitted])
        where = slice(None) if whole else np.isin(at.job_of_size, fitted)[at.size_of_batch]
        speeds[where] = throughputs_of(list(models.values()), theirs)
        batches = np.array([jobs[j].reference_batch for j in fitted], dtype=np.float64)
        reference[fitted] = throughputs_of(list(models.values()), configurations.one_gpu(batches))
    for j in sorted({*range(len(jobs))}.difference(fitted)):
        model, own = jobs[j].model, slice(first[j], first[j + 1])
        if model is None:
            speeds[own] = np.power(each[j].gpus, UNMEASURED)[each[j].size_of_batch]
        else:
            speeds[own] = model.throughputs(each[j].points())
            reference[j] = model.throughput(1, 1, jobs[j].reference_batch)
    if not (speeds.min() > 0 and speeds.max() <= FASTEST and reference.min() > 0 and reference.max() <= FASTEST):
        _refuse(jobs, each, speeds, first, reference)
    job = at.job_of_size[at.size_of_batch]
    speeds /= reference[job]
    return _efficient(jobs, policy, speeds, at.batch, job)


def _refuse(
    jobs: Sequence[JobView], each: Sequence[Configurations], speeds: Array, first: Array, reference: Array
) -> None:
    """PlanInputError for the first speed that cannot be."""
    for j, job in enumerate(jobs):
        points = [*each[j].points(), (1, 1, job.reference_batch)]
        for (gpus, nodes, batch), speed in zip(points, [*speeds[first[j] : first[j + 1]], reference[j]], strict=True):
            if not 0 < speed <= FASTEST:
                where = f"at {gpus} GPUs on {nodes} nodes, batch {batch}"
                said = f"{float(speed)} samples/s {where}"
                raise PlanInputError(f"job {job.label}: {said}; accepted: above 0, up to {FASTEST:.0e}")


def _efficient(jobs: Sequence[JobView], policy: Policy, speeds: Array, batch: Array, job: Array) -> Array:
    """Speeds of which each sample counts by its worth at that batch, in the jobs that are measured by that."""
    scales = np.full(len(jobs), np.nan)
    for j, view in enumerate(jobs):
        counts = view.quality if policy.efficiency is None else policy.efficiency
        if counts and view.noise_scale is not None and view.model is not None:
            if not (math.isfinite(view.noise_scale) and view.noise_scale >= 0):
                raise PlanInputError(f"job {view.label}: noise scale {view.noise_scale} is not 0 or more")
            scales[j] = view.noise_scale
    if np.isnan(scales).all():
        return speeds
    scale, reference = scales[job], np.array([view.reference_batch for view in jobs])[job]
    return np.where(np.isnan(scale), speeds, speeds * ((scale + reference) / (scale + batch)))


def uncertainties(jobs: Sequence[JobView], gpus: Array, nodes: Array, counts: Array) -> Array:
    """Relative 1-sigma of each job's speed at sizes that it was not measured at, so many of each job."""
    ends = configurations.ends_of(counts)
    doubts = np.empty(len(gpus))
    fitted = np.array([isinstance(job.model, ThroughputModel) for job in jobs], dtype=bool)
    if fitted.any():
        models = [job.model for job in jobs if isinstance(job.model, ThroughputModel)]
        where = fitted.repeat(counts)
        own = configurations.ends_of(counts[fitted])
        doubts[where] = uncertainties_of(models, gpus[where], nodes[where], own, np.zeros(own[-1], dtype=bool))
    for j in (~fitted).nonzero()[0].tolist():
        model, own = jobs[j].model, slice(ends[j], ends[j + 1])
        if model is not None:
            sizes = zip(gpus[own].tolist(), nodes[own].tolist(), strict=True)
            doubts[own] = model.uncertainties([(int(k), int(n)) for k, n in sizes])
    return doubts
