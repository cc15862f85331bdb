"""A trace replayed under one policy, or under what Slurm does by itself: first come, first served, with backfill or
without (`static`), which the policies are compared with.

Promise: the same trace, settings and seed give the same outcome, with every assumption in words. Under a policy
cooldowns, trials of sizes, room for waiting jobs, allocation and placement are the daemon's services' alone, which are
asked as in the daemon and given what they are given there; what they want is carried out piece by piece.
Limit: one policy at a time; what the simulation leaves out is said in `engine`. Every resize succeeds. Jobs start with
what they were submitted with: in the order in which they came, and at each decision also those behind a job that cannot
start, as Slurm's backfill starts jobs without a time limit.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from slurm_elastic.db.rows import EventRow, HostPair, ResizeRow
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.messages import Resize

from ..actions.action import Close, Resume
from ..capacity.free_gpus import FreeGpus
from ..capacity.roster import Roster
from ..optimizer.job_view import Model
from ..optimizer.policies import POLICIES
from ..planner import JobState, Plan
from ..planner.decide import weights_of
from ..planner.waiting.first_sizes import Changed
from ..services.base import ACT, Observation
from ..services.elastic import ElasticProposal
from ..services.registry import Services
from ..slurm.accounting import EndedJob
from ..slurm.model import Size
from ..slurm.site import Site
from .engine import PROGRESS, Outcome, Simulation, Watch, speed, unwatched
from .job_states import JobStates
from .jobs import SimulatedJob, SimulationSettings, prepare
from .metrics import BACKFILL, RECORDED
from .programs import BatchLadder, Program, rigid
from .traces.formats import TraceJob

SWITCH = PROGRESS + 1
"""The kind of event at which the GPUs that a growth waited for can be used."""
GAP_S = 1.0
"""Shortest time between two decisions, as selasticd is shipped (min_round_gap_s)."""
LOOK_S, MOST_LOOK_S = 240.0, 900.0
"""While elastic jobs train, from a decision to the first look whether the plan would be another though nothing has
happened; each further look comes after twice as long, up to the second."""
PHASE_S = 60.0
"""Until a look at a job whose training has come to another phase, or has measured another size."""


class Elastic(Simulation):
    """The simulation with a round of the planner at each decision."""

    def __init__(
        self,
        jobs: list[SimulatedJob],
        policy: str,
        settings: SimulationSettings,
    ) -> None:
        super().__init__(jobs, policy, settings)
        self.rules = settings.planner(policy)
        self.services = Services(self.rules)
        self.states = JobStates(settings)
        self.site, self.resizes = Site(), 0
        self.resubmitted: dict[int, Changed] = {}
        self.happened, self.rest = False, float("inf")
        """Since the last decision: whether anything has, and when a job's rest ends."""
        self.plan: Plan | None = None
        """The last."""
        self.without, self.why = 0, ""
        """Decisions that the policy left to the built-in one, and the first reason."""
        self.handlers[SWITCH] = self._switch

    @property
    def fell_back(self) -> str:
        if not self.without:
            return ""
        return f"gave no plan in {self.without} of {self.decisions} decisions, the first time because {self.why}"

    def observation(self) -> Observation:
        """What a round of the daemon would see now."""
        self.states.update((job_id, self.jobs[job_id - 1]) for job_id in self.states.stale)
        resizes = {i + 1: job.resize for i, job in self.running.items() if job.resize is not None and job.resize.open}
        snapshot = self.cluster.snapshot(self.now)
        return Observation(snapshot, Roster(self.cluster.elastic), resizes, {}, self.site, self.rules, self.now, self)

    def job_states(self, seen: Observation, in_vain: Collection[int]) -> Mapping[int, JobState]:
        return self.states.of

    def waiting_models(self, seen: Observation) -> Mapping[int, Model]:
        """Of the jobs that the queue shows."""
        shown = (number for number in self.slurm.queue if number in self.cluster.elastic)
        return {number: self.states.believed(self.jobs[number - 1]) for number in shown}

    def resized_waiting(self, seen: Observation) -> Mapping[int, Changed]:
        return self.resubmitted

    def scripts(self, sizes: Mapping[int, Size]) -> Mapping[int, Size]:
        return sizes

    def host_pairs(self) -> Sequence[HostPair]:
        return ()

    def history(self, job_id: int) -> Sequence[EventRow]:
        return ()

    def ended_jobs(self, start: float, end: float) -> Sequence[EndedJob] | None:
        return ()

    def site_factors(self, job_ids: Collection[int]) -> Mapping[int, int]:
        return {}

    def power_events(self) -> Sequence[EventRow]:
        return ()

    def _progress(self, i: int, version: int) -> None:
        super()._progress(i, version)
        if i + 1 in self.states.stale:  # another phase: a large batch is worth something else
            super()._want_decision(self.now + PHASE_S)

    def _want_decision(self, not_before: float = 0.0) -> None:
        self.happened = True
        super()._want_decision(not_before)

    def _decide(self) -> None:
        if self.settings.learned:
            self.states.learn(((i + 1, job) for i, job in self.running.items() if job.elastic), self.now)
        if self._as_before():
            self._look_again()
            return
        self.decisions += 1
        self.decided_at, self.happened, self.rest = self.now, False, float("inf")
        resized = False
        for _, seen, proposal in self.services.proposals(self.observation()):
            sizes = dict[int, Size]()
            for action in proposal.actions if seen.settings.mode == ACT else ():
                if isinstance(action, Close):
                    self._withdraw(action.job_id)
                elif isinstance(action, Resize):
                    self._resize(action)
                elif isinstance(action, Resume):
                    sizes[action.job_id] = action.size
                resized = resized or isinstance(action, (Resize, Close))
            if isinstance(proposal, ElasticProposal):
                sizes |= self._follow(proposal.plan)
            self._resubmit(sizes)
        # As backfill: behind one that waits for others without a time limit, none delays it.
        self._schedule(passing=True)
        self._drop_the_waiting()
        if resized:
            self._want_decision(self.now + GAP_S)
        super()._want_decision(self.rest)
        self._look_again()

    def _as_before(self) -> bool:
        """Whether nothing has come, gone, rested or changed its speed since the last decision, and no job counts for
        another part than then: the plan would be the same."""
        if self.happened or self.plan is None or self.states.stale or self.now >= self.rest or self.resubmitted:
            return False
        context = self.plan.context
        inputs = replace(context.inputs, now=self.now)
        return weights_of(inputs, context.running_jobs, self.plan.pools).factors == context.weights.factors

    def _look_again(self) -> None:
        if self.states.of:
            first = PHASE_S if self.settings.learned else LOOK_S  # what it has measured is there half a minute later
            since = max(self.now - self.decided_at, first, self.settings.interval_s)
            super()._want_decision(self.now + min(MOST_LOOK_S, since))

    def _follow(self, plan: Plan) -> dict[int, Size]:
        """Note that a policy gave no plan, and when a job's rest next ends; sizes of jobs whose room is there now."""
        if plan.fell_back:
            self.without += 1
            self.why = self.why or plan.fell_back
        running_jobs = plan.context.running_jobs.values()
        rests = (s.until for s in running_jobs if s.until is not None and s.until > self.now)
        self.plan, self.rest = plan, min(rests, default=float("inf"))
        return {job_id: size for job_id, size in plan.first.aims.items() if self.cluster.places(size.gpus)}

    def _resubmit(self, sizes: Mapping[int, Size]) -> None:
        """Waiting jobs ask for other sizes from now on."""
        for job_id, size in sizes.items():
            before = self.resubmitted.get(job_id)
            asks = self.slurm.waiting[job_id]
            script = before.script if before else Size(asks.num_nodes, asks.gpus_per_node)
            self.resubmitted[job_id] = Changed(script, size, self.now)
            self.cluster.resubmit(job_id - 1, size.gpus)

    def _arrived(self) -> None:
        """Slurm starts it at once where it can."""
        self._schedule()
        self._want_decision()

    def _finish(self, i: int) -> None:
        super()._finish(i)
        self._schedule()

    def _left(self, i: int) -> None:
        super()._left(i)
        if self.jobs[i].elastic:
            self.states.ended(i + 1, self.jobs[i])

    def _started(self, i: int) -> None:
        super()._started(i)
        job = self.jobs[i]
        job.first_gpus = job.gpus
        self.resubmitted.pop(i + 1, None)
        if job.elastic:
            self.states.trains(i + 1, self.cluster.start(i), job.batch, self.now)

    def _set_rate(self, i: int) -> None:
        super()._set_rate(i)
        if self.jobs[i].elastic:
            self.states.stale.add(i + 1)

    def _resize(self, resize: Resize) -> None:
        """Carry a resize out: a grow waits for what it asked for, everything else pauses now."""
        i, job = resize.job_id - 1, self.jobs[resize.job_id - 1]
        self._advance(job)
        self.resizes += 1
        resize = replace(resize, id=self.resizes)
        use = self.states.of[resize.job_id].in_use
        if not resize.add and use is not None and resize.keep == use.pieces:
            self._rebatch(i, ResizeRow.issued(resize, self.now))
            return
        self.cluster.keep(i, resize.keep)
        if resize.add:
            self.cluster.grow(i, resize.add, resize.id, self.now)
        job.held = resize.gpus
        job.resized_before = job.resize
        job.resize = ResizeRow.issued(resize, self.now)
        self.changes.append((self.now, job.trace.job_id, resize.gpus, resize.batch))
        if resize.add and self.settings.grow_wait_s > 0:
            self._set_rate(i)
            self._push(self.now + self.settings.grow_wait_s, SWITCH, i, resize.id)
        else:
            self._switch(i, resize.id)

    def _rebatch(self, i: int, resize: ResizeRow) -> None:
        """Another batch in the world that there is."""
        job = self.jobs[i]
        job.batch = resize.batch
        self._pause(i, self.settings.batch_pause_s)
        job.rebatched = resize.come_to(ResizeState.DONE, job.resume_at)
        self.changes.append((self.now, job.trace.job_id, job.gpus, job.batch))
        self.states.trains(i + 1, self.cluster.elastic[i + 1].pieces, job.batch, self.now)
        self._want_decision()

    def _withdraw(self, job_id: int) -> None:
        """A growth that has not taken effect is undone: a waiting job needs its nodes."""
        i, job = job_id - 1, self.jobs[job_id - 1]
        assert job.resize is not None
        self._advance(job)
        self.cluster.keep(i, job.resize.keep)
        job.held = job.gpus
        job.resize = job.resize.come_to(ResizeState.OVERTAKEN, self.now)
        self.changes.append((self.now, job.trace.job_id, job.gpus, job.batch))
        self._set_rate(i)

    def _switch(self, i: int, resize_id: int) -> None:
        """A resize takes effect; nothing to do when the job ended meanwhile."""
        job = self.jobs[i]
        if i not in self.running or job.resize is None or not job.resize.open:
            return
        self._advance(job)
        resize = job.resize
        job.gpus, job.batch = resize.gpus, resize.batch
        self._pause(i)
        job.resize = job.resize.come_to(ResizeState.DONE, job.resume_at)
        job.resized_at = [*job.resized_at[-self.rules.max_resizes_per_job_hour :], job.resume_at]
        self.states.trains(i + 1, self.cluster.elastic[i + 1].pieces, job.batch, self.now)
        self._want_decision()


