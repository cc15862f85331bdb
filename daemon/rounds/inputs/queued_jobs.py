"""What plans need to know of jobs in Slurm's queue, from the store: sizes of ours, and how fast their programs are.

Promise: a size that was set is known again after a restart, for its event was written before Slurm was asked. A job's
model is that of the last run of its user's with its name, else the middle of what is known of this cluster's programs.
Limit: what a job's script will run is not known before it runs; another script under an old name is taken for the old
one until it has reported.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

from slurm_elastic.db.rows import EventRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import EventKind
from slurm_elastic.protocol.errors import ElasticError, SlurmError

from ...capacity.pending_jobs import SOON_S
from ...capacity.roster import Roster
from ...derived.table import Derived, one_by_one
from ...models.cache import observations
from ...models.priors import Priors
from ...optimizer.job_view import Model
from ...optimizer.models.throughput import fit, unmeasured
from ...planner.waiting.first_sizes import Changed
from ...slurm.model import Job, Size, SlurmClient

log = logging.getLogger(__name__)
ORDERLY = ("PREEMPTED", "REQUEUED")
"""States of runs after whose end nothing is sent to their nodes any more."""
UNKNOWN = "UNKNOWN"
"""Slurmdbd did not answer; it is not asked again."""
ANEW_S = 300.0
"""How long the model of a name is kept."""


class QueuedJobs:
    """One per daemon; not thread-safe."""

    def __init__(self, client: SlurmClient, store: Store, priors: Priors) -> None:
        self._client, self._store, self._priors = client, store, priors
        self._changed: dict[int, Changed | None] = {}
        """None: its size was never changed."""
        self._ends: dict[tuple[int, int], str] = {}
        """How runs of jobs ended, by job id and restarts."""
        self._models = Derived[_Name, _Name, Model](one_by_one(self._model), until=lambda _, at: at + ANEW_S)

    def changed(self, roster: Roster) -> dict[int, Changed]:
        """Waiting jobs that have never run and whose sizes were changed, by job id."""
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

    def models(self, roster: Roster, now: float) -> dict[int, Model]:
        """What is believed of the speed of waiting jobs, by job id."""
        jobs = [job.base for job in roster.elastic.values() if job.base.pending]
        self._models.turn()
        models = self._models.of({name: name for name in ((job.user, job.name) for job in jobs)}, now)
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


_Name = tuple[str, str]
"""A user's, and one of his jobs'."""


def _changed(event: EventRow | None) -> Changed | None:
    script, now = (event.detail.get("script"), event.detail.get("size")) if event is not None else (None, None)
    if event is None or not script or not now:
        return None
    return Changed(_size(script), _size(now), event.at)


def _size(plain: Mapping[str, Any]) -> Size:
    return Size(**{name: plain[name] for name in Size.__dataclass_fields__ if name in plain})
