"""The order of the queue as a service: what it has learned, what it wants written, and what it foretells.

Promise: a job's priority is changed by `queue_weight` at most, through its site factor alone, only where the daemon may
do so for everybody's jobs; what was added is taken off again when the service does not act any more. Nothing is added
before the jobs of two weeks have been read from slurmdbd, a day in each round.
Limit: held jobs, jobs that depend on others and companions are left as they are. How long jobs run, and how right the
forecasts were, is learned anew after a restart. A waiting elastic job counts as any other, an array as one job, and a
heterogeneous job by its first component, which alone is foretold.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean

from slurm_elastic.protocol.answers.site import QueuedJob
from slurm_elastic.protocol.records import record

from ...actions.action import QUEUE, Action, Prioritize, Subject
from ...capacity.free_gpus import FreeGpus
from ...slurm.model import Job, Snapshot
from ...slurm.site import Site
from ..base import ACT, OFF, Note, Observation, Proposal, Row, Service
from .forecast import Bounds, Ended, Held, RunTimes, Wanted, need, site_factor, starts

LEARN_FROM_S = 14 * 86400.0
DAY_S = 86400.0
READ_S = 600.0
"""Between two looks at what has ended."""
FORETELL_S = 600.0
"""Between two forecasts of a daemon that nobody asks."""
MOST_FORETOLD = 500
"""Jobs from the head of the queue whose starts are foretold."""
LEFT_ALONE = ("JobHeld", "Dependency")
COMPANION = "selastic-"
WHOLE = Subject(QUEUE)


@record(frozen=True, slots=True)
class Place:
    """One waiting job in the order of the service."""

    job: Job
    left_s: float
    """How long it will probably run."""
    factor: int
    start: float | None = None
    """When it will probably start, in Unix seconds; None: beyond what is foretold, or never as things are."""
    earliest: float = 0.0
    latest: float = 0.0
    alone: float | None = None
    """When it would in Slurm's own order."""

    def row(self, own: bool) -> QueuedJob:
        """As `selastic queue` shows it."""
        job, start = self.job, self.start
        return QueuedJob(
            job_id=job.job_id,
            task_name=job.task_name or None,
            own=own,
            partition=job.partition,
            name=job.name,
            user=job.user,
            gpus=job.gpus,
            time_limit_s=job.time_limit_s,
            left_s=self.left_s,
            factor=self.factor,
            start=start,
            earliest=None if start is None else self.earliest,
            latest=None if start is None else self.latest,
            end=None if start is None else start + self.left_s,
            alone=self.alone,
            why=self.why,
        )

    @property
    def why(self) -> str:
        """What its place goes by."""
        return f"probably runs for {self.left_s / 60:.0f} min on {self.job.gpus} GPUs"


@dataclass(frozen=True, slots=True)
class Foretold:
    """What was foretold, and when."""

    at: float
    mode: str
    lacks: str
    places: Sequence[Place]


@dataclass(frozen=True, slots=True)
class _Nodes:
    """The nodes that take jobs, by number."""

    names: Mapping[str, int]
    free: FreeGpus
    running: Sequence[Held]
    of_partition: Mapping[str, frozenset[int]]


