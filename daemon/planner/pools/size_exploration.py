"""Sizes never measured that are worth a try on idle GPUs, by the value of knowing them. Pure.

Promise: no GPU is taken from anyone, and a try that is made wins more than it costs in the mean.
Limit: one step ahead: what a size teaches about others is not counted, nor whether the GPUs stay idle.
"""

import math
from statistics import NormalDist

from ...derived.table import Derived
from ...optimizer.job_view import JobView, nodes_at
from ...optimizer.models import goodput
from ...optimizer.policies import POLICIES, Policy
from ...optimizer.speedups import speedups_of
from ..running.eligibility import cooldown_s
from ..running.job import Paces, RunningJob, remaining_s
from ..settings import PlannerSettings
from .candidate import Candidate

TRY_GAIN = 0.05
"""Least share of what is left of a training that trying a size must win in the mean."""
_NORMAL = NormalDist()


def won_s(gain: float, doubt: float, left_s: float, held_s: float, pause_s: float) -> float:
    """Seconds of present progress that trying a size wins in the mean; negative: it costs them.

        held ln g + (left - held) s f(z) - pause (1 + Phi(-z))      z = ln g / s      f(z) = z Phi(z) + phi(z)

    The logarithm of what it is worth is normal about ln g with deviation s. After held_s it is known: the job stays
    where that is better than here, and else pauses once more to come back. f is the knowledge gradient's factor
    (Frazier, Powell and Dayanik, SIAM Journal on Control and Optimization, 2008), here as in its online form, which
    weighs it with the time that is left (Ryzhov, Powell and Frazier, Operations Research, 2012).

    gain: its expected progress by the present one, positive; doubt: relative 1-sigma of that.
    """
    log, held_s = math.log(gain), min(held_s, left_s)
    if doubt <= 0.0:
        better, worse = max(0.0, log), float(log < 0.0)
    else:
        z = log / doubt
        better, worse = doubt * (z * _NORMAL.cdf(z) + _NORMAL.pdf(z)), _NORMAL.cdf(-z)
    return held_s * log + (left_s - held_s) * better - pause_s * (1.0 + worse)


Untried = Derived[int, tuple[Candidate, str], tuple[float, tuple[tuple[int, int, float, float], ...]]]
"""By job id, what `untried_sizes` gives."""


def explore(
    m: Candidate, free: int, idle: int, settings: PlannerSettings, now: float, at: float, untried: Untried, paces: Paces
) -> tuple[int, int] | None:
    """(GPUs, batch) of the larger size, never measured, that is most worth a try on GPUs that nobody wants; None:
    there is none.

    The optimizer does not bet on sizes that it knows too little of. Idle GPUs are no stake: a size that turns out
    badly costs two pauses, and is measured from then on. Within `cooldown_grow_s` of a move, however short its pauses
    are, a job is left to the plan: a try's cooldown would hold it back from what that is about to give it. Within the
    horizon a try takes at most half of what is idle: who comes next finds the rest. What counts is progress as the
    policy counts it: a large batch is no gain where it wastes the samples.

    free: GPUs that the job could gain; idle: those that its pool has; at: Slurm's time.
    """
    policy = POLICIES[settings.policy]
    if m.model is None or m.forced or policy.fixed_size or min(m.current_gpus, m.current_batch, free) < 1:
        return None
    rested_s = _rested_s(m.running, now)
    if rested_s < settings.cooldown_grow_s:
        return None
    most_gpus = m.current_gpus + (free if rested_s >= m.horizon_s else min(free, (idle + 1) // 2))
    here, sizes = untried.one(m.running.job_id, (m, settings.policy))
    alone = remaining_s([m.running], now, paces).get(m.running.job_id)
    # At this progress, at most to its time limit.
    left = m.horizon_s if alone is None else min(alone / here, m.running.job.base.left_s(at))
    held = cooldown_s(settings.cooldown_shrink_s, m.running.state.pause_s, settings)
    best, most = None, TRY_GAIN * left
    for gpus, batch, gain, doubt in sizes:
        awake = 1.0 + m.least_per_gpu * (gpus / m.current_gpus - 1.0) if m.least_per_gpu else 0.0
        if gpus <= most_gpus and gain > awake:
            won = won_s(gain, doubt, left, held, m.pause_s)
            if won > most:
                best, most = (gpus, batch), won
    return best


def untried_sizes(asked: tuple[Candidate, str]) -> tuple[float, tuple[tuple[int, int, float, float], ...]]:
    """Under the policy of that name the job's progress as it is, and of its larger sizes that were never measured, each
    at its best batch: (GPUs, batch, progress by that, relative 1-sigma of it)."""
    view, policy = asked[0], POLICIES[asked[1]]
    assert view.model is not None, "asked for jobs with a model"
    gpus, known = view.current_gpus, {*view.model.sizes_seen, *view.restart_sizes}
    own = [(gpus, nodes_at(view, gpus), batch) for batch in (view.current_batch, *_batches(view, gpus, policy))]
    sizes = [(k, n) for k, n in view.choices if k > gpus and k not in known]
    each = [[(k, n, batch) for batch in _batches(view, k, policy)] for k, n in sizes]
    found = iter(speedups_of(view, policy, [*own, *(point for points in each for point in points)]))
    here = max([next(found) for _ in own])
    doubts, out = view.model.uncertainties(sizes), list[tuple[int, int, float, float]]()
    for points, doubt in zip(each, doubts, strict=True):
        progress = [(next(found), -batch) for _, _, batch in points]
        if progress:
            most, batch = max(progress)
            out.append((points[0][0], -batch, most / here, doubt))
    return here, tuple(out)


def _rested_s(running: RunningJob, now: float) -> float:
    """Seconds for which it has had its size."""
    last, in_use = running.state.last, running.state.in_use
    return now - (last.updated if last is not None else in_use.since if in_use is not None else now)


def _batches(view: JobView, gpus: int, policy: Policy) -> tuple[int, ...]:
    found = view.batches(gpus)
    return goodput.nearest(found, view.reference_batch) if policy.fixed_batch else found
