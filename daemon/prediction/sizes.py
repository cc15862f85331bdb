"""The answer to `selastic predict`: a job's speed, step, time left and pause at each size, as the planner's model and
mechanisms have them.

Promise: the model, the batch at each size and the pause are those that a round would take. For the job's owner and
admins alone, as `explain`; a job of which nothing can be said is one sentence. Limit: nodes are as many as the GPUs
fill, whoever holds them; a size is not promised to be free. Another kind of GPU is known only from earlier runs of the
same program on it.
"""

import math
import posixpath
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import nsmallest
from itertools import islice

from slurm_elastic.db.rows import JobRow, ObservationRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.answers.predict import ComesFree, PredictedSize, Prediction
from slurm_elastic.protocol.answers.record import made_from
from slurm_elastic.protocol.api.routes import PredictQuery
from slurm_elastic.protocol.errors import NotFound, RequestError
from slurm_elastic.protocol.messages import Report
from slurm_elastic.protocol.request import ElasticRequest

from ..capacity.shrink_options import shrinks
from ..mechanisms import registry
from ..mechanisms.base import WantedSize
from ..models import cache
from ..models.declared import with_declared
from ..models.priors import LearnedPrior
from ..optimizer.errors import PlanInputError
from ..optimizer.job_view import JobView
from ..optimizer.models import goodput
from ..optimizer.models.costs import QUANTILE, Estimate
from ..optimizer.models.throughput import ThroughputModel, fit
from ..optimizer.policies import POLICIES
from ..optimizer.speedups import speedups_of
from ..planner.running.job import RunningJob
from ..planner.running.state import remaining, trusted_noise
from ..planner.settings import PlannerSettings
from ..reports.common import Viewer, may_see, visible_job
from ..slurm.model import Job

MOST = 16
"""Sizes that are listed of a job that accepts more, where none are asked for."""
MOST_ASKED = 1000
NOT_ACCEPTED = "the request does not accept it"


@dataclass(frozen=True, slots=True)
class PredictionInputs:
    """What a prediction goes by besides the job's reports."""

    settings: PlannerSettings
    prior: LearnedPrior
    running: RunningJob | None = None
    """As the last round found it; None: it does not run, or is not what the prediction is about."""
    node_gpus: int = 0
    """GPUs of the largest node that it could get; 0: not known."""
    pause: Callable[[bool], Estimate | None] = lambda requeue: None
    """What a resize costs, by requeue or not, from its own and others'; None: none was measured."""
    free: tuple[ComesFree, ...] = ()
    """What next_ends says of a job that runs."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What a job accepts, and what was measured of it."""

    request: ElasticRequest
    rows: Sequence[ObservationRow]
    report: Report | None
    """The last one of a training that goes on."""
    reference_batch: int
    """That a sample's worth is measured by."""


def listed(request: ElasticRequest, known: Iterable[int], least: int, most: int) -> list[int]:
    """The sizes from `least` to `most` (0: as far as it accepts any) that lie as far apart as those it accepts; where
    none do, all from which a batch can be shared out. Where none are asked for those that it accepts; of more than
    MOST the powers of two times the smallest, the largest, and those `known`, up to twice the largest known."""
    if least or most:
        least, most = max(1, least), most or request.max_gpus
        apart = range(least + (request.min_gpus - least) % request.step, most + 1, request.step)
        for asked in (apart, range(least, most + 1)):
            fit = (size for size in asked if size % request.group == 0 and request.batches(size))
            if sizes := list(islice(fit, MOST_ASKED)):
                return sizes
        return []
    sizes = [size for size in request.sizes() if request.batches(size)]
    if len(sizes) <= MOST:
        return sizes
    reach = max(2 * max(known, default=sizes[0]), sizes[0])
    ladder = {sizes[0] << n for n in range(32)}
    return [size for size in sizes if size in known or (size <= reach and size in ladder)]


