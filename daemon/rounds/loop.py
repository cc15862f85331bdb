"""One round of the daemon: observe, store, reconcile, ask each service, act, record. Every decision is made elsewhere.

Promise: a job is changed only after the resize or the event that says so is on the disk; a round that cannot observe
Slurm changes nothing; a round that fails is logged, and the next one starts from the store and Slurm.
Limit: one instance, one round at a time; it keeps only times between rounds, so a restart costs at most a delay.
"""

import gc
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.site import Power
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.errors import SlurmError, SlurmUnreachable, StoreError
from slurm_elastic.protocol.messages import Resize

from ..actions.action import Action, Resume, Subject
from ..actions.executor import Executor
from ..capacity.ledger import held_but_idle
from ..capacity.pending_jobs import by_node, lasting
from ..capacity.roster import Roster
from ..capacity.shrink_options import Unit
from ..mechanisms.reconcile import kept_waiting, next_actions, overtaken, unused
from ..mechanisms.settings import Bounds
from ..models.costs import Costs
from ..models.priors import Priors
from ..planner.running.job import RunningJob
from ..prediction.advice import Ground
from ..prediction.scoring import Expectations
from ..services.base import ACT, Note, Observation, Proposal, Service
from ..services.queue.service import Foretold
from ..services.registry import Services
from ..slurm.model import Job, SlurmClient, Snapshot
from ..slurm.site import Site
from .facts import StoredFacts
from .job_registry import JobRegistry
from .settings import RoundSettings
from .waiters import Waiters

log = logging.getLogger(__name__)
SLOW_S = 5.0
"""After a look at the queue that took longer, limits and reservations are not read again: slurmctld is busy."""
LATE_S = 30.0
"""A round that takes this much longer than the time between two, or has not begun by then, is late."""
COLLECT_S = 600.0
"""Between two looks of the garbage collector at all there is, for what callers and libraries leave in cycles."""
PARTS = ("observe", "store", "reconcile", "plan", "resize")
"""A round's parts, in their order."""


