"""What each job may have, at which batch, what a move there costs, and what each choice is worth in the objective.

A job's grid is what it may have before anything is known of its speed: its sizes ascending, and the batches to consider
at each. What a move costs is part of the objective: penalty = max(pause / horizon, 6 * sigma), so neither noise nor a
gain that its own pause eats moves a job. A change of the batch alone has a pause of its own, which is next to nothing.

Promise: a job that may not move has one choice, what it has; a size is listed once, with its best batch, and none
without a feasible one; a running job's larger sizes that were never measured are listed only where they pay for the
move in seven cases of ten. All jobs are computed at once, in arrays, and each gets what it would get alone.
Limit: whether others need a job's GPUs more is the solver's question.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..derived.table import Derived
from .errors import PlanInputError
from .job_view import JobView, check, check_batches, check_sizes, nodes_at
from .models import goodput, step_time
from .models.step_time import Array, Configurations, of_sizes
from .policies import Policy, policy_named
from .solver.table import Columns
from .speedups import speedups, uncertainties

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


NOISE_FACTOR = 6.0
"""Standard deviations of a curve's noise that a move must gain: two curves are compared, and the best of many choices
is taken. At 3, among a hundred alike jobs with independent noise, 5-12 % still move per decision; at 6, 0.4 %."""
QUANTILE = 0.5244
"""Standard deviations below the mean of the pessimistic (30 %) quantile that bounds what is planned unmeasured."""
UNMEASURED_PENALTY = 0.5
"""What moving a running job is charged before anything was measured of it."""
MOST_PENALTY = 0.95
TOGETHER = 1 << 15
"""Configurations computed at once: so many fit a processor's caches."""


def choices(jobs: Sequence[JobView], policy_name: str, known: Grids | None = None) -> list[Columns]:
    """The choices of each job under a policy, each with its term in the objective. known: grids made before."""
    policy = policy_named(policy_name)
    for job in jobs:
        check(job)
    asked, found = [(job, policy) for job in jobs], dict[int, Columns]()
    grids = known.each(asked) if known is not None else [grid_of(one) for one in asked]
    for some in _stretches(grids):
        found |= zip(some, _listed([jobs[j] for j in some], [grids[j] for j in some], policy), strict=True)
    return [found[j] for j in range(len(jobs))]


def _stretches(grids: Sequence[Grid]) -> Iterator[list[int]]:
    """The jobs that are computed at once: of about as many batches at a size."""
    some, total = list[int](), 0
    for j in sorted(range(len(grids)), key=lambda j: len(grids[j].at.batch)):
        some.append(j)
        total += grids[j].at.batch.size
        if total >= TOGETHER:
            yield some
            some, total = [], 0
    if some:
        yield some


@dataclass(frozen=True, slots=True, eq=False)
class _Sizes:
    """The sizes of some jobs, each at its best batch: an array with a place for each, but where it says other."""

    job: Array
    gpus: Array
    nodes: Array
    starts: Array
    """Where each job's begin."""
    current: Array
    """Of each job, GPUs that it has."""
    now: Array
    """Of each job, the place of the size that it has; -1: none is."""
    costs: Array
    """The share of its progress that a move there must bring."""
    speedup: Array
    progress: Array
    """The speedup, less what a move there costs."""
    batch: Array
    present: Array
    """Of each job, the speedup at the size and the batch that it has; nan: that is not among them."""


def _listed(jobs: Sequence[JobView], grids: Sequence[Grid], policy: Policy) -> list[Columns]:
    sizes = _at_best_batches(jobs, grids, policy)
    kept = _worth_each_gpu(jobs, sizes)
    kept &= _explored(jobs, grids, sizes)
    terms, staying = _terms(grids, policy, sizes, kept)
    columns = np.stack([sizes.gpus, terms, sizes.batch, sizes.speedup])[:, kept]
    ends = pairwise(step_time.ends_of(np.add.reduceat(kept, sizes.starts, dtype=np.int64)).tolist())
    each = zip(jobs, ends, sizes.present.tolist(), staying.tolist(), strict=True)
    return [Columns(columns[:, a:b].copy(), present, job.weight, stays) for job, (a, b), present, stays in each]


def _at_best_batches(jobs: Sequence[JobView], grids: Sequence[Grid], policy: Policy) -> _Sizes:
    """Every size at its best batch; at the size that a job has, another batch has to be worth its change."""
    at = step_time.together([grid.at for grid in grids])
    speeds = speedups(jobs, policy, at)
    best, every = speeds.argmax(0), np.arange(len(at.gpus))  # of equals the smallest batch
    gpus = np.concatenate([grid.gpus for grid in grids])
    sigma = np.array([_sigma(job) for job in jobs])
    speedup, batch, costs = speeds[best, every], at.batch[best, every], _costs(jobs, sigma, gpus, at)
    progress = speedup * (1.0 - costs)
    here, has = np.array([(grid.current, grid.present) for grid in grids]).T
    now = np.where(here >= 0, here + at.sizes[:-1], -1)
    progress[now[here >= 0]] = speedup[now[here >= 0]]
    stays = np.where(has >= 0, speeds[has, now], np.nan)
    changed = speedup[now] * (1.0 - np.minimum(MOST_PENALTY, np.maximum(_of_batches(jobs), NOISE_FACTOR * sigma)))
    same = (has >= 0) & ((best[now] == has) | ~(changed > stays))
    other = (has >= 0) & ~same
    progress[now[same]] = speedup[now[same]] = stays[same]
    batch[now[same]] = at.batch[has, now][same]
    progress[now[other]] = changed[other]
    nothing = gpus == 0
    speedup[nothing] = progress[nothing] = batch[nothing] = 0.0
    current = np.array([job.current_gpus for job in jobs])
    return _Sizes(at.job_of_size, gpus, at.nodes, at.sizes[:-1], current, now, costs, speedup, progress, batch, stays)


