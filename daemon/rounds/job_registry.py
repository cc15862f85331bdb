"""Updates the store's jobs from Slurm's: which are elastic, which are not managed and why, which have ended.

Promise: why a job is not managed is recorded once, with the job and in its events. How a job ended is what the exit
code of its supervisor says, or Slurm where that was not sent. Limit: Slurm forgets a job after MinJobAge.
"""

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.rows import JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.record import made_from
from slurm_elastic.protocol.codes import EventKind, Reason
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.request import find

from ..capacity.roster import ElasticJob, Roster, RosterTables, Scope, companion_tag, sort_jobs
from ..derived.table import Derived, one_by_one
from ..slurm.model import Job, Snapshot
from .settings import RoundSettings

log = logging.getLogger(__name__)
ENDED = "ENDED"
"""State of a job that Slurm has forgotten and whose supervisor did not say how the training ended."""
EndStates = Callable[[Sequence[int]], Mapping[int, str]]
"""How jobs have ended, as far as Slurm knows."""
YOUNG_S = 360.0
"""How long after its beginning, by a clock that may be five minutes off, a world is counted again."""
STOPPED = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit codes of a supervisor that was told to stop: by its user, or by Slurm for whatever reason."""


class JobRegistry:
    """What is known of jobs beside the store; thread-safe."""

    def __init__(self, store: Store, settings: RoundSettings, clock: Callable[[], float] = steady_now) -> None:
        self.store, self.clock = store, clock
        self.takes_requests = settings.supervisor_requests
        """Whether a request counts that a supervisor brings."""
        uid = os.geteuid() if settings.user_mode else None
        self.scope = Scope(partitions=settings.partitions, accounts=settings.accounts, uid=uid)
        self._lock = threading.Lock()
        self._requests: dict[int, str] = {}
        self._finished: dict[int, int] = {}
        self._ending: set[int] = set()
        self._reference: dict[int, tuple[int, int]] = {}
        self._heard: set[int] = set()
        self._asked_again: set[int] = set()
        self.tables = RosterTables()
        self.rows = Derived[int, ElasticJob, JobRow](one_by_one(self.managed_row))

    def set_request(self, job_id: int, request: str) -> None:
        """The job's supervisor has sent an elastic request of its own, which replaces the one in the comment where the
        site has it so."""
        if self.takes_requests:
            with self._lock:
                self._requests[job_id] = request

    def started(self, job_id: int) -> None:
        """A supervisor has registered: a training that was over has started again."""
        with self._lock:
            self._finished.pop(job_id, None)
            self._ending.discard(job_id)

    def registered(self, job_id: int) -> None:
        """What the supervisor trains on is in the store."""
        with self._lock:
            self._heard.add(job_id)

    def heard(self, job_id: int, last_resize: int) -> bool:
        """A supervisor asks for its next resize. False: it knows a later one than the database, which was restored
        from a backup; what it trains on is not known until it has registered again."""
        known = self.store.resizes.last_id(job_id)
        with self._lock:
            if last_resize > known and job_id not in self._asked_again:
                self._asked_again.add(job_id)
                self._heard.discard(job_id)
                return False
            self._heard.add(job_id)
            return True

    def connected(self) -> frozenset[int]:
        """Jobs whose supervisor has spoken since selasticd started, so that what the store says of them is right."""
        with self._lock:
            return frozenset(self._heard)

    def finished(self, job_id: int, exit_code: int) -> None:
        """The supervisor has reported the end of the training and its exit code."""
        with self._lock:
            self._finished[job_id] = exit_code

    def ends(self, job_id: int) -> None:
        """The job was told that Slurm is about to end it."""
        with self._lock:
            self._ending.add(job_id)

    def is_ending(self, job_id: int) -> bool:
        """Whether it was told so since its supervisor registered."""
        return job_id in self._ending

    def is_finished(self, job_id: int) -> bool:
        """Whether the training is over, though Slurm may still list the job."""
        with self._lock:
            return job_id in self._finished

    def sort(self, snapshot: Snapshot) -> Roster:
        """The roster of a snapshot; stores nothing."""
        rows = {row.job_id: row for row in self.store.jobs.all(active_only=True)}
        return self._sort(snapshot, rows)

    def update(self, snapshot: Snapshot, end_states: EndStates) -> Roster:
        """Store the elastic jobs of a snapshot, and the end of those that it no longer lists."""
        rows = {row.job_id: row for row in self.store.jobs.all(active_only=True)}
        roster = self._sort(snapshot, rows)
        found = self._managed_rows(roster)
        found += [
            job_row(entry.job, entry.request, False, entry.reason, entry.detail) for entry in roster.unmanaged.values()
        ]
        for row in found:
            self._record_change(row, rows.get(row.job_id))
        self.store.jobs.upsert_all(found)
        self._count_what_began(snapshot)
        gone = rows.keys() - snapshot.jobs.keys()
        silent = sorted(job_id for job_id in gone if not self.is_finished(job_id))
        states = end_states(silent) if silent else {}
        for job_id in gone:
            self._end(job_id, states.get(job_id, ENDED))
        return roster

    def _count_what_began(self, snapshot: Snapshot) -> None:
        """A piece that Slurm had not listed yet when a world began on it counts from that world's beginning."""
        now, jobs = self.clock(), snapshot.jobs
        worlds = self.store.allocations.all_in_use()
        young = [job_id for job_id, use in worlds.items() if job_id in jobs and abs(now - use.since) < YOUNG_S]
        for job_id, counted in self.store.allocations.counted_gpus(young).items():
            if counted < worlds[job_id].gpus:
                held = held_pieces(jobs[job_id], worlds[job_id].pieces, jobs)
                if counted < sum(piece.gpus for piece in held):
                    self.store.allocations.count_held(job_id, worlds[job_id].generation, held)

    def _managed_rows(self, roster: Roster) -> list[JobRow]:
        self.rows.turn()
        return list(self.rows.of(roster.elastic).values())

    def managed_row(self, job: ElasticJob) -> JobRow:
        """The row of an elastic job as Slurm describes it now."""
        reason = Reason.WAITING if job.base.pending else Reason.KEEP_UNREGISTERED
        return job_row(job.base, job.request.text(), True, reason, "", held_gpus=job.gpus)

    def reference(self, job_id: int) -> tuple[int, int] | None:
        """(GPUs, batch) that the job first trained with."""
        known = self._reference.get(job_id)
        if known is None:
            # All jobs at once: after a start thousands are needed.
            self._reference = {**self.store.allocations.first_sizes(), **self._reference}
            known = self._reference.get(job_id)
        return known

    def _sort(self, snapshot: Snapshot, rows: dict[int, JobRow]) -> Roster:
        with self._lock:
            asked = dict(self._requests)
        for job_id, row in rows.items() if self.takes_requests else ():
            job = snapshot.jobs.get(job_id)
            # After a restart: a request that is in no comment came from the supervisor.
            if job is not None and row.managed and job_id not in asked and find(job.comment) is None:
                asked[job_id] = row.request
        accepted = {job_id for job_id, row in rows.items() if row.managed and row.start_time is not None}
        return sort_jobs(snapshot, self.scope, asked, accepted, self.tables)

    def _record_change(self, row: JobRow, before: JobRow | None) -> None:
        """Store an event when it is managed, or not, or for another reason than before, or asks for something else."""
        if before is not None and (before.managed, before.detail) == (row.managed, row.detail):
            if row.managed and row.request != before.request:
                changed = {"request": row.request, "before": before.request}
                self.store.events.add(row.job_id, EventKind.REQUEST, row.user, changed, self.clock())
            return
        kind = EventKind.MANAGED if row.managed else EventKind.NOT_MANAGED
        detail = {"request": row.request, "reason": row.reason, "detail": row.detail}
        self.store.events.add(row.job_id, kind, "selasticd", detail, self.clock())
        about = {"JOB": row.job_id, "USER": row.user}
        how = row.request if row.managed else f"not managed: {row.detail}"
        log.info("job %d (%s): %s", row.job_id, row.user, how, extra=about)

    def _end(self, job_id: int, by_slurm: str) -> None:
        with self._lock:
            code = self._finished.pop(job_id, None)
            self._ending.discard(job_id)
            self._requests.pop(job_id, None)
            self._reference.pop(job_id, None)
            self._heard.discard(job_id)
            self._asked_again.discard(job_id)
        now, state = self.clock(), by_slurm if code is None else end_state(code)
        detail = {"state": state} if code is None else {"state": state, "exit_code": code}
        self.store.events.add(job_id, EventKind.ENDED, "selasticd", detail, now)
        self.store.jobs.end(job_id, state, now)
        log.info("job %d: ended", job_id, extra={"JOB": job_id})


