"""What many models say at once: the progress that jobs make at their configurations, relative to one GPU at the
reference batch, their speeds, and their doubts.

Relative not to the size that a job started with: a sum of such speedups would give of two equal jobs the one more that
happened to begin smaller. Promise: each answer is the model's own, and fitted models answer together, in arrays: one of
them alone takes about as long as a hundred; every speedup is positive and finite, or refused with the job and the
configuration. Limit: of other models each is asked by itself.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from .errors import PlanInputError
from .job_view import JobView, Model, nodes_at
from .models import step_time
from .models.step_time import Array, Configurations, ends_of
from .models.throughput import ThroughputModel, throughputs_of, uncertainties_of
from .policies import Policy

UNMEASURED = 0.85
"""Exponent of the speedup assumed for a job that nothing is known of."""
SLOWEST, FASTEST = 1e-100, 1e100
"""Samples per second that are believed."""


def speedups_of(job: JobView, policy: Policy, points: Sequence[tuple[int, int, int]]) -> list[float]:
    """Progress per second of one job at each (GPUs, nodes, batch)."""
    if not points:
        return []
    found: list[float] = speedups([job], policy, step_time.of_points(points))[0].tolist()
    return found


def speedups(jobs: Sequence[JobView], policy: Policy, at: Configurations) -> Array:
    """Progress per second of each job at its configurations: batch x size."""
    speeds, reference = np.empty(at.batch.shape), np.ones(len(jobs))
    models = {j: job.model for j, job in enumerate(jobs) if isinstance(job.model, ThroughputModel)}
    if models:
        fitted, each = list(models), list(models.values())
        where = slice(None) if len(models) == len(jobs) else np.isin(at.job_of_size, fitted)
        speeds[:, where] = throughputs_of(each, at.of_jobs(fitted))
        batches = np.array([jobs[j].reference_batch for j in fitted], dtype=np.float64)
        reference[fitted] = throughputs_of(each, step_time.one_gpu(batches))[0]
    for j, job in enumerate(jobs if len(models) < len(jobs) else ()):
        own = slice(at.sizes[j], at.sizes[j + 1])
        if job.model is None:
            speeds[:, own] = at.gpus[own] ** UNMEASURED
        elif j not in models:
            theirs = at.of_jobs([j])
            speeds[:, own] = theirs.arranged(job.model.throughputs(theirs.points()), len(speeds))
            reference[j] = job.model.throughput(1, 1, job.reference_batch)
    least, most = min(speeds.min(), reference.min()), max(speeds.max(), reference.max())
    if not (least >= SLOWEST and most <= FASTEST):
        _refuse(jobs, at, speeds, reference)
    speeds /= reference[at.job_of_size]
    return _efficient(jobs, policy, speeds, at)


def _refuse(jobs: Sequence[JobView], at: Configurations, speeds: Array, reference: Array) -> None:
    """PlanInputError for the first speed that cannot be."""
    for j, job in enumerate(jobs):
        own = range(at.sizes[j], at.sizes[j + 1])
        seen = [(at.gpus[i], at.nodes[i], at.batch[row, i], speeds[row, i]) for i in own for row in range(len(speeds))]
        for gpus, nodes, batch, speed in (*seen, (1, 1, job.reference_batch, reference[j])):
            if not SLOWEST <= speed <= FASTEST:
                where = f"at {int(gpus)} GPUs on {int(nodes)} nodes, batch {int(batch)}"
                said = f"{float(speed)} samples/s {where}"
                raise PlanInputError(f"job {job.label}: {said}; accepted: {SLOWEST:.0e} to {FASTEST:.0e}")


def _efficient(jobs: Sequence[JobView], policy: Policy, speeds: Array, at: Configurations) -> Array:
    """Speeds of which each sample counts by its worth at that batch, in the jobs that are measured by that."""
    scales = np.full(len(jobs), np.nan)
    for j, view in enumerate(jobs):
        counts = view.quality if policy.efficiency is None else policy.efficiency
        if counts and view.noise_scale is not None and view.model is not None:
            if not 0 <= view.noise_scale < math.inf:
                raise PlanInputError(f"job {view.label}: noise scale {view.noise_scale} is not 0 or more")
            scales[j] = view.noise_scale
    if np.isnan(scales).all():
        return speeds
    scale, reference = scales[at.job_of_size], np.array([view.reference_batch for view in jobs])[at.job_of_size]
    return np.where(np.isnan(scale), speeds, speeds * ((scale + reference) / (scale + at.batch)))


def uncertainties(jobs: Sequence[JobView], gpus: Array, nodes: Array, counts: Array) -> Array:
    """Relative 1-sigma of each job's speed at sizes that it was not measured at, so many of each job."""
    ends = step_time.ends_of(counts)
    doubts = np.empty(len(gpus))
    fitted = np.array([isinstance(job.model, ThroughputModel) for job in jobs], dtype=bool)
    if fitted.any():
        models = [job.model for job in jobs if isinstance(job.model, ThroughputModel)]
        where = fitted.repeat(counts)
        own = step_time.ends_of(counts[fitted])
        doubts[where] = uncertainties_of(models, gpus[where], nodes[where], own)
    for j in (~fitted).nonzero()[0].tolist():
        model, own = jobs[j].model, slice(ends[j], ends[j + 1])
        if model is not None:
            sizes = zip(gpus[own].tolist(), nodes[own].tolist(), strict=True)
            doubts[own] = model.uncertainties([(int(k), int(n)) for k, n in sizes])
    return doubts


