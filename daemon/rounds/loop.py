"""One round of the daemon: observe, store, reconcile, plan, resize. Every decision is made elsewhere.

Promise: a job is changed only after the resize or the event that says so is on the disk; a round that cannot observe
Slurm changes nothing; a round that fails is logged, and the next one starts from the store and Slurm.
Limit: one instance, one round at a time; it keeps only times between rounds, so a restart costs at most a delay.
"""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.rows import DecisionRow, InUse, Mark, ResizeRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import SlurmError, SlurmUnreachable, StoreError
from slurm_elastic.protocol.event_kind import EventKind
from slurm_elastic.protocol.resize_state import ResizeState

from ..actions.action import Action, Begin, Close
from ..actions.executor import Executor
from ..actions.refusals import Concerned, Refusal, standing
from ..actions.subject import Subject
from ..api.waiters import Waiters
from ..capacity.ledger import held_but_idle
from ..capacity.roster import Roster
from ..capacity.shrink_options import Unit
from ..capacity.unlisted_gpus import by_node, lasting
from ..config.settings import PLAN, Settings
from ..mechanisms.kept_waiting import kept_waiting
from ..mechanisms.overtaken import overtaken
from ..mechanisms.reconcile import next_actions, unused
from ..mechanisms.requeue import COMES_BACK, bound_by_a_shrink, first_size_steps, resumes
from ..mechanisms.timeouts import Bounds
from ..models.costs import Costs
from ..models.priors import Priors
from ..optimizer.policies import DEFAULT_POLICY
from ..planner import Inputs, Plan, plan_round
from ..planner.memory import Memory
from ..planner.running.job import RunningJob
from ..prediction.scoring import Expectations
from ..slurm.model import SlurmClient, Snapshot
from ..slurm.site import Site
from ..text.reasons import Reason
from .inputs.job_inputs import JobInputs
from .inputs.nonstarters import Nonstarters
from .inputs.queued_jobs import QueuedJobs
from .job_registry import JobRegistry

log = logging.getLogger(__name__)
SLOW_S = 5.0
"""After a look at the queue that took longer, limits and reservations are not read again: slurmctld is busy."""
LATE_S = 30.0
"""A round that takes this much longer than the time between two, or has not begun by then, is late."""
PARTS = ("observe", "store", "reconcile", "plan", "resize")
"""A round's parts, in their order."""


@dataclass(frozen=True, slots=True)
class Observed:
    """What one round decides on: read once, in an order in which a change in between does no harm."""

    snapshot: Snapshot
    roster: Roster
    resizes: Mapping[int, ResizeRow]
    in_use: Mapping[int, InUse]

    def numbers(self) -> dict[int, int]:
        """The open resizes' numbers, by job id."""
        return {job_id: resize.id for job_id, resize in self.resizes.items()}


