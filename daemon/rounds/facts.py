"""What services ask for beside Slurm's listings: from the store, of what Slurm refuses, and of scripts from Slurm.

Limit: one caller at a time, the round under way.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from slurm_elastic.db.rows import EventRow, HostPair
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import EventKind

from ..actions.action import Subject
from ..actions.refusals import Concerned, Refusal, Refusals, standing
from ..models.costs import Costs
from ..models.priors import Priors
from ..optimizer.job_view import Model
from ..planner import JobState
from ..planner.waiting.first_sizes import Changed
from ..services.base import Observation
from ..slurm.model import Size, SlurmClient
from .inputs.job_inputs import JobInputs
from .inputs.queued_jobs import QueuedJobs
from .job_registry import JobRegistry
from .settings import RoundSettings


class StoredFacts:
    """Those of one daemon."""

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
        self._store, self._settings, self._refusals = store, settings, refusals
        self.job_inputs, self.queued = JobInputs(store, registry, priors, costs), QueuedJobs(client, store, priors)

    def job_states(self, seen: Observation, in_vain: Collection[int]) -> Mapping[int, JobState]:
        running = {job_id: job.request for job_id, job in seen.roster.elastic.items() if job.running}
        refused = self.refused(seen)
        return self.job_inputs.collect(running, seen.in_use, seen.resizes, refused, in_vain, seen.now)

    def waiting_models(self, seen: Observation) -> Mapping[int, Model]:
        return self.queued.models(seen.roster, seen.now)

    def resized_waiting(self, seen: Observation) -> Mapping[int, Changed]:
        return self.queued.changed(seen.roster)

    def scripts(self, sizes: Mapping[int, Size]) -> Mapping[int, Size]:
        return self.queued.scripts(sizes)

    def host_pairs(self) -> Sequence[HostPair]:
        return self._store.host_pairs.all()

    def history(self, job_id: int) -> Sequence[EventRow]:
        return self._store.events.of(job_id)

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
