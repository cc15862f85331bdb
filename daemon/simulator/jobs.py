"""From a trace to jobs ready to be simulated: what each is taken to be, and every assumption in words.

Promise: nothing is assumed of a job that is not said. Limit: a job's law, work and bounds are fixed at the start.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from slurm_elastic.db.rows import ResizeRow

from ..optimizer.models.observation import Observation
from ..optimizer.models.throughput import ThroughputModel
from ..planner.settings import PlannerSettings
from .programs import BatchLadder, Program, curve, rigid, size_ladder
from .traces.formats import TraceError, TraceJob

Sizes = tuple[tuple[int, int], ...]
"""Feasible (GPUs, nodes)."""


@dataclass(frozen=True, slots=True)
class SimulationSettings:
    """The cluster, the costs and the rules of one simulation; times in seconds."""

    gpus: int
    gpus_per_node: int = 4
    interval_s: float = 60.0
    """Shortest time between two decisions; 0: at every event."""
    pause_s: float = 30.0
    """Training stands still for this long at a change of size."""
    batch_pause_s: float = 0.0
    """The same at a change of the batch alone."""
    start_s: float = 0.0
    """From the start of a job to its first step."""
    grow_wait_s: float = 0.0
    """Until what a grow added can be used (a companion's wait); training goes on meanwhile."""
    cooldown_s: float | None = None
    """Between a resize of a job and the next; None: selasticd's own settings, one for growing and one for shrinking."""
    horizon_s: float = PlannerSettings.horizon_s
    drop: bool = False
    """A job that cannot start at the first decision after it comes is dropped; else it waits."""
    learned: bool = False
    """The planner knows only what each job has measured so far (3 % noise); else the true curves."""
    price_moves: bool = True
    """False: the planner takes moves for free (they are not)."""
    seed: int = 0
    stretch: float = 4.0
    """Jobs that an assumed program makes elastic accept from this fraction of their GPUs to this multiple of them, and
    batches up to this multiple of theirs."""
    shorter_first: float = PlannerSettings.shorter_first
    """The planner's setting."""
    fairness: str = PlannerSettings.fairness
    """The planner's setting; without Slurm's shares, "auto" and "fairshare" go by account."""
    first_size: str = PlannerSettings.first_size
    """The planner's setting."""
    deadline_weight: float = PlannerSettings.deadline_weight
    """The planner's setting."""
    until: str = "quality"
    """What ends the training of a job that does not say: "quality" counts a large batch's waste, "epochs" does not."""

    def planner(self, policy: str) -> PlannerSettings:
        """The settings of a daemon that plans for this cluster: the shipped ones, but for what is said here."""
        found = PlannerSettings(
            mode="act",
            policy=policy,
            horizon_s=self.horizon_s,
            shorter_first=self.shorter_first,
            first_size=self.first_size,
            deadline_weight=self.deadline_weight,
            fairness=self.fairness,
        )
        if self.cooldown_s is None:
            return found
        return replace(found, cooldown_grow_s=self.cooldown_s, cooldown_shrink_s=self.cooldown_s, cooldown_pauses=0.0)


@dataclass(eq=False)
class SimulatedJob:
    """A job of the trace on its way through the simulation."""

    trace: TraceJob
    program: Program
    sizes: tuple[tuple[int, int], ...]
    batches: BatchLadder
    work: float
    """Samples at the base batch; for a rigid job, seconds."""
    elastic: bool
    quality: bool
    """Whether a sample counts by its worth at the batch: it trains until a quality is reached."""
    asked: int
    """GPUs of the trace, at most the cluster's."""
    accepted: tuple[int, ...] = ()
    """The sizes without their nodes."""
    gpus: int = 0
    """That it trains on."""
    batch: int = 0
    held: int = 0
    """What it occupies: more than `gpus` while a grow waits."""
    first_gpus: int = 0
    """That it started with."""
    nodes: int = 0
    """That it trains on."""
    spread_seconds: float = 0.0
    """GPU-seconds on more nodes than its GPUs need."""
    left: float = field(init=False)
    """Of its work."""
    rate: float = 0.0
    updated: float = 0.0
    resume_at: float = 0.0
    version: int = 0
    moves: int = 0
    resize: ResizeRow | None = None
    """Its last resize, which is open while its growth waits."""
    resized_before: ResizeRow | None = None
    rebatched: ResizeRow | None = None
    """Its last change of its batch alone."""
    resized_at: list[float] = field(default_factory=list)
    start_s: float = -1.0
    end_s: float = -1.0
    dropped: bool = False
    gpu_seconds: float = 0.0
    paused_s: float = 0.0
    model: ThroughputModel | None = None
    reports: dict[tuple[int, int], Observation] = field(default_factory=dict)
    since: float = 0.0
    noise_scale: float | None = None
    """As the job measures it in its present phase."""

    def __post_init__(self) -> None:
        self.left = self.work

    @property
    def asked_batch(self) -> int:
        """That it starts with."""
        return self.batches.as_asked(self.asked, self.trace.batch) if self.elastic else 0


def prepare(
    trace: Sequence[TraceJob], programs: dict[str, Program], settings: SimulationSettings, declared: str = ""
) -> tuple[list[SimulatedJob], list[str]]:
    """(jobs ready to run, the assumptions made about them).

    `declared`: the program assumed for jobs whose own is unknown; empty: they stay rigid. Raises TraceError for a job
    of which it is not known how long it takes.
    """
    jobs, assumed, shapes = list[SimulatedJob](), dict[str, int](), _Shapes()
    for row in trace:
        program, own = programs.get(row.program), row.program in programs
        if program is None and row.speedup:
            program, own = curve(row.speedup, row.max_gpus or settings.gpus), True
        if program is None and declared and row.program != "rigid":
            program = programs[declared]
            key = f"of no known program: taken to scale as '{declared}' programs do"
            assumed[key] = assumed.get(key, 0) + 1
            key = _STRETCHED.format(times=f"{settings.stretch:g}", each=program.base_batch)
            assumed[key] = assumed.get(key, 0) + (not row.min_gpus)
        if not (row.duration_s or (row.samples and program) or (program and program.work)):
            raise TraceError(
                f"job {row.job_id}: the trace has no run time for it and program '{row.program}' is not known; "
                "expected duration_s (or samples with a known program) in the trace"
            )
        if program is None:
            key = "no profile: rigid at the size and run time recorded (--assume CLASS makes them elastic)"
            assumed[key] = assumed.get(key, 0) + 1
            if row.gpus > settings.gpus:
                assumed[OVERSIZED] = assumed.get(OVERSIZED, 0) + 1
            else:
                jobs.append(_rigid(row, settings))
        else:
            key = f"{program.name}: {program.note or 'declared'}"
            assumed[key] = assumed.get(key, 0) + 1
            jobs.append(_elastic(row if own else _declared(row, program, settings), program, settings, shapes))
            if row.gpus > settings.gpus:
                key = "larger than the cluster: run on all of it, for longer"
                assumed[key] = assumed.get(key, 0) + 1
            key = "train until a quality is reached: a large batch wastes samples as their noise scale says"
            if not jobs[-1].quality:
                key = "train a fixed number of samples: every batch of their range is as good as another"
            key += "" if row.until else " (taken to, not said)"
            assumed[key] = assumed.get(key, 0) + 1
    return jobs, [f"{count} job{'s' * (count != 1)}, {text}" for text, count in sorted(assumed.items()) if count]


OVERSIZED = "larger than the cluster and rigid: left out (is --cluster right?)"
_STRETCHED = (
    "without an elastic request: taken to accept 1/{times} to {times} times the GPUs that they had and 1 to {times} "
    "times the batch that they trained with, {each} samples a GPU (--stretch {times})"
)


def _declared(row: TraceJob, program: Program, settings: SimulationSettings) -> TraceJob:
    """What is taken of a job whose program is only assumed; what its request says stays."""
    batch = row.batch or row.min_batch or program.base_batch * row.gpus
    return replace(
        row, samples=0.0, batch=batch, min_batch=row.min_batch or batch,
        max_batch=row.max_batch or max(batch, int(batch * settings.stretch)),
        min_gpus=row.min_gpus or max(1, int(row.gpus / settings.stretch)),
        max_gpus=row.max_gpus or max(row.gpus, int(row.gpus * settings.stretch)),
    )  # fmt: skip


def _rigid(row: TraceJob, settings: SimulationSettings) -> SimulatedJob:
    gpus = min(row.gpus, settings.gpus)
    row = replace(row, batch=row.batch or 1)
    return SimulatedJob(row, rigid(), ((gpus, 1),), BatchLadder(1, 1), max(row.duration_s, 1e-3), False, False, gpus)


_Shapes = dict[tuple[Program, int, int, int, int, int], tuple[Sizes, BatchLadder]]


def _elastic(row: TraceJob, program: Program, settings: SimulationSettings, shapes: _Shapes) -> SimulatedJob:
    low, high = row.min_batch or program.base_batch, row.max_batch or program.max_batch
    # Where no batch was recorded it ran at the least that it accepts: the one that its rate was tuned for.
    row = row if row.batch else replace(row, batch=low)
    asked = min(row.gpus, settings.gpus)
    most = max(1, min(row.max_gpus or max(asked, high // program.micro_range[0]), settings.gpus))
    key = program, row.min_gpus, most, asked, low, high
    if key not in shapes:  # most jobs of a trace share theirs
        batches = BatchLadder(min(low, high), high, program.micro_range[0])
        ladder = size_ladder(min(row.min_gpus or 1, most), most, settings.gpus_per_node, asked)
        shapes[key] = tuple(s for s in ladder if batches(s[0])), batches
    sizes, batches = shapes[key]
    if not sizes:  # no batch in range is shared out evenly: the next one above that is
        sizes = ((asked, -(-asked // settings.gpus_per_node)),)
        batches = BatchLadder(low, -(-max(low, asked) // asked) * asked)
    work = row.samples or program.work
    quality = program.noise is not None and (row.until or settings.until) == "quality"
    if row.duration_s and not row.samples:
        nodes = -(-row.gpus // settings.gpus_per_node)
        # At the batch that it is run with where nothing is elastic, so that it takes as long there as it took.
        batch = batches.as_asked(asked, row.batch)
        work = row.duration_s * program.throughput(row.gpus, nodes, batch)
        work *= program.efficiency(batch, 0.0) if quality else 1.0
    accepted = tuple(gpus for gpus, _ in sizes)
    start = max((gpus for gpus in accepted if gpus <= asked), default=accepted[0])
    return SimulatedJob(row, program, sizes, batches, max(work, 1.0), True, quality, start, accepted)