class QueueOrder(Service):
    """Who starts next."""

    name = "queue"

    def __init__(self) -> None:
        self.run_times, self.bounds = RunTimes(), Bounds()
        self._read_until = self._foretold_at = 0.0
        self._written: dict[int, int] | None = None
        """Site factors of waiting jobs; None: not read from the record yet."""
        self._undone = False
        """Nothing stands that would have to be taken back."""
        self._says: tuple[Note, ...] = ()
        self._seen: Observation | None = None
        """The last, while it is not off."""
        self._foretold: Foretold | None = None

    def needs(self, site: Site) -> str:
        if not site.multifactor:
            return "Slurm's priorities are not PriorityType=priority/multifactor"
        return "" if site.orders_queue else "the daemon's user is neither SlurmUser nor an Operator in Slurm"

    def propose(self, seen: Observation) -> Proposal:
        written = self._written
        if written is None or seen.now - self._read_until > DAY_S:
            return Proposal(rows=self._says)
        changes = [(one.factor - written.get(one.job.job_id, 0), one) for one in self.places(seen)]
        # The largest first: a round asks Slurm for so many alone.
        moves = [one for change, one in sorted(changes, key=lambda entry: -abs(entry[0])) if change]
        actions = tuple(Prioritize(one.job.job_id, one.job.job_id, one.factor, one.why) for one in moves)
        return Proposal(actions, self._says)

    def explain(self, row: Row) -> str:
        return row.text if isinstance(row, Note) else ""

    def settled(self, seen: Observation, proposal: Proposal, done: Sequence[Action]) -> None:
        self._seen, self._foretold = seen, None
        waiting = {job.job_id: job for job in seen.snapshot.jobs.values() if job.pending}
        if self._written is None:
            self._written = dict(seen.facts.site_factors(waiting))
        written = self._written | {one.job_id: one.factor for one in done if isinstance(one, Prioritize)}
        self._written = {job_id: factor for job_id, factor in written.items() if job_id in waiting}
        self._undone = self._undone and not done
        self._read(seen)
        started = {job.job_id: job.start_time for job in seen.snapshot.jobs.values() if job.start_time is not None}
        self.bounds.waits(waiting.keys(), started)
        if seen.now - self._foretold_at >= FORETELL_S and seen.now - self._read_until <= DAY_S:
            self._foretold_at = seen.now
            self._foretell(self.forecast(seen), seen)

    def undo(self, seen: Observation) -> list[Action]:
        """Until the record says of no waiting job that something stands."""
        if self.mode(seen.settings, seen.site) == OFF:
            self._seen = self._foretold = None
        if self._undone:
            return []
        self._written = None
        stands = seen.facts.site_factors([job.job_id for job in seen.snapshot.jobs.values() if job.pending])
        self._undone = not stands
        why = f"queue is in mode {self.mode(seen.settings, seen.site)}"
        return [Prioritize(job_id, job_id, 0, why) for job_id in stands]

    def places(self, seen: Observation) -> list[Place]:
        """The waiting jobs that are ordered, those that start first first."""
        snapshot, most = seen.snapshot, seen.settings.queue_weight
        per_cpu = sum(n.gpus for n in snapshot.nodes.values()) / max(1, sum(n.cpus for n in snapshot.nodes.values()))
        found = []
        for job in snapshot.jobs.values():
            if not job.pending or job.reason.startswith(LEFT_ALONE) or job.name.startswith(COMPANION) or job.het_offset:
                continue
            left = self.left_s(job, seen.now)
            waited = max(0.0, seen.now - max(job.submit_time, job.eligible_time))
            gpus = sum(one.gpus for one in snapshot.components(job.het_job_id)) if job.het_job_id else job.gpus
            width = gpus or max(job.cpus, 1) * per_cpu
            found.append(Place(job, left, site_factor(need(left, width, waited), most)))
        return sorted(found, key=lambda one: (-one.factor, one.job.submit_time, one.job.job_id))

    def left_s(self, job: Job, now: float) -> float:
        """How long it will probably still run, in seconds."""
        ran = max(0.0, now - job.start_time) if job.start_time is not None else 0.0
        limit = float("inf") if job.time_limit_s is None else float(job.time_limit_s)
        return self.run_times.left_s(job.user, job.name, job.gpus, limit, ran)

    def forecast(self, seen: Observation) -> list[Place]:
        """The same with starts, of those with GPUs. Slurm's own order is by priority, less what was added to it."""
        written = self._written or {}
        places = [one for one in self.places(seen) if one.job.gpus]
        alone = sorted(places, key=lambda one: (written.get(one.job.job_id, 0) - one.job.priority, one.job.submit_time))
        ours, theirs = self._starts(places, seen), self._starts(alone, seen)
        found = []
        for one in places:
            start = ours.get(one.job.job_id)
            earliest, latest = (0.0, 0.0) if start is None else self.bounds.around(seen.now, start)
            alone_at = theirs.get(one.job.job_id)
            found.append(replace(one, start=start, earliest=earliest, latest=latest, alone=alone_at))
        return found

    def foretold(self) -> Foretold | None:
        """As of the last round; None: it is off, or was not asked yet."""
        seen = self._seen
        if seen is None:
            return None
        if self._foretold is None:
            mode, lacks = self.mode(seen.settings, seen.site), self.needs(seen.site)
            self._foretold = Foretold(seen.now, mode, lacks, self.forecast(seen))
        return self._foretold

    def would_start(self, job: Job, seconds: float) -> tuple[float, ...]:
        """When one more job that runs for so long would, behind all that wait: three moments as probable as each other;
        none: not foreseen."""
        if (seen := self._seen) is None:
            return ()
        places = [*(one for one in self.places(seen) if one.job.gpus)][: MOST_FORETOLD - 1]
        start = self._starts([*places, Place(job, seconds, 0)], seen).get(job.job_id)
        return () if start is None else (start, *self.bounds.around(seen.now, start))

    def _starts(self, places: Sequence[Place], seen: Observation) -> dict[int, float]:
        running = (job for job in seen.snapshot.jobs.values() if job.active and job.gpus)
        nodes = _nodes(seen.snapshot, {job.job_id: seen.now + self.left_s(job, seen.now) for job in running})
        return starts(seen.now, nodes.free, nodes.running, [_wanted(one, nodes) for one in places[:MOST_FORETOLD]])

    def _read(self, seen: Observation) -> None:
        start = self._read_until or seen.now - LEARN_FROM_S
        end = min(seen.now, start + DAY_S)
        if end - start < READ_S:
            return
        ended = seen.facts.ended_jobs(start, end)
        for job in ended or ():
            self.run_times.add(Ended(job.user, job.name, job.gpus, job.seconds))
        if ended is not None:
            self._read_until = end

    def _foretell(self, places: Sequence[Place], seen: Observation) -> None:
        """Say what the order brings, and remember what was foretold."""
        self.bounds.foretold(seen.now, {one.job.job_id: one.start for one in places if one.start is not None})
        both = [(one.start, one.alone) for one in places if one.start is not None and one.alone is not None]
        if not both:
            self._says = ()
            return
        ours, theirs = (mean(start - seen.now for start in starts) for starts in zip(*both, strict=True))
        acts = seen.settings.mode == ACT
        text = (
            f"{len(both)} waiting jobs {'will' if acts else 'would'} start in {ours / 60:.0f} min in the mean, in"
            f" Slurm's own order in {theirs / 60:.0f} min"
        )
        self._says = (Note(WHOLE, text, {"jobs": len(both), "mean_s": round(ours), "alone_s": round(theirs)}),)