def next_ends(jobs: Iterable[Job], nodes: Collection[str], job: RunningJob) -> tuple[ComesFree, ...]:
    """The NEAREST jobs that end next, of those that hold GPUs of its kind on these nodes and are not its own pieces."""
    own = {job.job.job_id, *(piece.slurm_job_id for piece in job.pieces)}
    kinds = {"", *(piece.gpu_type for piece in job.pieces)}
    found = []
    for other in jobs:
        count = other.gpus_per_node * sum(node in nodes for node in other.nodes)
        if (
            other.running
            and count
            and other.ends_at is not None
            and other.gpu_type in kinds
            and other.job_id not in own
        ):
            found.append(ComesFree(at=other.ends_at, gpus=count, job_id=other.job_id))
    return tuple(nsmallest(NEAREST, found, key=lambda each: (each.at, each.job_id)))


def model_of(measured: Measured, basis: PredictionInputs) -> ThroughputModel:
    """The job's model. Raises NotFound where none can be made of what was measured."""
    pieces = basis.running.pieces if basis.running is not None else ()
    rows = with_declared(measured.request, tuple(measured.rows), pieces)
    try:
        return fit(cache.observations(rows), basis.prior.prior)
    except PlanInputError as error:
        raise NotFound(f"no throughput model can be made of what was measured: {error}") from None


def predicted(
    model: ThroughputModel, measured: Measured, sizes: Sequence[int], basis: PredictionInputs, now: float
) -> tuple[PredictedSize, ...]:
    """A row for each size."""
    nodes = {size: _nodes(model, size, basis) for size in sizes}
    chosen = best_batches(measured, model, nodes, basis)
    points = [(size, nodes[size], chosen[size]) for size in sizes]
    sigmas = model.sigmas(points)
    first = model.throughput(*points[0]) if points else 1.0
    rows = (_row(measured, model, at, sigma, basis, now) for at, sigma in zip(points, sigmas, strict=True))
    return tuple(replace(row, speedup=row.samples_per_s / first) for row in rows)


