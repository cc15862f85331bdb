"""What the store knows of each running job, as plans take it: its reports' model, its resizes, its pin.

Promise: read after what Slurm says and the open intents; a job without a supervisor has a state all the same.
Limit: one caller at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping

from slurm_elastic.db.rows import IntentRow, InUse
from slurm_elastic.db.store import Store

from ..models.cache import Fitted
from ..models.priors import Priors
from ..planner import JobState
from ..planner.eligibility import HOUR_S, slow_nodes
from .job_registry import JobRegistry

log = logging.getLogger(__name__)


class JobInputs:
    """The states of running jobs; models are kept from one call to the next."""

    def __init__(self, store: Store, registry: JobRegistry, priors: Priors) -> None:
        self._store, self._registry, self._priors = store, registry, priors
        self._fitted = Fitted()
        self._told: dict[int, str] = {}

    def of(
        self, job_ids: Iterable[int], in_use: Mapping[int, InUse], intents: Mapping[int, IntentRow], now: float
    ) -> dict[int, JobState]:
        """The state of each of these jobs, which are all that run."""
        store, wanted = self._store, list(job_ids)
        resized = store.resized_since(now - HOUR_S)
        known = {job_id: self._priors.of_job(job_id) for job_id in wanted if job_id in in_use}
        seen = {job_id: tuple(store.observations(job_id)) for job_id in known}
        models = self._fitted.of({job_id: (seen[job_id], prior.prior) for job_id, prior in known.items()})
        self._tell()
        found = {job_id: JobState(intent=intents.get(job_id), resized=resized.get(job_id, ())) for job_id in wanted}
        for job_id, prior in known.items():
            report = store.last_report(job_id)
            found[job_id] = JobState(
                in_use=in_use[job_id],
                intent=intents.get(job_id),
                last=store.last_closed_intent(job_id),
                pinned=store.pinned(job_id),
                observations=seen[job_id],
                model=models.get(job_id),
                unfitted=self._fitted.unfitted.get(job_id, ""),
                pause_s=store.mean_pause(job_id),
                requeue_s=store.mean_requeue(job_id),
                reference=self._registry.reference(job_id),
                prior_words=prior.words,
                resized=resized.get(job_id, ()),
                reported_at=report.at if report is not None else None,
                slow=slow_nodes(report, in_use[job_id]),
            )
        return found

    def _tell(self) -> None:
        """Say once of each job that it has no model, though it was measured."""
        for job_id, why in self._fitted.unfitted.items():
            if self._told.get(job_id) != why:
                log.warning("job %d keeps its size: no throughput model can be made of its reports: %s", job_id, why)
        self._told = dict(self._fitted.unfitted)
