"""How jobs have gone over a window: what `selastic report` draws.

Promise: allocations, pauses and measurements as recorded; a curve is the planner's model of the same measurements under
the same prior, with its own uncertainty. Limit: jobs that the viewer may see in full, and no others; managed capacity
is known for the moments at which a decision was stored, where Slurm hides others' jobs a decision on a job shown.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from slurm_elastic.db.rows import DecisionRow, JobRow, ObservationRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.answers.explain import Evidence
from slurm_elastic.protocol.answers.history import CapacityPoint, CurvePoint, Usage, UsageJob
from slurm_elastic.protocol.answers.record import made_from, read
from slurm_elastic.protocol.errors import RequestError

from ..optimizer.models.prior import Prior
from ..optimizer.models.throughput import ThroughputModel
from .common import Viewer, may_see
from .explain import observed
from .fairness import FairnessResult, Speeds, Window
from .history import acct
from .status import job_row

MOST_POINTS = 48
"""Sizes at which a curve is given."""


def usage(
    store: Store,
    viewer: Viewer,
    now: float,
    *,
    start: float,
    end: float | None = None,
    job: Iterable[int] = (),
    fairness: str = "account",
    prior: Callable[[int], Prior | None] = lambda job_id: None,
) -> Usage:
    """start, end: unix seconds; job: only these ids (empty: every job with an allocation in the window);
    fairness: the setting; prior: what the planner believes of a job before it is measured (None: the shipped one)."""
    end = now if end is None else min(end, now)
    rows = acct(store, viewer, now, start=start, end=end, job=job)
    shown: dict[int, JobRow] = {}
    for job_id in dict.fromkeys(row.job_id for row in rows):
        owner = store.jobs.get(job_id)
        if owner is not None and may_see(viewer, owner):
            shown[job_id] = owner
    decided = store.decisions.within(start, end)
    found = Usage(
        now=now,
        start=start,
        end=end,
        jobs=tuple(_job(store, owner, viewer, now, prior(owner.job_id)) for owner in shown.values()),
        allocations=tuple(row for row in rows if row.job_id in shown),
        capacity=capacity((row for row in decided if row.job_id in shown or not viewer.private), start),
    )
    if viewer.private and not viewer.admin:  # how others' jobs were served is theirs
        return found
    curves = {each.job_id: each.curve for each in found.jobs}

    def speeds(owner: JobRow) -> Speeds:
        known = curves.get(owner.job_id)
        if known is None:
            known = tuple(curve(owner.request, store.reports.observations(owner.job_id), prior(owner.job_id)))
        return [(point.gpus, point.samples_per_s) for point in known]

    served = FairnessResult(_window(store, found), fairness)
    return replace(
        found,
        jobs=tuple(replace(each, rho=served.rho(each.job_id, speeds(shown[each.job_id]))) for each in found.jobs),
        fairness=None if job else served.fairness(speeds),
    )


def _window(store: Store, of: Usage) -> Window:
    """What is recorded of the jobs of this time, and of all that were there with one of them."""
    first = min((row.submit_time for row in store.jobs.within(of.start, of.end) if row.managed), default=of.start)
    return Window(
        of.start,
        of.end,
        of.now,
        [row for row in store.jobs.within(first, of.end) if row.managed],
        store.allocations.rows(start=first, end=of.end),
        [(point.at, point.gpus) for point in of.capacity],
    )


def _job(store: Store, job: JobRow, viewer: Viewer, now: float, prior: Prior | None) -> UsageJob:
    observations = store.reports.observations(job.job_id)
    return made_from(
        UsageJob,
        job_row(store, job, viewer.uid == job.uid, now),
        measured=observed(observations),
        curve=tuple(curve(job.request, observations, prior)),
    )


def capacity(decisions: Iterable[DecisionRow], start: float) -> tuple[CapacityPoint, ...]:
    """Managed capacity over time, all pools together: at each change, none before `start`."""
    pools: dict[str, int] = {}
    found: list[CapacityPoint] = []
    for row in sorted(decisions, key=lambda row: row.at):
        evidence = read(Evidence, row.evidence)
        if not evidence.pool or evidence.capacity_gpus is None:
            continue
        pools[evidence.pool] = evidence.capacity_gpus
        point = CapacityPoint(at=max(row.at, start), gpus=float(sum(pools.values())))
        if found and found[-1].at == point.at:
            found[-1] = point
        elif not found or found[-1].gpus != point.gpus:
            found.append(point)
    return tuple(found)


def curve(text: str, observations: list[ObservationRow], prior: Prior | None) -> list[CurvePoint]:
    """The model's throughput at each size, with as many samples per GPU as were measured last; [] without a model."""
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
        points.append(_point(model, size, min(request.max_batch or size, max(request.min_batch, batch))))
    return points


def _point(model: ThroughputModel, gpus: int, batch: int) -> CurvePoint:
    nodes = next((n for k, n, _ in model.seen if k == gpus), max(1, -(-gpus // model.gpus_per_node)))
    return CurvePoint(
        gpus=gpus,
        nodes=nodes,
        batch=batch,
        samples_per_s=model.throughput(gpus, nodes, batch),
        uncertainty=model.uncertainties([(gpus, nodes)])[0],
    )