class Rounds:
    """The daemon's rounds. `run` is called by one thread; `dry_run` by any."""

    def __init__(
        self,
        client: SlurmClient,
        store: Store,
        settings: Settings,
        registry: JobRegistry,
        waiters: Waiters,
        clock: Callable[[], float] = steady_now,
        bounds: Bounds | None = None,
    ) -> None:
        self.client, self.store, self.settings, self.registry, self.waiters = client, store, settings, registry, waiters
        self.clock = clock
        self.bounds = bounds or Bounds.of(settings)
        backoff = max(1.0, settings.failed_backoff_s / 10)
        self.executor = Executor(client, store, clock, backoff, settings.trip_after, settings.trip_s)
        self.count = 0
        """Successful rounds since the start."""
        self.priors = Priors(store, clock)
        self.costs = Costs(store, settings, clock)
        self._expectations = Expectations()
        self.last_ok = 0.0
        """When the last successful round ended."""
        self.trouble = ""
        """Why the last round failed; empty when it succeeded."""
        self._failing = ""
        self.failed = 0
        """Failed ones."""
        self.seconds = dict.fromkeys(PARTS, 0.0)
        """How long each part of the last round took."""
        self.capacity: int | None = None
        self.idle: int | None = None
        """GPUs of all pools at the last plan: for elastic jobs, and idle ones. None before the first plan."""
        self._lock = threading.Lock()
        self._moved = time.monotonic()
        """When the last round began, or ended."""
        self._unused: dict[Unit, float] = {}
        self._job_inputs = JobInputs(store, registry, self.priors, self.costs)
        self._queued = QueuedJobs(client, store, self.priors)
        self._nonstarters = Nonstarters()
        self._memory, self._in_mode = Memory(), settings
        self._site = Site()
        self._unlisted: Mapping[str, int] = {}
        self._left_out: Mapping[str, int] = {}
        self._held_but_idle: Mapping[str, int] = {}
        self._contradicted: Mapping[str, int] = {}
        self._fell_back = ""

    @property
    def tripped(self) -> str:
        """Why changes to Slurm are not tried for a while; empty when they are."""
        return self.executor.tripped

    @property
    def mode(self) -> str:
        """The mode of the settings; `advise` for a while after Slurm refused what concerns all jobs."""
        return "advise" if self.tripped and self.settings.mode == "act" else self.settings.mode

    def running_job(self, job_id: int) -> RunningJob | None:
        """A running elastic job as the last round found it."""
        return self._memory.running_job(job_id)

    @property
    def late(self) -> bool:
        """Whether a round takes too long, or does not begin."""
        return self.settings.mode != "off" and time.monotonic() - self._moved > self.settings.round_interval_s + LATE_S

    def run(self) -> bool:
        """One round; never raises. True when it changed something, so that another should follow soon."""
        with self._lock:
            self._moved = time.monotonic()
            try:
                with _uncollected():
                    changed = self._round()
            except SlurmError as error:
                self._failed("Slurm", f"Slurm could not be observed, so nothing is done: {error}")
            except StoreError as error:
                self._failed("database", f"the store failed: {error}")
            except Exception as error:
                log.exception("a round failed; the next one starts from what is there")
                self._failing, self.trouble = "selasticd", f"{type(error).__name__}: {error}"
            else:
                if self.trouble:
                    log.info("rounds succeed again")
                self.last_ok, self.trouble, self.count = self.clock(), "", self.count + 1
                self._failing = ""
                return changed
            finally:
                self._moved = time.monotonic()
            self.failed += 1
            return False

    @property
    def failing(self) -> str:
        """What the last round, or the last write of a report, has failed at: database, Slurm or selasticd."""
        return self._failing or ("database" if self.store.trouble else "")

    def dry_run(self) -> Plan:
        """What a round would decide now. Stores nothing, changes nothing."""
        with self._lock:
            snapshot = self.client.snapshot().marked(self._site)
            seen = self._read_store(snapshot, self.registry.sort(snapshot))
            return self._plan(seen, self.clock())

    def _round(self) -> bool:
        if self.mode == "off":
            return False
        self.executor.begin_round()
        if self.executor.recover():
            self.store.add_event(0, EventKind.TRIES_AGAIN, "selasticd", {"mode": self.mode}, self.clock())
        with self._part("observe"):
            began = time.monotonic()
            snapshot = self.client.snapshot()
            due = abs(snapshot.at - self._site.at) >= self.settings.site_interval_s
            if due and (not self._site.at or time.monotonic() - began < SLOW_S):
                self._site = self._read_site()
            snapshot = snapshot.marked(self._site)
        with self._part("store"):
            roster = self.registry.update(snapshot, self._end_states)
        with self._part("reconcile"):
            seen, now = self._read_store(snapshot, roster), self.clock()
            changed = self._reconcile(seen, now)
        if self.mode == "observe":
            return False
        with self._part("plan"):
            if changed:
                seen = self._read_store(snapshot, roster)  # some resizes were just closed
            plan = self._plan(seen, now, self.store.decision_marks(roster.elastic))
        self._score(seen, plan, now)
        self._note_unlisted(plan.unlisted)
        self._note_contradiction(snapshot)
        self._note_policy(plan.fell_back, now)
        self.capacity, self.idle = sum(plan.capacity.values()), sum(plan.idle.values())
        self._nonstarters.record(plan.met, snapshot, now)
        # The last decision about a job stays its explanation when its training is over.
        rows = [row for row in plan.rows if not self.registry.is_finished(row.job_id)]
        under_way = seen.numbers()
        for row in self.store.save_decisions(now, rows):
            log.info("%s", sentence(row), extra={"JOB": row.job_id, "RESIZE": under_way.get(row.job_id, 0)})
        for pool in plan.trouble:
            log.warning("no plan for %s", pool)
        with self._part("resize"):
            withdrawn = self._withdraw(plan.withdrawn, seen)
            self._begin_resizes(plan, now)
            back = resumes(plan.resumes, COMES_BACK, self._bound(plan, snapshot))
            act, first = self.mode == "act", plan.first
            scripts = self._queued.scripts(first.scripts) if act and first.starts else {}
            sized = [*back, *first_size_steps(first.starts, first.back, scripts)]
            resumed = len(self.executor.run(sized, act, snapshot.jobs, seen.numbers()))
            self._queued.asked((*first.starts, *first.back))
        # A job that is being requeued does not train: its next step should not wait for the interval.
        stopped = (i for i in seen.resizes.values() if i.requeues and not i.state.comes_before(ResizeState.SAVED))
        return changed or withdrawn > 0 or resumed > 0 or any(stopped)

    def _score(self, seen: Observed, plan: Plan, now: float) -> None:
        """Hold what earlier resizes were expected to bring against what was measured since."""
        store = self.store
        store.save_predictions(self._expectations.settle(seen.in_use, store.observations, store.program_of, now))
        if self.mode == "act":
            self._expectations.expect(plan.rows, {resize.job_id for resize in plan.resizes}, now)

    def _end_states(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        with suppress(SlurmError):
            return self.client.end_states(job_ids)
        return {}

    def _read_site(self) -> Site:
        found = {(row.user, row.partition): {one.name: one for one in row.tried} for row in self.store.probes()}
        site, qos = replace(self.client.site(), probed=found), self.settings.companion_qos
        if not (qos and site.checks_qos):
            return site
        users = self._site.companion_qos_users
        with suppress(SlurmUnreachable):  # slurmdbd may be away while slurmctld works
            users = self.client.qos_users(qos)
        return replace(site, companion_qos_users=users)

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = time.monotonic() - began

    def _bound(self, plan: Plan, snapshot: Snapshot) -> set[int]:
        waiting = (snapshot.jobs[job_id] for job_id in plan.resumes)
        return {
            job.job_id
            for job in waiting
            if job.required_nodes and bound_by_a_shrink(job, self.store.events(job.job_id))
        }

    def _read_store(self, snapshot: Snapshot, roster: Roster) -> Observed:
        # Resizes before allocations: a supervisor's `running` stores the allocation first, so a resize read as
        # running is never paired with the allocation from before its switch.
        resizes = {resize.job_id: resize for resize in self.store.open_resizes()}
        connected = self.registry.connected()
        in_use = {job_id: use for job_id, use in self.store.all_in_use().items() if job_id in connected}
        return Observed(snapshot, roster, resizes, in_use)

    def _reconcile(self, seen: Observed, now: float) -> bool:
        resizes = list(seen.resizes.values())
        self._unused = unused(seen.roster, seen.in_use, resizes, self._unused, now)
        lost = overtaken(seen.snapshot, seen.roster, resizes)
        waiting = kept_waiting(seen.roster, resizes, lost)
        if waiting:
            self._site = self._read_site()  # a limit that was not known is not planned against again
        left = [resize for resize in resizes if resize.id not in {one.resize.id for one in waiting}]
        actions: Sequence[Action] = [
            *(action for one in waiting for action in one.actions(seen.snapshot, self._site)),
            *next_actions(
                *(seen.roster, seen.in_use, left, self._unused, now, self.bounds.at(self._site)),
                overtaken=lost,
                kept_whole=self._kept_whole(seen.roster, now),
            ),
        ]
        act = self.mode == "act"
        if not act:
            actions = [
                Close(resize.job_id, resize.id, ResizeState.WITHDRAWN, f"the daemon's mode is {self.mode}")
                for resize in resizes
                if resize.state != ResizeState.RUNNING
            ]
        before = self.tripped
        done = self.executor.run(actions, act, seen.snapshot.jobs, seen.numbers())
        if self.tripped and not before:
            self._trip()
        for action in actions:
            if isinstance(action, Close):
                self.waiters.notify(action.job_id)
        return bool(done)

    def _trip(self) -> None:
        log.error("mode is advise for a while: %s", self.tripped)
        self.store.add_event(0, EventKind.TRIPPED, "selasticd", {"why": self.tripped, "mode": "advise"}, self.clock())

    def _plan(self, seen: Observed, now: float, marks: Mapping[int, Mark] = MappingProxyType({})) -> Plan:
        running = [job_id for job_id, job in seen.roster.elastic.items() if job.running]
        refused = self._refused(seen.roster, now)
        back = {job_id: i.add[0] for job_id, i in seen.resizes.items() if i.requeues}
        return plan_round(
            Inputs(
                seen.snapshot,
                seen.roster,
                self._job_inputs.collect(running, seen.in_use, seen.resizes, refused, self._nonstarters.in_vain, now),
                self._settings_of(self.mode),
                now,
                self._nonstarters.excluded(now),
                self._memory,
                self._site,
                back,
                marks,
                self._unlisted,
                self.store.host_pairs(),
                self._queued.models(seen.roster, now) if self.settings.first_size == PLAN else {},
                self._queued.changed(seen.roster),
            )
        )

    def _settings_of(self, mode: str) -> Settings:
        """The settings in that mode; the same object as long as it is the same."""
        if self._in_mode.mode != mode:
            self._in_mode = replace(self.settings, mode=mode)
        return self._in_mode

    def _note_unlisted(self, unlisted: Mapping[str, int]) -> None:
        """Say once which nodes hold GPUs that no job accounts for: what is left of such a node counts, and no more."""
        left_out = lasting(unlisted, self._unlisted)
        self._unlisted = unlisted
        if left_out != self._left_out:
            self._left_out = left_out
            log.warning("GPUs in use by no job that Slurm lists: %s", by_node(left_out) or "none any more")

    def _note_contradiction(self, snapshot: Snapshot) -> None:
        """Say once where Slurm's own listings differ for longer than a job takes to end between the two."""
        now = held_but_idle(snapshot)
        stays = lasting(now, self._held_but_idle)
        self._held_but_idle = now
        if stays != self._contradicted:
            self._contradicted = stays
            words = "Slurm contradicts itself: GPUs that a running job holds are idle by sinfo, and count as in use: %s"
            log.warning(words, by_node(stays) or "none any more")

    def _note_policy(self, fell_back: str | None, now: float) -> None:
        """Say once that the site's policy does not plan, and once that it does again."""
        if fell_back is None or bool(fell_back) == bool(self._fell_back):
            return
        self._fell_back = fell_back
        if fell_back:
            log.error("%s; %s plans in its place until it does", fell_back, DEFAULT_POLICY)
            detail = {"policy": self.settings.policy, "detail": f"{fell_back}; {DEFAULT_POLICY} plans in its place"}
            self.store.add_event(0, EventKind.POLICY_FAILED, "selasticd", detail, now)
        else:
            log.info("policy %s plans again", self.settings.policy)
            self.store.add_event(0, EventKind.POLICY_WORKS, "selasticd", {"policy": self.settings.policy}, now)

    def _kept_whole(self, roster: Roster, now: float) -> dict[int, str]:
        """Why no Slurm job of these elastic jobs is asked to give up single nodes, by job id."""
        refused = self._refused(roster, now)
        return {
            job_id: f"Slurm still holds what it left; {kinds[EventKind.SHRINK].words}"
            for job_id, kinds in refused.items()
            if EventKind.SHRINK in kinds
        }

    def _refused(self, roster: Roster, now: float) -> dict[int, Mapping[EventKind, Refusal]]:
        """What Slurm refuses to do about running jobs now, by job id."""
        refusals, site = self.executor.refusals, self._site
        if refusals.none and not site.probed and self.settings.release_by != "job":
            return {}
        jobs = ((job.job_id, job.base) for job in roster.elastic.values() if job.running)
        found = {
            job_id: {
                **refusals.of(Concerned.of(Subject.job(job_id), base), now),
                **standing(self.settings, site.found(base.user, base.partition)),
            }
            for job_id, base in jobs
        }
        return {job_id: refused for job_id, refused in found.items() if refused}

    def _withdraw(self, jobs: Mapping[int, int], seen: Observed) -> int:
        """Withdraw growths that have not switched, for the waiting jobs that need their nodes."""
        closes = [
            Close(job_id, seen.resizes[job_id].id, ResizeState.OVERTAKEN, f"job {need} waits for its nodes")
            for job_id, need in jobs.items()
        ]
        done = len(self.executor.run(closes, self.mode == "act"))
        for close in closes:
            self.waiters.notify(close.job_id)
        return done

    def _begin_resizes(self, plan: Plan, now: float) -> None:
        """Begin the resizes of a plan."""
        for action in self.executor.run([Begin(resize) for resize in plan.resizes], self.mode == "act"):
            if isinstance(action, Begin):
                self._nonstarters.gives(action.job_id, (met for met in plan.met if action.job_id in met.givers))
                self.waiters.notify(action.job_id)

    def _failed(self, failing: str, sentence: str) -> None:
        if sentence != self.trouble:
            log.warning("%s", sentence)
        self._failing, self.trouble = failing, sentence


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would go again and again through all that a round makes and lets go by
    itself: a tenth of a round's time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def sentence(row: DecisionRow) -> str:
    """A decision in one line of the log."""
    if row.reason == Reason.WAITING.value:
        return f"job {row.job_id}: waits for its {row.evidence.get('for_gpus')} GPUs"
    size = f"{row.gpus_from} GPUs" if row.gpus_from == row.gpus_to else f"{row.gpus_from} -> {row.gpus_to} GPUs"
    batch = f", batch {row.batch_from} -> {row.batch_to}" if row.batch_from != row.batch_to else ""
    how = f" by {row.mechanism}" if row.mechanism else ""
    what_for = f" (job {row.evidence['for_job']})" if "for_job" in row.evidence else ""
    advised = "" if row.mode == "act" or not row.mechanism else f" [{row.mode} only]"
    return f"job {row.job_id}: {size}{batch}{how}: {Reason(row.reason).text}{what_for}{advised}"