def _nodes(snapshot: Snapshot, ends: Mapping[int, float]) -> _Nodes:
    """As they are now; GPUs in use by no job that Slurm lists stay so. ends: of running jobs, by job id."""
    usable = [node for node in snapshot.nodes.values() if node.gpus and node.schedulable]
    names = {node.name: number for number, node in enumerate(usable)}
    free = FreeGpus(node.gpus for node in usable)
    held = list[Held]()
    for job_id, end in ends.items():
        job = snapshot.jobs[job_id]
        each = job.gpus_per_node or -(-job.gpus // max(1, len(job.nodes)))
        for number in (names[name] for name in job.nodes if name in names):
            gpus = min(each, free.free[number])
            free.take([number], gpus)
            held.append((end, [number], gpus))
    for number, node in enumerate(usable):
        free.take([number], max(0, min(free.free[number], node.gpus_used - (node.gpus - free.free[number]))))
    of: dict[str, set[int]] = {}
    for number, node in enumerate(usable):
        for name in node.partitions:
            of.setdefault(name, set()).add(number)
    return _Nodes(names, free, held, {name: frozenset(numbers) for name, numbers in of.items()})


def _wanted(one: Place, nodes: _Nodes) -> Wanted:
    job = one.job
    every = frozenset(nodes.names.values())
    open_to = frozenset[int]().union(*(nodes.of_partition.get(name, ()) for name in job.partition.split(",")))
    excluded = frozenset(nodes.names[name] for name in job.excluded_nodes if name in nodes.names)
    count = max(1, job.num_nodes)
    each = job.gpus_per_node or -(-job.gpus // count)
    return Wanted(job.job_id, count, each, one.left_s, (every - open_to) | excluded)
