"""What the planner knows of a simulated job: what it trains on, its resizes, its reports and its model.

Promise: a state is made again only when something of its job changed, so that the planner knows it again.
Limit: measurements carry independent noise (3 %), drawn from the seed; a job's true curve has next to none.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slurm_elastic.db.rows import InUse, ObservationRow
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.request import ElasticRequest

from ..optimizer.job_view import Model
from ..optimizer.models.observation import Observation
from ..optimizer.models.prior import DEFAULT
from ..optimizer.models.throughput import fit, unmeasured
from ..planner import JobState
from ..planner.running.state import NOISE_REPORTS, Remaining
from .jobs import SimulatedJob, SimulationSettings
from .programs import BatchLadder, Program

REPORTS_AFTER_S = 30.0
"""Training at one size and batch until it is reported."""
ALL_SIZES = range(1, 4097)


class TrueCurve:
    """A model that knows the program: what the planner sees when curves are known."""

    __slots__ = ("jitter", "program")
    sizes_seen = ALL_SIZES

    def __init__(self, program: Program, jitter: float = 0.002) -> None:
        self.program, self.jitter = program, jitter

    def throughput(self, gpus: int, nodes: int, batch: int) -> float:
        return self.program.throughput(gpus, nodes, batch)

    def throughputs(self, points: Sequence[tuple[int, int, int]]) -> list[float]:
        return [self.program.throughput(*point) for point in points]

    def uncertainties(self, sizes: Sequence[tuple[int, int]]) -> list[float]:
        return [0.0] * len(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class PackedRequest(ElasticRequest):
    """A request for the sizes and batches of the simulation's ladders only. Each is equal to itself alone."""

    ladder: tuple[int, ...] = ()
    batch_ladder: BatchLadder = field(default_factory=lambda: BatchLadder(1, 1))

    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def sizes(self) -> tuple[int, ...]:
        return self.ladder

    def accepts(self, gpus: int) -> bool:
        return gpus in self.ladder

    def batches(self, gpus: int) -> tuple[int, ...]:
        return self.batch_ladder(gpus)


RequestInputs = tuple[tuple[int, ...], BatchLadder, float, bool, float]
"""Sizes, batches, weight, whether the job trains until a quality is reached, and seconds to its deadline."""


def request_of(asked: RequestInputs) -> PackedRequest:
    """The request of jobs alike: they share one."""
    ladder, batches, weight, quality, deadline_s = asked
    return PackedRequest(
        ladder[0], ladder[-1], batches.lowest, batches.highest, weight=weight,
        until="quality" if quality else "epochs",
        deadline=f"now+{deadline_s:.0f}" if deadline_s else "", ladder=ladder, batch_ladder=batches,
    )  # fmt: skip


def _remaining(job: SimulatedJob) -> Remaining:
    """As a script says it that trains a number of epochs: at the batch it has, the samples of all the work."""
    worth = job.program.efficiency(job.batch, 1.0 - job.left / job.work + 1e-9) if job.quality else 1.0
    return Remaining(job.left / worth, job.rate / worth, job.updated)


class JobStates:
    """The states of one simulation's running elastic jobs, by job id."""

    def __init__(self, settings: SimulationSettings) -> None:
        self.settings, self.random = settings, random.Random(settings.seed)
        self.of: dict[int, JobState] = {}
        self.stale = set[int]()
        """Jobs whose state has to be made again before the next decision."""
        self._curves: dict[Program, TrueCurve] = {}
        self._use: dict[int, InUse] = {}
        self._last: dict[Program, Model] = {}
        """By program: what the last job of it that ended had learned."""

    def believed(self, job: SimulatedJob) -> Model:
        """What is known of the speed of a job that has not run."""
        if not self.settings.learned:
            return self._curve(job.program)
        return self._last.get(job.program) or unmeasured(DEFAULT)

    def trains(self, job_id: int, pieces: tuple[Piece, ...], batch: int, now: float) -> None:
        """A job's world of workers began on these pieces."""
        before = self._use.get(job_id)
        self._use[job_id] = InUse(job_id, before.generation + 1 if before else 1, pieces, batch, now, now)
        self.stale.add(job_id)

    def ended(self, job_id: int, job: SimulatedJob) -> None:
        """Nothing more is known of it, but how fast its program was."""
        if job.model is not None:
            self._last[job.program] = job.model
        self.stale.discard(job_id)
        self.of.pop(job_id, None)
        del self._use[job_id]

    def update(self, jobs: Iterable[tuple[int, SimulatedJob]]) -> None:
        """Make the states of these jobs, which changed."""
        for job_id, job in jobs:
            rows = self._observations(job)
            self.of[job_id] = JobState(
                in_use=self._use[job_id],
                resize=job.resize if job.resize is not None and job.resize.open else None,
                last=job.resize if job.resize is None or not job.resize.open else job.resized_before,
                last_batch=job.rebatched,
                observations=rows,
                model=(job.model if self.settings.learned else self._curve(job.program)) if rows else None,
                pause_s=self.settings.pause_s if self.settings.price_moves else 0.0,
                batch_pause_s=self.settings.batch_pause_s if self.settings.price_moves else 0.0,
                reference=(job.first_gpus, job.trace.batch),
                resized=tuple(job.resized_at),
                remaining=_remaining(job),
            )
        self.stale.clear()

    def _observations(self, job: SimulatedJob) -> tuple[ObservationRow, ...]:
        """Its reports; where curves are known, one that says so."""
        noise = job.noise_scale or 0.0
        if not self.settings.learned:
            return (_observed(job.gpus, job.nodes, job.batch, 1, 1, 1.0, job.since, noise),)
        return tuple(
            _observed(o.gpus, o.nodes, o.batch, o.micro_batch, o.accumulation, o.step_time_s, job.since, noise)
            for o in job.reports.values()
        )

    def _curve(self, program: Program) -> TrueCurve:
        known = self._curves.get(program)
        if known is None:
            jitter = {} if self.settings.price_moves else {"jitter": 0.0}
            known = self._curves[program] = TrueCurve(program, **jitter)
        return known

    def learn(self, jobs: Iterable[tuple[int, SimulatedJob]], now: float) -> None:
        """Each job that has trained long enough at a size and batch that it had not reported yet reports it."""
        for job_id, job in jobs:
            key = job.gpus, job.batch
            if key in job.reports or now - job.since < REPORTS_AFTER_S:
                continue
            micro, steps = job.program.split(job.gpus, job.batch)
            seconds = job.batch / job.program.throughput(job.gpus, job.nodes, job.batch)
            seconds *= max(0.5, 1.0 + self.random.gauss(0.0, 0.03))
            job.reports[key] = Observation(job.gpus, job.nodes, job.batch, max(1, round(micro)), steps, seconds)
            job.model = fit(list(job.reports.values()))
            self.stale.add(job_id)


def _observed(
    gpus: int, nodes: int, batch: int, micro_batch: int, accumulation: int, step_s: float, last_at: float, noise: float
) -> ObservationRow:
    rate = batch / step_s
    return ObservationRow(gpus, nodes, batch, micro_batch, accumulation, NOISE_REPORTS, step_s, rate, last_at, noise)
