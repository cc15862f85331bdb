"""What one job may have, before anything is known of its speed: its sizes, and the batches to consider at each.

Promise: sizes ascend, and so do the batches at each; what the job has is among them wherever it may be kept. A size
without a feasible batch is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..derived.table import Derived
from .errors import PlanInputError
from .job_view import JobView, check_batches, check_sizes, nodes_at
from .models import goodput
from .models.configurations import Configurations, of_sizes
from .models.step_time import Array
from .policies import Policy

EVEN_SPREAD = 1e-4
"""Value lost per doubling of GPUs: exact ties go to an even spread and to fewer GPUs."""


@dataclass(frozen=True, slots=True, eq=False)
class Grid:
    """The configurations of one job."""

    at: Configurations
    """Where a job may have no GPUs, one GPU and one sample stand for that: of no meaning, but a number."""
    gpus: Array
    """Of each size, 0 where it may go without."""
    places: dict[int, int]
    """The place of each size."""
    evenness: Array
    """What a size's progress is multiplied by so that ties go to an even spread."""
    current: int
    """The place of the size that the job has; -1: it is none of them."""
    present: int
    """The place of the batch that it has among those of that size; -1: it has none, or that is none of them."""


Grids = Derived[Any, tuple[JobView, Policy], Grid]


def grid_inputs(asked: tuple[JobView, Policy]) -> tuple[Any, ...]:
    """What the grid of a job under a policy is made from: its sizes with their nodes, its batches, the GPUs and the
    batch that it has, and the batch that the others are held near to; 0: none is."""
    job, policy = asked
    gpus, batch = job.current_gpus, job.current_batch
    if gpus > 0 and (job.frozen or policy.fixed_size):
        return ((gpus, nodes_at(job, gpus)),), None, gpus, batch, 0
    sizes = _asked_for(job) if policy.fixed_size else job.choices
    return sizes, job.batches, gpus, batch, job.reference_batch if policy.fixed_batch else 0


def grid_of(asked: tuple[JobView, Policy]) -> Grid:
    """The grid of a job under a policy. Raises PlanInputError where no size has a feasible batch."""
    job, _ = asked
    sizes, batches, gpus, batch, only = grid_inputs(asked)
    rows = list[tuple[int, int, tuple[int, ...]]]()
    try:
        check_sizes(sizes)
        for size, nodes in sorted(dict(sizes).items()):
            feasible = (batch,) if batches is None else batches(size) if size else (1,)
            check_batches(size, feasible if batches is not None else ())
            if only and size:
                feasible = goodput.nearest(feasible, only)
            if size == gpus and size and batch > 0 and batch not in feasible:
                feasible = tuple(sorted((*feasible, batch)))
            if feasible:
                rows.append((size, nodes, feasible))
    except PlanInputError as error:
        raise PlanInputError(f"job {job.label}: {error}") from None
    if not rows:
        raise PlanInputError(f"job {job.label} has no size with a feasible batch among {[k for k, _ in job.choices]}")
    return _made(rows, gpus, batch)


def _asked_for(job: JobView) -> tuple[tuple[int, int], ...]:
    """What a job that starts may have without elasticity: nothing if it may wait, else what it asked for."""
    asked = tuple(c for c in job.choices if c[0] in (0, job.reference_gpus))
    return asked if any(k for k, _ in asked) else job.choices


def _made(rows: list[tuple[int, int, tuple[int, ...]]], gpus: int, batch: int) -> Grid:
    places = {row[0]: i for i, row in enumerate(rows)}
    at = of_sizes([(max(1, size), max(1, nodes), batches) for size, nodes, batches in rows])
    current = places.get(gpus, -1) if gpus > 0 else -1
    there = rows[current][2] if current >= 0 else ()
    return Grid(
        at=at,
        gpus=np.array(list(places), dtype=np.float64),
        places=places,
        evenness=1.0 - EVEN_SPREAD * np.log2(at.gpus),
        current=current,
        present=there.index(batch) if batch in there else -1,
    )
