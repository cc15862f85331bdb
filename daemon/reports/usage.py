"""How jobs have gone over a window: what `selastic report` draws.

Promise: allocations, pauses and measurements as recorded; a curve is the planner's model of the same measurements under
the same prior, with its own uncertainty. Limit: jobs that the viewer may see in full, and no others; managed capacity
is known for the moments at which a decision was stored, where Slurm hides others' jobs a decision on a job shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.errors import RequestError

from . import evidence
from .acct import acct
from .common import Viewer, may_see
from .status import job_row

if TYPE_CHECKING:
    from slurm_elastic.db.rows import DecisionRow, JobRow, ObservationRow
    from slurm_elastic.db.store import Store

    from ..optimizer.models.prior import Prior
    from ..optimizer.models.throughput import ThroughputModel

MOST_POINTS = 48
"""Sizes at which a curve is given."""


def course(
    store: Store,
    viewer: Viewer,
    now: float,
    *,
    start: float,
    end: float | None = None,
    job: Iterable[int] = (),
    prior: Callable[[int], Prior | None] = lambda job_id: None,
) -> dict[str, Any]:
    """`jobs` (with `measured` and `curve`), `allocations` (the rows of acct that touch the window) and `capacity`.

    start, end: unix seconds; job: only these ids (empty: every job with an allocation in the window); prior: what the
    planner believes of a job before it is measured (None: the shipped one).
    """
    end = now if end is None else min(end, now)
    wanted = set(job)
    rows = acct(store, viewer, now, start=start, end=end, job=sorted(wanted) or None)
    shown: dict[int, JobRow] = {}
    for job_id in dict.fromkeys(row["job_id"] for row in rows):
        owner = store.job(job_id)
        if owner is not None and may_see(viewer, owner):
            shown[job_id] = owner
    jobs = [
        job_row(store, owner, viewer, now)
        | scaling(owner.request, store.observations(owner.job_id), prior(owner.job_id))
        for owner in shown.values()
    ]
    decided = store.decisions_within(start, end)
    return {
        "now": now,
        "start": start,
        "end": end,
        "jobs": jobs,
        "allocations": [row for row in rows if row["job_id"] in shown],
        "capacity": capacity((row for row in decided if row.job_id in shown or not viewer.private), start),
    }


def capacity(decisions: Iterable[DecisionRow], start: float) -> list[dict[str, float]]:
    """Managed capacity over time, all pools together: {at, gpus} at each change, none before `start`."""
    pools: dict[str, int] = {}
    found: list[dict[str, float]] = []
    for row in sorted(decisions, key=lambda row: row.at):
        pool, gpus = evidence.text(row.evidence, "pool"), evidence.whole(row.evidence, "capacity_gpus")
        if not pool or gpus is None:
            continue
        pools[pool] = gpus
        point = {"at": max(row.at, start), "gpus": float(sum(pools.values()))}
        if found and found[-1]["at"] == point["at"]:
            found[-1] = point
        elif not found or found[-1]["gpus"] != point["gpus"]:
            found.append(point)
    return found


def scaling(request: str, observations: list[ObservationRow], prior: Prior | None) -> dict[str, Any]:
    """`measured`: a row per configuration; `curve`: the model's throughput at each size, with as many samples per GPU
    as were measured last; [] without a model."""
    return {"measured": [asdict(row) for row in observations], "curve": _curve(request, observations, prior)}


def _curve(text: str, observations: list[ObservationRow], prior: Prior | None) -> list[dict[str, Any]]:
    # The command line imports this package too, and needs no optimizer.
    from ..models import cache
    from ..optimizer.errors import PlanInputError
    from ..optimizer.models.throughput import fit

    seen = cache.observations(observations)
    try:
        request, model = elastic_request.parse(text), fit(seen, prior)
    except (RequestError, PlanInputError):
        return []
    sizes = [size for size in request.sizes() if request.batches(size)]
    # A job may accept far more than it will ever get: twice what was measured is as far as anyone believes a curve.
    most = 2 * max(model.sizes_seen)
    near = [size for size in sizes if size <= most] or sizes[:1]
    step = -(-len(near) // MOST_POINTS)
    last = max((row for row in observations if cache.believed(row)), key=lambda row: row.last_at)
    points = []
    for size in sorted({*near[::step], *near[-1:]}):
        batch = round(last.batch / max(1, last.gpus) * size)
        points.append(_point(model, size, min(request.max_batch, max(request.min_batch, batch))))
    return points


def _point(model: ThroughputModel, gpus: int, batch: int) -> dict[str, Any]:
    nodes = next((n for k, n, _ in model.seen if k == gpus), max(1, -(-gpus // model.gpus_per_node)))
    return {
        "gpus": gpus,
        "nodes": nodes,
        "batch": batch,
        "samples_per_s": model.throughput(gpus, nodes, batch),
        "uncertainty": model.uncertainty(gpus, nodes),
    }