class Rounds:
    """The daemon's rounds. `run` is called by one thread; `dry_run` by any."""

    def __init__(
        self,
        client: SlurmClient,
        store: Store,
        settings: RoundSettings,
        registry: JobRegistry,
        waiters: Waiters,
        clock: Callable[[], float] = steady_now,
        bounds: Bounds | None = None,
    ) -> None:
        self.client, self.store, self.settings, self.registry = client, store, settings, registry
        self.clock = clock
        self.bounds = bounds or Bounds.of(settings)
        backoff = max(1.0, settings.failed_backoff_s / 10)
        trips = settings.trip_after, settings.trip_s
        self.executor = Executor(client, store, clock, backoff, *trips, notify=waiters.notify)
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
        self._lock = threading.Lock()
        self._moved = self._collected = time.monotonic()
        """When the last round began, or ended."""
        self._unused: dict[Unit, float] = {}
        self.services = Services(settings)
        self.facts = StoredFacts(client, store, settings, registry, self.priors, self.costs, self.executor.refusals)
        self._site = Site()
        self._spent = dict.fromkeys(PARTS, 0.0)
        self._broken: dict[str, str] = {}
        """What went wrong in which service in the last round, by its name."""
        self._noted: dict[str, dict[Subject, Note]] = {}
        """What each service said in the last round, by its name."""
        self._held_but_idle: Mapping[str, int] = {}
        self._contradicted: Mapping[str, int] = {}

    @property
    def tripped(self) -> str:
        """Why changes to Slurm are not tried for a while; empty when they are."""
        return self.executor.tripped

    @property
    def mode(self) -> str:
        """The mode of the settings; `review` for a while after Slurm refused what concerns all jobs."""
        return "review" if self.tripped and self.settings.mode == "act" else self.settings.mode

    def running_job(self, job_id: int) -> RunningJob | None:
        """A running elastic job as the last round found it."""
        return self.services.elastic.running_job(job_id)

    @property
    def capacity(self) -> int | None:
        """GPUs of all pools that elastic jobs may hold, at the last plan; None: there was none."""
        return self.services.elastic.capacity

    @property
    def idle(self) -> int | None:
        """GPUs of all pools that nobody holds or waits for, at the last plan; None: there was none."""
        return self.services.elastic.idle

    @property
    def late(self) -> bool:
        """Whether a round takes too long, or does not begin."""
        return self.settings.mode != "off" and time.monotonic() - self._moved > self.settings.round_interval_s + LATE_S

    def run(self) -> bool:
        """One round; never raises. True when it changed something, so that another should follow soon."""
        with self._lock:
            self._moved, changed = time.monotonic(), False
            if self._moved - self._collected >= COLLECT_S:
                gc.collect()
                self._collected = self._moved
            self._broken.clear()
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
                if not self._broken:
                    if self.trouble:
                        log.info("rounds succeed again")
                    self.last_ok, self.trouble, self.count = self.clock(), "", self.count + 1
                    self._failing = ""
                    return changed
                self._failing = ", ".join(f"service {name}" for name in self._broken)
                self.trouble = "; ".join(f"service {name}: {why}" for name, why in self._broken.items())
            finally:
                self._moved = time.monotonic()
            self.failed += 1
            return changed

    @property
    def failing(self) -> str:
        """What the last round, or the last write of a report, has failed at: database, Slurm, selasticd, or one of its
        services by name."""
        return self._failing or ("database" if self.store.trouble else "")

    def notes(self) -> dict[str, tuple[Note, ...]]:
        """What each service said in the last round where no decision about a job does, by its name."""
        return {name: tuple(said.values()) for name, said in self._noted.items()}

    def dry_run(self) -> list[Proposal]:
        """What each service would want now, whatever the daemon's mode. Stores nothing, changes nothing."""
        with self._lock:
            snapshot = self.client.snapshot().marked(self._site)
            seen = self._look(snapshot, self.registry.sort(snapshot), self.clock())
            return self.services.wishes(replace(seen, marks={}))

    def ground(self, snapshot: Snapshot) -> Ground:
        """What jobs can ask for, and where `queue` is on when they would start."""

        def would_start(job: Job, seconds: float) -> tuple[float, ...]:
            with self._lock:
                return self.services.queue.would_start(job, seconds)

        return Ground(snapshot, self._site, self.settings.gpu_prices, would_start if self.queue() is not None else None)

    def queue(self) -> Foretold | None:
        """Waiting jobs in the order of the service `queue`; None: it is off, or has not been asked yet."""
        with self._lock:
            return self.services.queue.foretold()

    def power(self) -> Power | None:
        """Nodes as the service `power` has them; None: it is off, or has not been asked yet."""
        with self._lock:
            return self.services.power.report()

    def _round(self) -> bool:
        if self.mode == "off":
            return False
        self._spent = dict.fromkeys(PARTS, 0.0)
        self.executor.begin_round()
        if self.executor.recover():
            self.store.events.add(0, EventKind.TRIES_AGAIN, "selasticd", {"mode": self.mode}, self.clock())
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
            seen = self._look(snapshot, roster, self.clock())
            changed = self._reconcile(seen)
        if self.mode == "observe":
            return False
        with self._part("plan"):
            # Some resizes may just have been closed, and Slurm may have refused what concerns all jobs.
            if changed:
                seen = self._look(snapshot, roster, seen.now)
            else:
                seen = replace(seen, site=self._site, settings=self.services.in_mode(self.mode))
            seen = replace(seen, marks=self.store.decisions.marks(roster.elastic))
        self._note_contradiction(snapshot)
        done = self._ask(seen)
        # A job that is being requeued does not train: its next step should not wait for the interval.
        stopped = (i for i in seen.resizes.values() if i.requeues and not i.state.comes_before(ResizeState.SAVED))
        return changed or any(not isinstance(action, Resize) for action in done) or any(stopped)

    def _ask(self, seen: Observation) -> list[Action]:
        """Ask each service, put on record what it says, and do what it wants if it acts; what was done."""
        done: list[Action] = []
        proposals = self.services.proposals(seen, self._fence)
        while True:
            with self._part("plan"):
                asked = next(proposals, None)
                if asked is None:
                    return done
                service, own, proposal = asked
            with self._fence(service):
                with self._part("plan"):
                    self._record(service, own, proposal)
                with self._part("resize"):
                    done += self._follow(service, own, proposal)

    @contextmanager
    def _fence(self, service: Service) -> Iterator[None]:
        """What goes wrong in a service ends its part of the round alone, and is told as the round's trouble."""
        try:
            yield
        except (SlurmError, StoreError):
            raise  # of what it is shown, which concerns all of them
        except Exception as error:
            log.exception("service %s failed; the round goes on without it", service.name)
            self._broken[service.name] = f"{type(error).__name__}: {error}"

    def _follow(self, service: Service, own: Observation, proposal: Proposal) -> list[Action]:
        """Do what a service wants, if it acts; what was done."""
        carried_out = self._carry_out(proposal.actions, own.settings.mode == ACT, own)
        service.settled(own, proposal, carried_out)
        of_script = (one.job_id for one in proposal.actions if isinstance(one, Resume) and one.script)
        self.facts.asked(of_script)
        return carried_out

    def _record(self, service: Service, seen: Observation, proposal: Proposal) -> None:
        decisions = [row for row in proposal.rows if isinstance(row, DecisionRow)]
        if service is self.services.elastic:
            self._score(seen, decisions, proposal)
        # The last decision about a job stays its explanation when its training is over.
        standing, under_way = [row for row in decisions if not self.registry.is_finished(row.job_id)], seen.numbers()
        for row in self.store.decisions.save(seen.now, standing):
            log.info("%s", service.explain(row), extra={"JOB": row.job_id, "RESIZE": under_way.get(row.job_id, 0)})
        before, notes = self._noted.get(service.name, {}), [row for row in proposal.rows if isinstance(row, Note)]
        self._noted[service.name] = {note.subject: note for note in notes}
        for note in notes:
            if before.get(note.subject) != note:
                job_id = note.subject.job_id
                detail = {"service": service.name, "about": note.subject.words, **note.detail}
                self.store.events.add(job_id, note.kind, "selasticd", detail, seen.now)
                log.log(note.level, "%s", service.explain(note), extra={"JOB": job_id})

    def _carry_out(self, actions: Sequence[Action], act: bool, seen: Observation) -> list[Action]:
        """Those that were done."""
        before = self.tripped
        actions = self._without_resting(actions, seen.snapshot) if act else actions
        done = self.executor.run(actions, act, seen.snapshot.jobs, seen.numbers())
        if self.tripped and not before:
            log.error("mode is review for a while: %s", self.tripped)
            detail = {"why": self.tripped, "mode": "review"}
            self.store.events.add(0, EventKind.TRIPPED, "selasticd", detail, self.clock())
        return done

    def _without_resting(self, actions: Sequence[Action], snapshot: Snapshot) -> Sequence[Action]:
        """Without the starts of jobs that keep the time which Slurm makes them wait."""
        starts = {one.slurm_job_id: one for one in actions if isinstance(one, Resume)}
        if not starts:
            return actions
        jobs = (snapshot.jobs[job_id] for job_id in starts)
        ours = {job_id for job_id, one in starts.items() if one.resize}
        rests = self.facts.resting(jobs, ours, snapshot.at)
        return [one for one in actions if not (isinstance(one, Resume) and one.slurm_job_id in rests)]

    def _score(self, seen: Observation, decisions: Sequence[DecisionRow], proposal: Proposal) -> None:
        """Hold what earlier resizes were expected to bring against what was measured since."""
        store = self.store
        store.outcomes.save_predictions(
            self._expectations.settle(seen.in_use, store.reports.observations, store.programs.of, seen.now)
        )
        if seen.settings.mode == "act":
            begins = {action.job_id for action in proposal.actions if isinstance(action, Resize)}
            self._expectations.expect(decisions, begins, seen.now)

    def _end_states(self, job_ids: Sequence[int]) -> Mapping[int, str]:
        with suppress(SlurmError):
            return self.client.end_states(job_ids)
        return {}

    def _read_site(self) -> Site:
        found = {(row.user, row.partition): {one.name: one for one in row.tried} for row in self.store.probes.all()}
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
            self._spent[name] += time.monotonic() - began
            self.seconds[name] = self._spent[name]

    def _look(self, snapshot: Snapshot, roster: Roster, now: float) -> Observation:
        # Resizes before allocations: a supervisor's `running` stores the allocation first, so a resize read as
        # running is never paired with the allocation from before its switch.
        resizes = {resize.job_id: resize for resize in self.store.resizes.under_way()}
        connected = self.registry.connected()
        in_use = {job_id: use for job_id, use in self.store.allocations.all_in_use().items() if job_id in connected}
        settings = self.services.in_mode(self.mode)
        return Observation(snapshot, roster, resizes, in_use, self._site, settings, now, self.facts)

    def _reconcile(self, seen: Observation) -> bool:
        """What is due about resizes under way, and what services are to take back that do not act."""
        resizes = list(seen.resizes.values())
        self._unused = unused(seen.roster, seen.in_use, resizes, self._unused, seen.now)
        lost = overtaken(seen.snapshot, seen.roster, resizes)
        waiting = kept_waiting(seen.roster, resizes, lost)
        if waiting:
            self._site = self._read_site()  # a limit that was not known is not planned against again
        left = [resize for resize in resizes if resize.id not in {one.resize.id for one in waiting}]
        actions: list[Action] = self.services.undo(seen, self._fence)
        if self.services.elastic.mode(seen.settings, seen.site) == ACT:
            actions += (action for one in waiting for action in one.actions(seen.snapshot, self._site))
            actions += next_actions(
                *(seen.roster, seen.in_use, left, self._unused, seen.now, self.bounds.at(self._site)),
                overtaken=lost,
                kept_whole=self.facts.kept_whole(replace(seen, site=self._site)),
            )
        return bool(self._carry_out(actions, self.mode == "act", seen))

    def _note_contradiction(self, snapshot: Snapshot) -> None:
        """Say once where Slurm's own listings differ for longer than a job takes to end between the two."""
        now = held_but_idle(snapshot)
        stays = lasting(now, self._held_but_idle)
        self._held_but_idle = now
        if stays != self._contradicted:
            self._contradicted = stays
            words = "Slurm contradicts itself: GPUs that a running job holds are idle by sinfo, and count as in use: %s"
            log.warning(words, by_node(stays) or "none any more")

    def _failed(self, failing: str, sentence: str) -> None:
        if sentence != self.trouble:
            log.warning("%s", sentence)
        self._failing, self.trouble = failing, sentence


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the garbage collector, which would go again and again through all that a round makes and lets go by
    itself: a tenth of a round's time. What is there then is old at once: as young it would be gone through, a fifth of
    the time. The collector counts anew from there, so it would never look at what is old by itself (COLLECT_S)."""
    collects = gc.isenabled()
    gc.collect(0)  # what callers have left since the last round
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.freeze()
            gc.unfreeze()  # to the oldest generation
            gc.enable()
