"""All that a planner keeps from one round to the next, and what each of it depends on.

    accepted sizes   the request, whether its job gets whole nodes
    running jobs     the roster's job, the store's state but for its reports, settings, site; until its rest ends
    paces, curves    the running job, its model, its noise scale
    alike sizes      accepted sizes, the kinds and sizes of a job's pieces, GPUs in reach, GPUs of a node
    candidates       the running job, its model, its noise scale, units given up, GPUs in reach, GPUs of a node, its
                     weight's factor, its horizon, settings
    choices          the candidate but for its weight, the policy (optimizer/plan.py)
    staying, in place, changes of progress, untried sizes: the candidate

Promise: a plan made with tables is the plan made without. Limit: a job is known again fastest by the very object that
the roster has of it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..capacity.roster import ElasticJob, Roster
from ..derived.table import Derived, one_by_one
from ..optimizer.plan import ChoiceTables
from ..slurm.site import Site
from .pools import candidate as candidates
from .pools.deadlines import Curves, curve_of
from .pools.size_exploration import Untried, untried_sizes
from .running.eligibility import running_job
from .running.job import AcceptedSizes, Paces, RunningJob, asked_for, pace_of
from .running.state import JobState
from .settings import PlannerSettings

_Asked = tuple[ElasticJob, JobState, PlannerSettings, Site, float]


class Tables:
    """Those of one planner. Not thread-safe, but for `running_jobs`."""

    def __init__(self) -> None:
        self.choices = ChoiceTables()
        self.candidates = Derived[int, candidates.CandidateInputs, candidates.Candidate | None](self._candidates)
        self.staying = Derived[int, candidates.Candidate, candidates.Candidate](one_by_one(candidates.staying))
        self.in_place = Derived[int, candidates.Candidate, candidates.Candidate](one_by_one(candidates.in_place))
        self.progress: candidates.Progress = Derived(candidates.progress_changes)
        self.untried: Untried = Derived(one_by_one(untried_sizes))
        self.paces: Paces = Derived(one_by_one(pace_of))
        self.curves: Curves = Derived(one_by_one(curve_of))
        self._accepted = Derived[Any, Any, AcceptedSizes](one_by_one(lambda asked: AcceptedSizes(*asked)), room=1 << 10)
        self._alike: candidates.Alike = Derived(one_by_one(candidates.alike_sizes), room=1 << 12)
        self._running = Derived[int, _Asked, RunningJob](
            one_by_one(self._running_job), _without_reports, until=lambda running, _: running.fresh_until
        )
        self.running_jobs: Mapping[int, RunningJob] = {}
        """As the last round found them, by job id; replaced whole: other threads ask for single jobs."""

    def turn(self) -> None:
        for table in vars(self).values():
            if isinstance(table, (Derived, ChoiceTables)):
                table.turn()

    def running(
        self, roster: Roster, states: Mapping[int, JobState], settings: PlannerSettings, site: Site, now: float
    ) -> dict[int, RunningJob]:
        """The running jobs as they are now, by job id."""
        found = self._running.of(
            {
                job_id: (job, states.get(job_id, _UNKNOWN), settings, site, now)
                for job_id, job in roster.elastic.items()
                if job.running
            },
            now,
        )
        for job_id, running in found.items():
            running.state = states.get(job_id, _UNKNOWN)
        self.running_jobs = found
        return found

    def accepted(self, job: ElasticJob, too_large: frozenset[int] = frozenset()) -> AcceptedSizes:
        return self._accepted.each([asked_for(job, too_large)])[0]

    def _running_job(self, asked: _Asked) -> RunningJob:
        job, state, settings, site, now = asked
        return running_job(job, state, settings, now, site, self.accepted(job, state.too_large))

    def _candidates(self, asked: Sequence[candidates.CandidateInputs]) -> list[candidates.Candidate | None]:
        return [candidates.candidate(one, self._alike) for one in asked]


def _without_reports(asked: _Asked) -> tuple[Any, ...]:
    """Equal states differ in their reports at most: JobState says in which."""
    job, state, settings, site, _ = asked
    return job, state, state.measured, settings, site


_UNKNOWN = JobState()
AcceptedBy = Callable[[ElasticJob], AcceptedSizes]
"""`Tables.accepted`."""
