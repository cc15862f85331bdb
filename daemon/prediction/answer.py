"""The answer to `selastic predict`: what the store and the daemon know of a job, put before its model.

Promise: for the job's owner and admins alone, as `explain`; a job of which nothing can be said is one sentence.
Limit: another kind of GPU is known only from earlier runs of the same program on it.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable

from slurm_elastic.db.rows import JobRow, ObservationRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import request as elastic_request
from slurm_elastic.protocol.answers.predict import Prediction
from slurm_elastic.protocol.api.routes import PredictQuery
from slurm_elastic.protocol.errors import NotFound, RequestError
from slurm_elastic.protocol.request import ElasticRequest

from ..models import cache
from ..optimizer.errors import PlanInputError
from ..reports.common import Viewer, visible_job
from .sizes import Measured, PredictionInputs, listed, model_of, predicted, samples_left

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
    request, own = _request(job), store.programs.of(job_id)
    kind = own[1] if own is not None else ""
    elsewhere = query.type is not None and query.type != kind
    rows = _elsewhere(store, job, own, query.type or "") if elsewhere else store.reports.observations(job_id)
    if not any(map(cache.believed, rows)):
        raise NotFound(_unmeasured(job))
    sizes = listed(request, {row.gpus for row in rows}, query.least, query.most)
    if not sizes:
        raise NotFound(_no_size(request, query))
    report = store.reports.last(job_id) if job.state == "RUNNING" and not elsewhere else None
    measured = Measured(request, rows, report, _reference(store, job_id, rows))
    basis = basis_of(job_id, query.type if elsewhere else None)
    try:
        model = model_of(measured, basis)
    except PlanInputError as error:
        raise NotFound(f"no throughput model can be made of the reports of job {job_id}: {error}") from None
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
    )


def _request(job: JobRow) -> ElasticRequest:
    try:
        return elastic_request.parse(job.request)
    except RequestError as error:
        raise NotFound(f"job {job.job_id} is not elastic ({error}); accepted: a job with an elastic request") from None


def _no_size(request: ElasticRequest, query: PredictQuery) -> str:
    asked = f"{query.least}:{query.most or 'any'}" if query.least != query.most else str(query.least)
    middle = (query.least + (query.most or query.least)) / 2
    near = sorted(request.sizes(), key=lambda size: (abs(size - middle), size))[:NEAREST]
    sizes = ", ".join(map(str, sorted(near)))
    return f"gpus={asked} holds no size that the job accepts ({request.text()}); nearest: {sizes}"


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


def _reference(store: Store, job_id: int, rows: list[ObservationRow]) -> int:
    """The batch that the job began with."""
    first = min(store.allocations.rows(job_id), key=lambda row: row.start, default=None)
    return max(1, first.batch if first is not None else rows[0].batch)


def _unmeasured(job: JobRow) -> str:
    if not job.managed:
        return f"job {job.job_id} is not managed ({job.reason}), and nothing was measured of it"
    if job.state == "PENDING":
        return f"job {job.job_id} waits in Slurm's queue, and nothing was measured of it yet; accepted: a job that runs"
    return f"nothing was measured of job {job.job_id}: it has sent no report"
