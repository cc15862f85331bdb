"""What services ask for beside Slurm's listings: from the store of running jobs and of those in the queue, of what
Slurm refuses, and of scripts from Slurm.

Limit: one caller at a time, the round under way.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from slurm_elastic.db.rows import BATCH, REQUEUE, EventRow, HostPair
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.errors import ElasticError, SlurmError
from slurm_elastic.protocol.messages import Shape

from ..actions.action import Subject
from ..actions.refusals import Concerned, Refusal, Refusals, standing
from ..capacity.pending_jobs import SOON_S
from ..capacity.placement import ShapeTemplate
from ..derived.table import Derived, one_by_one
from ..models.cache import ModelCache, observations
from ..models.costs import Costs
from ..models.declared import with_declared
from ..models.priors import Priors
from ..optimizer.job_view import Model
from ..optimizer.models.throughput import fit, unmeasured
from ..planner import JobState
from ..planner.running.eligibility import HOUR_S
from ..planner.running.state import remaining, slow_nodes
from ..planner.waiting.first_sizes import Changed
from ..services.base import Observation
from ..slurm.accounting import EndedJob
from ..slurm.model import Job, Size, SlurmClient
from .job_registry import JobRegistry
from .settings import RoundSettings

log = logging.getLogger(__name__)
_NOTHING: Mapping[EventKind, Refusal] = MappingProxyType({})
ORDERLY = ("PREEMPTED", "REQUEUED")
"""States of runs after whose end nothing is sent to their nodes any more."""
UNKNOWN = "UNKNOWN"
"""Slurmdbd did not answer; it is not asked again."""
ANEW_S = 300.0
"""How long the model of a name is kept."""
MOST_EVENTS = 20_000
"""Of nodes' power and the services' own that are read again after a start: some months."""


class StoredFacts:
    """See the module; models are kept from one call to the next.

    Of jobs in Slurm's queue plans need to know the sizes of ours, and how fast their programs are. A size that was set
    is known again after a restart, for its event was written before Slurm was asked. A job's model is that of the last
    run of its user's with its name, else the middle of what is known of this cluster's programs: what a script will run
    is not known before it runs."""

    def __init__(
        self,
        client: SlurmClient,
        store: Store,
        settings: RoundSettings,
        registry: JobRegistry,
        priors: Priors,
        costs: Costs,
        refusals: Refusals,
    ) -> None:
        self._client, self._store, self._settings, self._refusals = client, store, settings, refusals
        self._registry, self._priors, self._costs = registry, priors, costs
        self.fitted = ModelCache()
        self._logged: dict[int, str] = {}
        self._changed: dict[int, Changed | None] = {}
        """None: its size was never changed."""
        self._ends: dict[tuple[int, int], str] = {}
        """How runs of jobs ended, by job id and restarts."""
        self._models = Derived[_Name, _Name, Model](one_by_one(self._model), until=lambda _, at: at + ANEW_S)

    def job_states(self, seen: Observation, in_vain: Collection[int]) -> dict[int, JobState]:
        requests = {job_id: job.request for job_id, job in seen.roster.elastic.items() if job.running}
        store, wanted, in_use, resizes = self._store, list(requests), seen.in_use, seen.resizes
        refused, resized = self.refused(seen), store.allocations.resized_since(seen.now - HOUR_S)
        known = {job_id: self._priors.of_job(job_id) for job_id in wanted if job_id in in_use}
        measured = {
            job_id: with_declared(requests[job_id], tuple(store.reports.observations(job_id)), in_use[job_id].pieces)
            for job_id in known
        }
        models = self.fitted.of({job_id: (measured[job_id], prior.prior) for job_id, prior in known.items()})
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
                too_large=store.resizes.too_large(job_id),
                pinned=pinned,
                observations=measured[job_id],
                model=models.get(job_id),
                unfitted=self.fitted.unfitted.get(job_id, ""),
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
                spent_gpu_s=store.allocations.gpu_seconds(job_id, seen.now) if requests[job_id].budget else 0.0,
            )
        return found

    def _log_unfitted(self) -> None:
        """Log once for each measured job why it has no model."""
        for job_id, why in self.fitted.unfitted.items():
            if self._logged.get(job_id) != why:
                kept = "job %d keeps its size: no throughput model can be made of its reports: %s"
                log.warning(kept, job_id, why, extra={"JOB": job_id})
        self._logged = dict(self.fitted.unfitted)

    def resized_waiting(self, seen: Observation) -> dict[int, Changed]:
        """Waiting jobs that have never run and whose sizes were changed, by job id."""
        roster = seen.roster
        put_back = {job.job_id for job in roster.elastic.values() if job.base.pending}
        self._ends = {run: end for run, end in self._ends.items() if run[0] in put_back}
        waiting = [job.job_id for job in roster.elastic.values() if job.base.pending and not job.base.restarts]
        known = self._changed
        new = [job_id for job_id in waiting if job_id not in known]
        events = self._store.events.last(new, EventKind.RESUME) if new else {}
        read = {job_id: _changed(events.get(job_id)) for job_id in new}
        self._changed = {job_id: read[job_id] if job_id in read else known[job_id] for job_id in waiting}
        return {job_id: one for job_id, one in self._changed.items() if one is not None}

    def asked(self, job_ids: Iterable[int]) -> None:
        """Slurm was, or may have been, asked for other sizes of these jobs."""
        for job_id in job_ids:
            self._changed.pop(job_id, None)

    def resting(self, jobs: Iterable[Job], ours: Collection[int], at: float) -> set[int]:
        """Those of jobs put back that keep the time which Slurm makes them wait, by job id. A node on which one ran may
        have failed and come back: what Slurm still sends there to end the first run would end the second. Only after an
        orderly end, which slurmdbd knows, may it start at once. `ours`: put back by resizes, which start without that
        word where slurmdbd does not answer."""
        runs = {
            job.job_id: (job.job_id, job.restarts) for job in jobs if job.restarts and job.eligible_time > at + SOON_S
        }
        unknown = [job_id for job_id, run in runs.items() if run not in self._ends]
        if unknown:
            try:
                ends = self._client.last_runs(unknown)
            except SlurmError as error:
                log.info("jobs %s were put back, and nobody says why: %s", ",".join(map(str, unknown)), error)
                ends = dict.fromkeys(unknown, UNKNOWN)
            self._ends |= {runs[job_id]: end for job_id, end in ends.items() if job_id in runs}
        ends = {job_id: self._ends.get(run, "") for job_id, run in runs.items()}
        return {i for i, end in ends.items() if end not in ORDERLY and not (end == UNKNOWN and i in ours)}

    def scripts(self, sizes: Mapping[int, Size]) -> dict[int, Size]:
        """What these jobs' scripts ask for, to be given back to them: as it is, or as it was before it was changed. Of
        jobs that Slurm does not say it of, nothing. `sizes`: the same without tasks, CPUs and memory."""
        found = {}
        for job_id, size in sizes.items():
            before = self._changed.get(job_id)
            if before is not None and before.script == size:
                found[job_id] = before.script
                continue
            with suppress(SlurmError):
                asked = self._client.asked_size(job_id)
                found |= {job_id: asked} if asked == size else {}
        return found

    def started_as(self, base: Job, first_gpus: int, settings: RoundSettings) -> tuple[Shape, ...]:
        """What the script of a running job asks for, or it began to train with where its size was not changed, as one
        shape of companions; nothing where that says no GPUs per node."""
        changed = _changed(self._store.events.last([base.job_id], EventKind.RESUME).get(base.job_id))
        each = changed.script.gpus_per_node if changed is not None else base.gpus_per_node
        if not each:
            return ()
        by = "" if settings.companion_by == "auto" else settings.companion_by
        template = ShapeTemplate.of(base, 0, settings.companion_qos, by, settings.companion_minutes)
        nodes = changed.script.nodes if changed is not None else first_gpus // each
        return (replace(template.shape(each, ()), nodes=nodes),)

    def waiting_models(self, seen: Observation) -> dict[int, Model]:
        jobs = [job.base for job in seen.roster.elastic.values() if job.base.pending]
        self._models.turn()
        models = self._models.of({name: name for name in ((job.user, job.name) for job in jobs)}, seen.now)
        return {job.job_id: models[job.user, job.name] for job in jobs}

    def _model(self, of: _Name) -> Model:
        user, name = of
        last = self._store.programs.youngest_named(user, name)
        prior = self._priors.of_job(last).prior if last is not None else self._priors.cluster().prior
        seen = observations(self._store.reports.observations(last)) if last is not None else ()
        try:
            return fit(seen, prior) if seen else unmeasured(prior)
        except ElasticError:
            return unmeasured(prior)

    def host_pairs(self) -> Sequence[HostPair]:
        return self._store.host_pairs.all()

    def history(self, job_id: int) -> Sequence[EventRow]:
        return self._store.events.of(job_id)

    def ended_jobs(self, start: float, end: float) -> Sequence[EndedJob] | None:
        try:
            return self._client.ended_jobs(start, end)
        except SlurmError as error:
            log.info("what jobs of before took is not known now: %s", error)
            return None

    def site_factors(self, job_ids: Collection[int]) -> Mapping[int, int]:
        last = self._store.events.last(job_ids, EventKind.PRIORITIZE)
        refused = self._store.events.last(last, EventKind.REFUSED)
        return {
            job_id: int(event.detail["factor"])
            for job_id, event in last.items()
            # What Slurm refused to take back stands.
            if event.detail["factor"] or (job_id in refused and refused[job_id].id > event.id)
        }

    def power_events(self) -> Sequence[EventRow]:
        return self._store.events.of(0, MOST_EVENTS, (EventKind.POWER, EventKind.REFUSED, EventKind.SERVICE))

    def refused(self, seen: Observation) -> dict[int, Mapping[EventKind, Refusal]]:
        """What Slurm refuses to do about running elastic jobs now, by job id."""
        refusals, site, settings = self._refusals, seen.site, self._settings
        if refusals.none and not site.probed and settings.release_by != "job":
            return {}
        jobs = ((job.job_id, job.base) for job in seen.roster.elastic.values() if job.running)
        found = {
            job_id: {
                **refusals.of(Concerned.of(Subject.job(job_id), base), seen.now),
                **standing(settings.release_by, site.found(base.user, base.partition)),
            }
            for job_id, base in jobs
        }
        return {job_id: refused for job_id, refused in found.items() if refused}

    def kept_whole(self, seen: Observation) -> dict[int, str]:
        """Why no Slurm job of these elastic jobs is asked to give up single nodes, by job id."""
        return {
            job_id: f"Slurm still holds what it left; {kinds[EventKind.SHRINK].words}"
            for job_id, kinds in self.refused(seen).items()
            if EventKind.SHRINK in kinds
        }


_Name = tuple[str, str]
"""A user's, and one of his jobs'."""


def _changed(event: EventRow | None) -> Changed | None:
    script, now = (event.detail.get("script"), event.detail.get("size")) if event is not None else (None, None)
    if event is None or not script or not now:
        return None
    return Changed(_size(script), _size(now), event.at)


def _size(plain: Mapping[str, Any]) -> Size:
    return Size(**{name: plain[name] for name in Size.__dataclass_fields__ if name in plain})