def _costs(jobs: Sequence[JobView], sigma: Array, gpus: Array, at: Configurations) -> Array:
    """What a move to each size costs: the share of its progress that it must bring; nothing where a job waits."""
    pause, restart, horizon = np.array([(job.pause_s, job.restart_pause_s, job.horizon_s) for job in jobs]).T
    unmeasured = np.array([job.model is None for job in jobs])
    waits = np.array([job.current_gpus == 0 for job in jobs])
    for_pauses = np.maximum(np.stack([pause, restart]) / horizon, NOISE_FACTOR * sigma)
    each = np.where(waits, 0.0, np.where(unmeasured, UNMEASURED_PENALTY, np.minimum(MOST_PENALTY, for_pauses)))
    costs = each[0, at.job_of_size]
    for j, job in enumerate(jobs):
        if job.restart_sizes:
            own = slice(at.sizes[j], at.sizes[j + 1])
            costs[own][np.isin(gpus[own], list(job.restart_sizes))] = each[1, j]
    return costs


def _of_batches(jobs: Sequence[JobView]) -> Array:
    """The share of its progress that each job's change of its batch alone costs."""
    pauses, horizons = np.array([(job.batch_pause_s, job.horizon_s) for job in jobs]).T
    return np.asarray(pauses / horizons)


def _sigma(job: JobView) -> float:
    if job.sigma is not None:
        return job.sigma
    return job.model.jitter if job.model is not None else 0.0


def _explored(jobs: Sequence[JobView], grids: Sequence[Grid], sizes: _Sizes) -> Array:
    """Without the larger sizes, never measured, that in three cases of ten would not even pay for the move there."""
    kept = np.ones(len(sizes.gpus), dtype=bool)
    larger = (sizes.current[sizes.job] > 0) & (sizes.gpus > sizes.current[sizes.job])
    if not larger.any():
        return kept
    unmeasured = np.array([job.model is None for job in jobs])
    if unmeasured.any():  # never grown blindly; smaller only where somebody needs it
        others = np.logical_or.reduceat(~larger, sizes.starts)
        kept = ~(larger & (unmeasured & others)[sizes.job])
    larger &= (~unmeasured & (sizes.now >= 0))[sizes.job]
    larger[_measured(jobs, grids, sizes)] = False
    guessed = larger.nonzero()[0]
    if len(guessed):
        of_job = sizes.job[guessed]
        asked, counts = np.unique(of_job, return_counts=True)
        doubts = uncertainties([jobs[j] for j in asked.tolist()], sizes.gpus[guessed], sizes.nodes[guessed], counts)
        least = sizes.speedup[sizes.now[of_job]] / (np.exp(-QUANTILE * doubts) * (1.0 - sizes.costs[guessed]))
        kept[guessed] = sizes.speedup[guessed] >= least
    return kept


def _measured(jobs: Sequence[JobView], grids: Sequence[Grid], sizes: _Sizes) -> list[int]:
    """The places of the sizes at which their jobs were measured."""
    found = list[int]()
    for job, grid, start in zip(jobs, grids, sizes.starts.tolist(), strict=True):
        if job.model is not None and len(grid.gpus) > 1:
            seen, places = job.model.sizes_seen, grid.places
            if len(seen) < len(places):
                found += [start + places[k] for k in seen if k in places]
            else:
                found += [start + place for k, place in places.items() if k in seen]
    return found


def _worth_each_gpu(jobs: Sequence[JobView], sizes: _Sizes) -> Array:
    """Without the larger sizes whose further GPUs each bring too little, against the size before them that is left."""
    kept, ends = np.ones(len(sizes.gpus), dtype=bool), [*sizes.starts.tolist(), len(sizes.gpus)]
    for j, job in enumerate(jobs):
        if job.least_per_gpu <= 0.0 or job.current_gpus == 0:
            continue
        place = slice(ends[j], ends[j + 1])
        own = list(zip(sizes.gpus[place].tolist(), sizes.speedup[place].tolist(), strict=True))
        least, before = job.least_per_gpu * max((s / k for k, s in own if k), default=0.0), own[0]
        for i, (gpus, speedup) in enumerate(own):
            if i == 0 or gpus <= job.current_gpus or speedup - before[1] >= least * (gpus - before[0]):
                before = gpus, speedup
            else:
                kept[ends[j] + i] = False
    return kept


def _terms(grids: Sequence[Grid], policy: Policy, sizes: _Sizes, kept: Array) -> tuple[Array, Array]:
    """What each size is worth of a job that counts as one, ties broken towards an even spread; and what each job has,
    nan where that is not among its configurations."""
    smallest = np.minimum.reduceat(np.where(kept & (sizes.gpus > 0), sizes.progress, np.inf), sizes.starts)
    floor = policy.least_progress * np.where(smallest < np.inf, smallest, 1.0)
    evenness, known = np.concatenate([grid.evenness for grid in grids]), np.isfinite(sizes.present)
    even, stays = sizes.progress * evenness, sizes.present * evenness[sizes.now]
    credited: Array = np.concatenate([np.maximum(even, floor[sizes.job]), np.maximum(stays, floor)[known]])
    utilities: Array = np.asarray(policy.utilities(credited))
    stays[known] = utilities[len(even) :]
    return utilities[: len(even)], stays