def simulate(
    trace: Sequence[TraceJob],
    programs: dict[str, Program],
    policy: str,
    settings: SimulationSettings,
    declared: str = "",
    watch: Watch = unwatched,
) -> tuple[Outcome, list[str]]:
    """(outcome, assumptions) of one policy over a trace; `watch` is told how far it is."""
    if policy not in (*POLICIES, BACKFILL):
        raise ValueError(policy)
    jobs, assumptions = prepare(trace, programs, settings, declared)
    if policy in (BACKFILL, "static"):
        return Backfill(jobs, policy, settings).run(watch), assumptions
    return Elastic(jobs, policy, settings).run(watch), assumptions


def recorded(trace: Sequence[TraceJob], settings: SimulationSettings) -> Outcome | None:
    """What the trace itself says came of it; None where it does not say for every job when it started."""
    if any(row.wait_s < 0 or not row.duration_s for row in trace):
        return None
    jobs, changes, program, batches = (
        list[SimulatedJob](),
        list[tuple[float, str, int, int]](),
        rigid(),
        BatchLadder(1, 1),
    )
    for row in trace:
        job = SimulatedJob(row, program, ((row.gpus, 1),), batches, row.duration_s, False, False, row.gpus)
        job.start_s = row.submit_s + row.wait_s
        job.end_s = job.start_s + row.duration_s
        job.gpu_seconds = row.gpus * row.duration_s
        jobs.append(job)
        changes += [(job.start_s, row.job_id, row.gpus, row.batch), (job.end_s, row.job_id, 0, 0)]
    # What one gives back, the next takes at the same moment.
    changes.sort(key=lambda change: (change[0], change[2] > 0))
    return Outcome(RECORDED, settings, jobs, changes, 0, len(changes), max(job.end_s for job in jobs))


