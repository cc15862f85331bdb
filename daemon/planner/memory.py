"""What is kept from one round's plan for the next: what was made of jobs that have not changed since.

Promise: a plan made with it is the plan made without it. Limit: a job is known again by the very object that the roster
has of it; whoever makes that again in every round gains from the optimizer's part alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slurm_elastic.protocol.records import record

from ..capacity.roster import ElasticJob, Roster
from ..optimizer.plan import Cache
from ..slurm.site import Site
from .pools.kept_member import KeptMember
from .running.eligibility import running_job
from .running.job import RunningJob
from .running.state import JobState
from .settings import PlannerSettings


@dataclass(slots=True)
class Memory:
    """Of one planner. It forgets what a round did not ask for."""

    columns: Cache = field(default_factory=Cache)
    """The optimizer's."""
    members: dict[int, KeptMember] = field(default_factory=dict)
    """By job id, with what each was made from."""
    _running_jobs: dict[int, _Known] = field(default_factory=dict)

    def turn(self) -> None:
        """Begin another round."""
        self.columns.turn()

    def running_jobs(
        self, roster: Roster, states: Mapping[int, JobState], settings: PlannerSettings, site: Site, now: float
    ) -> dict[int, RunningJob]:
        """The running jobs as they are now."""
        before, kept, found = self._running_jobs, dict[int, _Known](), {}
        for job_id, job in roster.elastic.items():
            if not job.running:
                continue
            state, known = states.get(job_id, _UNKNOWN), before.get(job_id)
            if known is None or not known.holds(job, state, settings, site, now):
                known = _Known(running_job(job, state, settings, now, site), settings, now)
            elif known.running.state is not state:
                known.running.renew(state)
            kept[job_id], found[job_id] = known, known.running
        self._running_jobs = kept  # whole at once: other threads ask for single jobs
        for job_id in self.members.keys() - found.keys():
            del self.members[job_id]
        return found

    def running_job(self, job_id: int) -> RunningJob | None:
        """A running job as the last round found it."""
        known = self._running_jobs.get(job_id)
        return known.running if known is not None else None


@record(frozen=True, slots=True)
class _Known:
    """A running job as it was, and what that came from."""

    running: RunningJob
    settings: PlannerSettings
    at: float

    def holds(self, job: ElasticJob, state: JobState, settings: PlannerSettings, site: Site, now: float) -> bool:
        """Whether it is still so."""
        own = self.running
        same = own.job is job and own.site is site and self.settings is settings and self.at <= now < own.fresh_until
        return same and (own.state is state or own.state.differs_in_reports_only(state))


_UNKNOWN = JobState()