def throughputs_at(asked: Sequence[tuple[Model, Sequence[tuple[int, int, int]]]]) -> list[list[float]]:
    """Samples/s of each model at its own (GPUs, nodes, global batch)."""
    fitted = [(model, points) for model, points in asked if isinstance(model, ThroughputModel) and points]
    together = list[list[float]]()
    if fitted:
        gpus, nodes, batch = np.array([point for _, points in fitted for point in points], dtype=np.float64).T
        ends = ends_of([len(points) for _, points in fitted])
        at = Configurations(gpus, nodes, batch[None], np.ones(len(gpus), dtype=np.int64), ends)
        speeds = throughputs_of([model for model, _ in fitted], at)[0].tolist()
        together = [speeds[start:end] for start, end in pairwise(ends.tolist())]
    found = iter(together)
    return [
        next(found) if isinstance(model, ThroughputModel) and points else model.throughputs(points)
        for model, points in asked
    ]


def uncertainties_at(asked: Sequence[tuple[Model, tuple[int, int]]]) -> list[float]:
    """Relative 1-sigma of each model's throughput at its own (GPUs, nodes)."""
    fitted = [(model, size) for model, size in asked if isinstance(model, ThroughputModel)]
    together = list[float]()
    if fitted:
        gpus, nodes = np.array([size for _, size in fitted], dtype=np.float64).T
        ends = np.arange(len(fitted) + 1)
        together = uncertainties_of([model for model, _ in fitted], gpus, nodes, ends).tolist()
    found = iter(together)
    return [
        next(found) if isinstance(model, ThroughputModel) else model.uncertainties([size])[0] for model, size in asked
    ]


def speeds_at(asked: Sequence[tuple[JobView | None, Sequence[tuple[int, int]]]]) -> list[list[float]]:
    """Samples/s of each job at its own (GPUs, global batch); of one without a model, or None, none.

    A size lies on the nodes that its choices say, else as dense as on the densest of them.
    """
    found = iter(throughputs_at([(job.model, _on_nodes(job, sizes)) for job, sizes in asked if job and job.model]))
    return [next(found) if job and job.model else [] for job, _ in asked]


def _on_nodes(job: JobView, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    nodes = dict(job.choices)
    dense = max((gpus / count for gpus, count in job.choices if count), default=1.0)
    return [(gpus, nodes.get(gpus) or max(1, round(gpus / dense)), max(1, batch)) for gpus, batch in sizes]


def doubts_at(asked: Sequence[tuple[JobView | None, int]]) -> list[float | None]:
    """Relative 1-sigma of each job's speed at so many GPUs; None of one without a model."""
    found = iter(
        uncertainties_at([(job.model, (gpus, nodes_at(job, gpus))) for job, gpus in asked if job and job.model])
    )
    return [next(found) if job and job.model else None for job, _ in asked]