def misfit(trace: Sequence[TraceJob], settings: SimulationSettings) -> str:
    """Why the jobs look like those of another cluster, in a sentence; empty: they do not."""
    known, gpus = [row for row in trace if row.wait_s >= 0], settings.gpus
    starts = [(row.submit_s + row.wait_s, row.gpus) for row in known]
    # sacct knows whole seconds: what one gives back another has taken at once.
    ends = [(row.submit_s + row.wait_s + max(row.duration_s - 2.0, row.duration_s / 2), -row.gpus) for row in known]
    most = max(accumulate(held for _, held in sorted(starts + ends)), default=0)
    larger = sum(row.gpus > gpus for row in trace)
    if larger:
        why = f"{larger} of the jobs held more GPUs"
    elif most > gpus or (len(known) == len(trace) and 2 * most < gpus):
        why = f"the jobs held {most} GPUs at once at most, as recorded"
    else:
        return ""
    return f"THIS CLUSTER, OF {gpus} GPUs, DOES NOT LOOK LIKE THAT OF THE JOBS: {why} (is --cluster right?)"


MOST_TRIED = 500
"""Waiting jobs looked at behind the first: Slurm's bf_max_job_test. `static` looks at none."""


class Backfill(Simulation):
    """First come, first served, with backfill or without (`static`). Every job keeps the size that it asked for; when
    the first in the queue cannot start, those behind it may where they do not delay it (EASY). Kind to Slurm: run times
    are known in advance, and a job starts the moment it can; there are no priorities, partitions or limits."""

    def __init__(self, jobs: list[SimulatedJob], policy: str, settings: SimulationSettings) -> None:
        super().__init__(jobs, policy, replace(settings, interval_s=0.0))
        self.tried = MOST_TRIED if policy == "backfill" else 0

    def _decide(self) -> None:
        self.decisions += 1
        self.decided_at = self.now
        self._schedule()
        self._drop_the_waiting()
        if len(self.slurm.queue) < 2 or not self.slurm.gpus.idle or not self.tried:
            return
        first, *behind = [number - 1 for number in self.slurm.queue[: self.tried + 1]]
        at, free = self._reserved(first)
        for i in behind:
            if self.jobs[i].asked <= self.slurm.gpus.idle:
                self._beside(first, i, at, free)

    def _reserved(self, first: int) -> tuple[float, FreeGpus]:
        """(when the first of the queue can start, the GPUs that are free then)."""
        free = self.slurm.gpus.copy()
        for ends, i in sorted((self._ends(job), i) for i, job in self.running.items()):
            for node, gpus in self.cluster.held(i).items():
                free.take([node], -gpus)
            if self.cluster.places(self.jobs[first].asked, free):
                return ends, free
        return self.now, free

    def _ends(self, job: SimulatedJob) -> float:
        return max(job.updated, job.resume_at) + job.left / job.rate

    def _beside(self, first: int, i: int, at: float, free: FreeGpus) -> None:
        """Start a job where that does not delay the first one; `free`, at that time, is kept up to date."""
        job, held = self.jobs[i], self.cluster.places(self.jobs[i].asked)
        if not held:
            return
        if self.now + self.settings.start_s + job.left / speed(job, job.asked, len(held), job.asked_batch) > at:
            for node, gpus in held.items():
                free.take([node], gpus)
            if not self.cluster.places(self.jobs[first].asked, free):
                for node, gpus in held.items():
                    free.take([node], -gpus)
                return
        self.slurm.start(i + 1, self.now)
        self._started(i)
