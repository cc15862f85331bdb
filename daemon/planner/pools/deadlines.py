"""What `deadline=` and `budget=` make of a plan: how many GPUs a job needs to be done in time, what its weight is
multiplied by for that, and how many its budget pays for. Pure.

Promise: without deadlines no weight changes; a factor lies within `deadline_weight` and its inverse, and no group gets
more than its share by it; a deadline that has passed, or that no size keeps, moves nothing. Limit: that a share by
weight is a share of GPUs holds where speeds grow alike; as time passes, what a job then needs makes up for the rest.
"""

import math
from collections.abc import Iterable, Mapping

from slurm_elastic.protocol.records import record
from slurm_elastic.protocol.text.times import deadline_at

from ...derived.table import Derived
from ...optimizer.job_view import Model
from ...optimizer.models import goodput
from ...optimizer.weights import ShareGroup, stepped
from ...slurm.site import Site
from ..running.job import RunningJob
from ..settings import PlannerSettings
from .candidate import Batches

SPARE, MOST_SPARE_S = 0.1, 600.0
"""A training is to be done sooner than its deadline by this share of the time from its submission, at most so much: for
pauses, its end, and what a model is off by."""
APART, ROOM = 1.15, 0.95
"""Sizes are looked at that are so many times each other at least; a growth is paid for out of this part of a budget."""

Curve = tuple[tuple[int, float], ...]
"""(GPUs, samples per second as the present batch counts them), GPUs ascending."""
Curves = Derived[int, tuple[RunningJob, Model, float | None], Curve]
"""By job id, what `curve_of` gives."""


def curve_of(asked: tuple[RunningJob, Model, float | None]) -> Curve:
    """How fast a job trains at the sizes that it accepts, each with its best batch."""
    running, model, noise = asked
    request, (_, reference) = running.job.request, running.state.reference or (running.gpus, running.batch)
    counts, sizes = noise if request.until == "quality" else None, list[int]()
    for size in running.accepted.ascending:
        if not sizes or size >= APART * sizes[-1] or size in (running.gpus, running.accepted.largest):
            sizes.append(size)
    batches, each = Batches(request, reference=max(1, reference), noise_scale=noise), _node_gpus(running)
    points = [(size, -(-size // each), batch) for size in sizes for batch in batches(size)]
    here, best = goodput.efficiency(max(1, running.batch), max(1, reference), counts), dict[int, float]()
    for (size, _, batch), speed in zip(points, model.throughputs(points), strict=True):
        worth = speed * goodput.efficiency(batch, max(1, reference), counts) / here
        best[size] = max(worth, best.get(size, 0.0))
    return tuple(best.items())


def _node_gpus(running: RunningJob) -> int:
    return max((piece.gpus_per_node for piece in running.pieces), default=1)


@record(frozen=True, slots=True)
class Aim:
    """What a job with a deadline or a budget comes to, as of now."""

    left: float | None
    """Samples; None: its script does not say, or nothing was measured."""
    due: float | None = None
    """Unix seconds; None: it has no deadline."""
    gpus: int | None = None
    """The least with which it is done in time; None: it has no deadline, no size does it, or that is not known."""
    soonest: float | None = None
    """When it would be done at its fastest size."""
    paid: int | None = None
    """The most that its budget pays for until its end; 0: not even its cheapest size; None: any, or it is not known."""


def aims(
    jobs: Iterable[RunningJob], settings: PlannerSettings, site: Site, now: float, curves: Curves
) -> dict[int, Aim]:
    """Of the jobs with a deadline or a budget, by job id."""
    found = dict[int, Aim]()
    for running in jobs:
        request, base, state = running.job.request, running.job.base, running.state
        if not request.deadline and not request.budget:
            continue
        due = deadline_at(request.deadline, base.submit_time) if request.deadline else None
        left = state.remaining.after(now) if state.remaining is not None and state.model is not None else None
        if left is None or state.model is None or not running.accepted.ascending:
            found[running.job_id] = Aim(None, due)
            continue
        curve = curves.one(running.job_id, (running, state.model, state.noise_scale))
        gpus, paid, soonest = None, None, now + left / max(speed for _, speed in curve)
        if due is not None:
            seconds = due - now - min(MOST_SPARE_S, SPARE * (due - base.submit_time))
            gpus = next((size for size, speed in curve if left <= speed * seconds), None)
        if request.budget:
            price = site.gpu_price(settings.gpu_prices, base.partition, base.gpu_type)
            rest = math.inf if not price else 3600.0 * request.budget / price - state.spent_gpu_s
            costs = [(size, size * left / speed) for size, speed in curve]
            paid = max((k for k, cost in costs if cost <= rest * (ROOM if k > running.gpus else 1.0)), default=0)
            paid = None if paid == curve[-1][0] else paid
        found[running.job_id] = Aim(left, due, gpus, soonest, paid)
    return found


def deadline_factors(
    needs: Mapping[int, int], weights: Mapping[int, float], gpus: int, most: float
) -> dict[int, float]:
    """By job with a need, what makes its share of these GPUs by weight what it needs, from 1 / most to most. weights:
    of every job that shares them."""
    of_needs, needed = math.fsum(weights[job] for job in needs), sum(needs.values())
    others = math.fsum(weights.values()) - of_needs
    alone = len(needs) == len(weights)
    each = of_needs / needed if alone else others / max(gpus - needed, gpus / len(weights))
    found = {job: stepped(min(most, max(1.0 / most, need * each / weights[job]))) for job, need in needs.items()}
    return {job: factor for job, factor in found.items() if factor != 1.0}


def within_shares(
    factors: Mapping[int, float], weights: Mapping[int, float], groups: Mapping[int, ShareGroup]
) -> dict[int, float]:
    """By job, these factors so that no group's weight in all is more than it was: what a job gets beyond its share it
    gets of its group's, and what it gives goes to all. With one group, or none, nothing is changed."""
    if len(set(groups.values())) < 2 or not factors:
        return dict(factors)
    before, after = dict[ShareGroup, float](), dict[ShareGroup, float]()
    for job, group in groups.items():
        before[group] = before.get(group, 0.0) + weights[job]
        after[group] = after.get(group, 0.0) + weights[job] * factors.get(job, 1.0)
    within = {
        job: factors.get(job, 1.0) * stepped(min(1.0, before[group] / after[group])) for job, group in groups.items()
    }
    return {job: factor for job, factor in within.items() if factor != 1.0}