def end_state(exit_code: int) -> str:
    """How a job has ended, in Slurm's terms, from its supervisor's exit code.

    CANCELLED is an end from outside: a time limit or a preemption sends the same signal as scancel.
    """
    if exit_code in STOPPED:
        return "CANCELLED"
    return "FAILED" if exit_code else "COMPLETED"


def job_row(job: Job, request: str, managed: bool, reason: Reason, detail: str, **more: Any) -> JobRow:
    """A job of a snapshot as a row of the store; `more`: further columns."""
    told = {"request": request, "managed": managed, "reason": reason.value, "detail": detail, **more}
    return made_from(JobRow, job, end_time=None, **told)


def held_pieces(base: Job, pieces: Iterable[Piece], jobs: Mapping[int, Job]) -> tuple[Piece, ...]:
    """What a job is charged for: the pieces, cut to what they are of `base` in Slurm's list of jobs, without those that
    are nothing there; no more GPUs than Slurm gave the job itself, its components and its companions."""
    left: dict[int, int] = {}
    found = []
    for piece in pieces:
        job = jobs.get(piece.slurm_job_id)
        if job is None or not _belongs(job, base):
            continue
        nodes = tuple(dict.fromkeys(node for node in piece.nodes if node in job.nodes))
        if not nodes:
            continue
        unspoken = left.get(job.job_id, job.gpus)
        held = replace(piece, nodes=nodes, gpus_per_node=min(piece.gpus_per_node, unspoken // len(nodes)))
        left[job.job_id] = unspoken - held.gpus
        found.append(held)
    return tuple(found)


def _belongs(job: Job, base: Job) -> bool:
    if not job.active or job.uid != base.uid:
        return False
    if job.job_id == base.job_id or (base.het_job_id and job.het_job_id == base.het_job_id):
        return True
    tag = companion_tag(job)
    return tag is not None and tag.base == base.job_id
