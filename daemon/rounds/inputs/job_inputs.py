"""What plans need to know of each running job, from the store: the model of its reports, its resizes, its pin.

Promise: a job without a supervisor gets an entry too.
Limit: one caller at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from types import MappingProxyType

from slurm_elastic.db.rows import BATCH, REQUEUE, InUse, ResizeRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.request import ElasticRequest

from ...actions.refusals import Refusal
from ...models.cache import ModelCache
from ...models.costs import Costs
from ...models.declared import with_declared
from ...models.priors import Priors
from ...planner import JobState
from ...planner.running.eligibility import HOUR_S
from ...planner.running.state import remaining, slow_nodes
from ..job_registry import JobRegistry

log = logging.getLogger(__name__)
_NOTHING: Mapping[EventKind, Refusal] = MappingProxyType({})


class JobInputs:
    """The inputs of running jobs; models are kept from one call to the next."""

    def __init__(self, store: Store, registry: JobRegistry, priors: Priors, costs: Costs) -> None:
        self._store, self._registry, self._priors, self._costs = store, registry, priors, costs
        self._fitted = ModelCache()
        self._logged: dict[int, str] = {}

    def collect(
        self,
        requests: Mapping[int, ElasticRequest],
        in_use: Mapping[int, InUse],
        resizes: Mapping[int, ResizeRow],
        refused: Mapping[int, Mapping[EventKind, Refusal]],
        in_vain: Collection[int],
        now: float,
    ) -> dict[int, JobState]:
        """The inputs of the jobs of these requests, which must be all that run."""
        store, wanted = self._store, list(requests)
        resized = store.allocations.resized_since(now - HOUR_S)
        known = {job_id: self._priors.of_job(job_id) for job_id in wanted if job_id in in_use}
        seen = {
            job_id: with_declared(requests[job_id], tuple(store.reports.observations(job_id)), in_use[job_id].pieces)
            for job_id in known
        }
        models = self._fitted.of({job_id: (seen[job_id], prior.prior) for job_id, prior in known.items()})
        self._log_unfitted()
        likely, requeued = (self._costs.likely_s(known, requeue) for requeue in (False, True))
        found = {}
        for job_id in wanted:
            prior = known.get(job_id)
            if prior is None:
                found[job_id] = JobState(resize=resizes.get(job_id), resized=resized.get(job_id, ()))
                continue
            report, (last, last_batch) = store.reports.last(job_id), store.resizes.last_of_each(job_id)
            pinned = store.jobs.pinned(job_id)
            if pinned is not None and last is not None and last.state != ResizeState.DONE:
                said = store.events.last([job_id], EventKind.PINNED).get(job_id)
                if said is not None and said.at > last.updated:
                    last = None  # the owner knows of it
            failed = last is not None and last.state == ResizeState.FAILED and not last.add
            found[job_id] = JobState(
                in_use=in_use[job_id],
                resize=resizes.get(job_id),
                resized=resized.get(job_id, ()),
                last=last,
                last_batch=last_batch,
                failures=store.resizes.failed_in_a_row(job_id) if failed else 0,
                pinned=pinned,
                observations=seen[job_id],
                model=models.get(job_id),
                unfitted=self._fitted.unfitted.get(job_id, ""),
                pause_s=store.allocations.mean_pause(job_id),
                requeue_s=store.allocations.mean_pause(job_id, REQUEUE),
                batch_pause_s=store.allocations.mean_pause(job_id, BATCH),
                likely_pause_s=likely.get(job_id),
                likely_requeue_s=requeued.get(job_id),
                reference=self._registry.reference(job_id),
                prior_words=prior.words,
                reported_at=report.at if report is not None else None,
                remaining=remaining(report),
                slow=slow_nodes(report, in_use[job_id]),
                refused=refused.get(job_id, _NOTHING),
                gave_in_vain=job_id in in_vain,
                ending=self._registry.is_ending(job_id),
            )
        return found

    def _log_unfitted(self) -> None:
        """Log once for each measured job why it has no model."""
        for job_id, why in self._fitted.unfitted.items():
            if self._logged.get(job_id) != why:
                kept = "job %d keeps its size: no throughput model can be made of its reports: %s"
                log.warning(kept, job_id, why, extra={"JOB": job_id})
        self._logged = dict(self._fitted.unfitted)
