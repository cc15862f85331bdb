"""Sizes never measured that are worth a try on idle GPUs. Pure."""

from __future__ import annotations

from ...optimizer.job_view import JobView, Model, nodes_at
from .member import Member

TRY_GAIN = 0.05
"""Least predicted gain for which a size never measured is tried on idle GPUs."""


def explored(m: Member, idle: int) -> tuple[int, int] | None:
    """(GPUs, batch) of a larger size, never measured, worth a try on GPUs that nobody wants; None: there is none.

    The optimizer does not bet on sizes that it knows too little of. Idle GPUs are no stake: a size that turns out
    badly costs two pauses, and is measured from then on. At most twice the present size at a time.
    """
    view, model = m.view, m.view.model
    if model is None or m.forced or view.current_gpus < 1 or view.current_batch < 1 or idle < 1:
        return None
    limit, known = min(2 * view.current_gpus, view.current_gpus + idle), model.sizes_seen
    untried = [(k, n) for k, n in view.choices if view.current_gpus < k <= limit and k not in known]
    if not untried:
        return None
    nodes = dict(view.choices)
    here = model.throughput(view.current_gpus, nodes.get(view.current_gpus, 1), view.current_batch)
    least = here * (1.0 + max(TRY_GAIN, 2.0 * view.pause_s / view.horizon_s))
    now = _at_best_batch(view, model) if view.least_per_gpu else 0.0
    best: tuple[float, int, int] | None = None
    for size, count in untried:
        if size in view.restart_sizes:
            continue
        enough = max(least, now * (1.0 + view.least_per_gpu * (size / view.current_gpus - 1.0)))
        for batch in view.batches(size):
            found = (model.throughput(size, count, batch), size, batch)
            if found[0] > enough and (best is None or found > best):
                best = found
    return None if best is None else (best[1], best[2])


def _at_best_batch(view: JobView, model: Model) -> float:
    """Samples/s at the present size."""
    gpus, nodes = view.current_gpus, nodes_at(view, view.current_gpus)
    return max(model.throughput(gpus, nodes, batch) for batch in {*view.batches(gpus), view.current_batch})
