"""What many models say of speeds and of their doubts, asked of all at once.

Promise: each answer is the model's own. Fitted models answer together, in arrays: one of them alone takes about as long
as a hundred. Limit: of other models each is asked by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .job_view import JobView, Model, nodes_at
from .models.configurations import Configurations, ends_of
from .models.throughput import ThroughputModel, throughputs_of, uncertainties_of


def throughputs_at(asked: Sequence[tuple[Model, Sequence[tuple[int, int, int]]]]) -> list[list[float]]:
    """Samples/s of each model at its own (GPUs, nodes, global batch)."""
    fitted = [(model, points) for model, points in asked if isinstance(model, ThroughputModel) and points]
    together = iter(_throughputs(fitted) if fitted else ())
    return [
        next(together) if isinstance(model, ThroughputModel) and points else model.throughputs(points)
        for model, points in asked
    ]


def _throughputs(asked: Sequence[tuple[ThroughputModel, Sequence[tuple[int, int, int]]]]) -> list[list[float]]:
    gpus, nodes, batch = np.array([point for _, points in asked for point in points], dtype=np.float64).T
    ends = ends_of([len(points) for _, points in asked])
    at = Configurations(gpus, nodes, batch[None], np.ones(len(gpus), dtype=np.int64), ends)
    speeds = throughputs_of([model for model, _ in asked], at)[0].tolist()
    return [speeds[start:end] for start, end in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)]


def uncertainties_at(asked: Sequence[tuple[Model, tuple[int, int]]]) -> list[float]:
    """Relative 1-sigma of each model's throughput at its own (GPUs, nodes)."""
    fitted = [(model, size) for model, size in asked if isinstance(model, ThroughputModel)]
    together = iter(_uncertainties(fitted) if fitted else ())
    return [
        next(together) if isinstance(model, ThroughputModel) else model.uncertainties([size])[0]
        for model, size in asked
    ]


def _uncertainties(asked: Sequence[tuple[ThroughputModel, tuple[int, int]]]) -> list[float]:
    gpus, nodes = np.array([size for _, size in asked], dtype=np.float64).T
    found: list[float] = uncertainties_of(
        [model for model, _ in asked], gpus, nodes, np.arange(len(asked) + 1)
    ).tolist()
    return found


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