def _nodes(model: ThroughputModel, size: int, basis: PredictionInputs) -> int:
    """As it was measured; else what it keeps and what fills further nodes; else nodes that are full."""
    running, each = basis.running, max(1, basis.node_gpus or model.gpus_per_node)
    if running is not None and running.gpus:
        own = len({node for piece in running.pieces for node in piece.nodes})
        if size == running.gpus:
            return own
        if size > running.gpus:
            return own + -(-(size - running.gpus) // each)
    seen = {n: weight for k, n, weight in model.seen if k == size}
    return max(seen, key=lambda n: seen[n]) if seen else max(1, -(-size // each))


def best_batches(
    measured: Measured, model: ThroughputModel, nodes: Mapping[int, int], basis: PredictionInputs
) -> dict[int, int]:
    """The batch with the most progress at each size, the smaller one of two as good; the choice of a plan."""
    policy, request, noise = POLICIES[basis.settings.policy], measured.request, trusted_noise(measured.rows)
    view = JobView("", model, (), request.batches, 0, 0, 1, measured.reference_batch,
                   noise_scale=noise, quality=request.until == "quality")  # fmt: skip
    found = {}
    for size, count in nodes.items():
        offered = request.batches(size)
        if request.guard:
            offered = goodput.guarded(offered, measured.reference_batch, noise, request.guard / 100)
        if policy.fixed_batch:
            offered = goodput.nearest(offered, measured.reference_batch)
        progress = speedups_of(view, policy, [(size, count, batch) for batch in offered])
        found[size] = -max(zip(progress, [-batch for batch in offered], strict=True))[1]
    return found


def _row(
    measured: Measured,
    model: ThroughputModel,
    at: tuple[int, int, int],
    sigma: float,
    basis: PredictionInputs,
    now: float,
) -> PredictedSize:
    size, nodes, batch = at
    speed, step, wide = model.throughput(*at), model.step_time(*at), math.exp(QUANTILE * sigma)
    waits = step * model.input_share(*at)
    compute = min(step - waits, _alone(model, max(1, round(batch / size))))
    left = samples_left(measured, batch, now)
    seen = _observed(measured.rows, size, batch)
    return made_from(
        PredictedSize,
        way(size, basis) if measured.request.accepts(size) else Way(NOT_ACCEPTED),
        gpus=size,
        nodes=nodes,
        batch=batch,
        samples_per_s=speed,
        samples_per_s_low=speed / wide,
        samples_per_s_high=speed * wide,
        speedup=1.0,
        step_s=step,
        compute_s=compute,
        comm_s=step - waits - compute,
        input_s=waits,
        left_s=None if left is None else left / speed,
        left_low_s=None if left is None else left / (speed * wide),
        left_high_s=None if left is None else left / (speed / wide),
        observed=seen.samples_per_s if seen else None,
        observed_batch=seen.batch if seen else None,
        reports=seen.count if seen else None,
        off=_off(model, seen) if seen else None,
    )


def _alone(model: ThroughputModel, batch: int) -> float:
    """A step of one GPU, without its wait for input."""
    return model.step_time(1, 1, batch) * (1.0 - model.input_share(1, 1, batch))


def samples_left(measured: Measured, batch: int, now: float) -> float | None:
    """Until the training ends, at that batch: where it ends at a quality, samples of a larger batch are worth less."""
    rest = remaining(measured.report)
    if rest is None or measured.report is None:
        return None
    if measured.request.until != "quality":
        return rest.after(now)
    noise = trusted_noise(measured.rows)
    here, there = (goodput.efficiency(b, measured.reference_batch, noise) for b in (measured.report.batch, batch))
    return rest.after(now) * here / there


@dataclass(frozen=True, slots=True)
class Way:
    """How a job comes to a size, and what that costs."""

    note: str = ""
    pause_s: float | None = None
    pause_low_s: float | None = None
    pause_high_s: float | None = None
    pause_from: str | None = None
    mechanism: str | None = None


def way(size: int, basis: PredictionInputs) -> Way:
    """The way from what the job has, as a plan would take it."""
    running, settings = basis.running, basis.settings
    if running is None:
        return Way()
    if size == running.gpus:
        return Way("now")
    kept = shrinks(running.shrinkable)
    if size in kept:
        by = registry.used(running.pieces, kept[size])
    else:
        cheapest = registry.cheapest(running, running.site, WantedSize(size, max(kept, default=0)))
        if cheapest is None:
            return Way("out of reach from what it has")
        by = (cheapest,)
    requeue = any(mechanism.restarts for mechanism in by)
    own = running.requeue_s if requeue else running.pause_s
    likely, seconds = basis.pause(requeue), registry.cost_s(running, by, settings)
    return Way(
        pause_s=seconds,
        pause_low_s=None if likely is None else min(seconds, likely.low),
        pause_high_s=None if likely is None else max(seconds, likely.high),
        pause_from="measured" if own is not None else "others" if likely is not None else "assumed",
        mechanism="+".join(mechanism.name for mechanism in by),
    )


def _observed(rows: Sequence[ObservationRow], size: int, batch: int) -> ObservationRow | None:
    """What was measured at a size: at that batch if it was, else at the one reported most."""
    there = [row for row in rows if row.gpus == size and cache.believed(row)]
    return max(there, key=lambda row: (row.batch == batch, row.count, row.last_at), default=None)


def _off(model: ThroughputModel, seen: ObservationRow) -> float:
    return model.throughput(seen.gpus, seen.nodes, seen.batch) / (seen.batch / cache.step_s(seen)) - 1.0


NEAREST = 3
"""Sizes that are named to somebody who asked for none that the job accepts."""


def predict(
    store: Store,
    basis_of: Callable[[int, str | None], PredictionInputs],
    job_id: int,
    viewer: Viewer,
    query: PredictQuery,
    now: float,
) -> Prediction:
    """basis_of: of a job, and for another kind of GPU of its program on that. Raises NotFound and NotAllowed, each with
    one sentence."""
    job = visible_job(store, job_id, viewer)
    request, own = request_of(job), store.programs.of(job_id)
    kind = own[1] if own is not None else ""
    elsewhere = query.type is not None and query.type != kind
    rows = _elsewhere(store, job, own, query.type or "") if elsewhere else store.reports.observations(job_id)
    if not any(map(cache.believed, rows)):
        raise NotFound(_unmeasured(job))
    sizes = listed(request, {row.gpus for row in rows}, query.least, query.most)
    if not sizes:
        raise NotFound(_no_size(request, query))
    report = store.reports.last(job_id) if job.state == "RUNNING" and not elsewhere else None
    measured = Measured(request, rows, report, reference(store, job_id, rows))
    basis = basis_of(job_id, query.type if elsewhere else None)
    model = model_of(measured, basis)
    use = store.allocations.in_use(job_id)
    return Prediction(
        now=now,
        job_id=job_id,
        task_name=job.task_name or None,
        state=job.state,
        program=own[0] if own else None,
        gpu_type=query.type if elsewhere else kind,
        gpus=use.gpus if use else None,
        batch=use.batch if use else None,
        reports=sum(row.count for row in rows),
        sizes_measured=len({row.gpus for row in rows}),
        prior=basis.prior.words,
        line_share=round(model.line_share, 2),
        policy=basis.settings.policy,
        samples_left=samples_left(measured, report.batch, now) if report else None,
        input_wait_share=report.input_wait_share if report else None,
        sizes=predicted(model, measured, sizes, basis, now),
        free=tuple(_named(store, viewer, each) for each in basis.free),
    )


def _named(store: Store, viewer: Viewer, free: ComesFree) -> ComesFree:
    """Without the job where Slurm hides it from them."""
    job = store.jobs.get(free.job_id or 0)
    return free if not viewer.private or (job is not None and may_see(viewer, job)) else replace(free, job_id=None)


def request_of(job: JobRow) -> ElasticRequest:
    try:
        return elastic_request.parse(job.request)
    except RequestError as error:
        raise NotFound(f"job {job.job_id} is not elastic ({error}); accepted: a job with an elastic request") from None


def _no_size(request: ElasticRequest, query: PredictQuery) -> str:
    asked = f"{query.least}:{query.most or 'any'}" if query.least != query.most else str(query.least)
    middle = (query.least + (query.most or query.least)) / 2
    near = sorted(request.sizes(), key=lambda size: (abs(size - middle), size))[:NEAREST]
    sizes = ", ".join(map(str, sorted(near)))
    return f"gpus={asked} holds no size at which its batch can be shared out ({request.text()}); nearest: {sizes}"


def _elsewhere(store: Store, job: JobRow, own: tuple[str, str] | None, gpu_type: str) -> list[ObservationRow]:
    """What the youngest measured run of the job's program on that kind of GPU was measured to do."""
    if own is None or not own[0]:
        raise NotFound(f"job {job.job_id} has not said which program it is, so no run of it on {gpu_type} is known")
    runs = store.programs.youngest_runs(own[0])
    if gpu_type not in runs:
        accepted = ", ".join(sorted(kind for kind in {*runs, own[1]} if kind)) or "none, its GPUs have no named type"
        script = posixpath.basename(own[0].partition(":")[2])
        raise NotFound(f"no run of {script} was measured on type={gpu_type}; accepted: {accepted}")
    return store.reports.observations(runs[gpu_type])


def reference(store: Store, job_id: int, rows: list[ObservationRow]) -> int:
    """The batch that the job began with."""
    first = min(store.allocations.rows(job_id), key=lambda row: row.start, default=None)
    return max(1, first.batch if first is not None else rows[0].batch)


def _unmeasured(job: JobRow) -> str:
    if not job.managed:
        return f"job {job.job_id} is not managed ({job.reason}), and nothing was measured of it"
    if job.state == "PENDING":
        return f"job {job.job_id} waits in Slurm's queue, and nothing was measured of it yet; accepted: a job that runs"
    return f"nothing was measured of job {job.job_id}: it has sent no report"
