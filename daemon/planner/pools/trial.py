"""Sizes never measured that are worth a try on idle GPUs. Pure."""

from __future__ import annotations

from ...optimizer.job_view import JobView, nodes_at
from ...optimizer.models import goodput
from ...optimizer.policies import Policy
from ...optimizer.speedups import speedups_of
from .member import Member

TRY_GAIN = 0.05
"""Least predicted gain for which a size never measured is tried on idle GPUs."""
MOST_TIMES = 2
"""Of the present size, the most that is tried at a time."""


def explored(m: Member, idle: int, policy: Policy) -> tuple[int, int] | None:
    """(GPUs, batch) of a larger size, never measured, worth a try on GPUs that nobody wants; None: there is none.

    The optimizer does not bet on sizes that it knows too little of. Idle GPUs are no stake: a size that turns out
    badly costs two pauses, and is measured from then on. What counts is progress as the policy counts it: a large batch
    is no gain where it wastes the samples.
    """
    view, model = m.view, m.view.model
    if model is None or m.forced or policy.fixed_size or min(view.current_gpus, view.current_batch, idle) < 1:
        return None
    limit, known = min(MOST_TIMES * view.current_gpus, view.current_gpus + idle), model.sizes_seen
    untried = [
        (k, n, batch)
        for k, n in view.choices
        if view.current_gpus < k <= limit and k not in known and k not in view.restart_sizes
        for batch in _batches(view, k, policy)
    ]
    if not untried:
        return None
    gpus, nodes = view.current_gpus, nodes_at(view, view.current_gpus)
    own = [(gpus, nodes, batch) for batch in (view.current_batch, *_batches(view, gpus, policy))]
    found = speedups_of(view, policy, [*own, *untried])
    here, now = found[0], max(found[: len(own)])
    least = here * (1.0 + max(TRY_GAIN, 2.0 * view.pause_s / view.horizon_s))
    best: tuple[float, int, int] | None = None
    for progress, (size, _, batch) in zip(found[len(own) :], untried, strict=True):
        awake = now * (1.0 + view.least_per_gpu * (size / gpus - 1.0)) if view.least_per_gpu else 0.0
        if progress > max(least, awake) and (best is None or (progress, size, batch) > best):
            best = progress, size, batch
    return None if best is None else (best[1], best[2])


def _batches(view: JobView, gpus: int, policy: Policy) -> tuple[int, ...]:
    found = view.batches(gpus)
    return goodput.nearest(found, view.reference_batch) if policy.fixed_batch else found
