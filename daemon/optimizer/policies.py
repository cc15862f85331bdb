"""What is maximised, and over which choices: from what is known of each job to the best plan.

    maximise  sum_j w_j * u(s_j(k_j, b_j) * (1 - penalty_j))      penalty 0 for what a job already has

s_j is progress per second relative to the job's reference size. The policy chooses progress (samples, or samples
times their statistical efficiency), u, and which batches may be used. What a move costs is part of the objective:
penalty = max(pause / horizon, 6 * sigma), so neither noise nor a gain that its own pause eats moves a job.

Promise: pure and deterministic; a job that may not move keeps its size; none gets less than its smallest choice.
Limit: a job's choices lie in one pool of equal GPUs; jobs do not influence each other's speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, overload

from . import goodput
from .caps import Cap
from .curves import Point, throughputs, uncertainties
from .errors import PlanInputError
from .limits import solve_limited
from .solver import Option, Solution, pick, solve
from .table import Memo

DEFAULT_POLICY = "auto"
"""A job that trains a fixed number of epochs ends when its samples are done, and its request says which batches its
user accepts: throughput within them is its progress. One that stops at a reached quality pays for the samples that a
large batch wastes: its progress is goodput. Logarithms of both have the same unit, a relative gain."""
POLICIES: dict[str, str] = {
    "auto": "sum of the logarithms of each job's own progress: goodput until a quality is reached, else throughput",
    "throughput": "sum of speedups, the batch as large as its range pays: the paper's objective",
    "goodput": "sum of speedups counted in goodput (throughput x statistical efficiency)",
    "log-throughput": "sum of the logarithms of speedups: proportional fairness, any accepted batch as good as another",
    "log-goodput": "sum of the logarithms of goodput: proportional fairness",
    "harmonic": "minus the sum of 1 / goodput: time per unit of progress",
    "fixed-batch": "sum of speedups with every job's batch held at its reference: the paper's baseline",
    "static": "every job keeps the size it asked for: what Slurm does by itself",
}
EVEN_SPREAD = 1e-4
"""Value lost per doubling of GPUs: exact ties go to an even spread and to fewer GPUs."""
IDLE_SHARE = 0.01
"""Progress a job without GPUs is credited with under log and harmonic, relative to its smallest size."""
NOISE_FACTOR = 6.0
"""Standard deviations of a curve's noise that a move must gain: two curves are compared, and the best of many choices
is taken. At 3, among a hundred alike jobs with independent noise, 5-12 % still move per decision; at 6, 0.4 %."""
BATCH_GAIN = 0.02
"""Least gain for which the batch alone is changed: learning rates move with it."""
QUANTILE = 1.2816
"""Standard deviations below the mean of the pessimistic (10 %) quantile that bounds exploration."""
UNMEASURED = 0.85
"""Exponent of the speedup assumed for a job that nothing is known of."""
UNMEASURED_PENALTY = 0.5
"""What moving a running job is charged before anything was measured of it."""


class Model(Protocol):
    """What a policy reads of a throughput model (models.ThroughputModel is one)."""

    @property
    def sizes_seen(self) -> tuple[int, ...]: ...
    @property
    def jitter(self) -> float: ...
    def throughput(self, gpus: int, nodes: int, batch: int, micro_batch: int | None = None) -> float: ...
    def uncertainty(self, gpus: int, nodes: int | None = None) -> float: ...


@dataclass(frozen=True, slots=True)
class JobView:
    """What a policy may know of a job."""

    label: str
    """The job id as text, for messages."""
    model: Model | None
    """None: nothing was measured yet."""
    choices: tuple[tuple[int, int], ...]
    """Feasible (GPUs, nodes), GPUs ascending; the current one included when running. (0, 0): may go without."""
    batches: Callable[[int], tuple[int, ...]]
    """Feasible global batches at a number of GPUs."""
    current_gpus: int
    """0 when not running."""
    current_batch: int
    reference_gpus: int
    reference_batch: int
    """Speedup is 1 at the reference."""
    weight: float = 1.0
    pause_s: float = 5.0
    """Measured or assumed cost of a resize."""
    horizon_s: float = 600.0
    """Expected time until it is moved again or ends."""
    frozen: bool = False
    """May not move now (cooldown, pinned, resize in flight): only the current size."""
    sigma: float | None = None
    """Relative noise of the curve between two decisions; None: from the model."""
    noise_scale: float | None = None
    """Gradient noise scale in samples; None: not measured."""
    quality: bool = False
    """Whether the training ends at a reached quality, not after a number of epochs: what `auto` goes by."""
    dear: frozenset[int] = frozenset()
    """Sizes that only a restart of the whole job reaches."""
    dear_pause_s: float = 0.0
    """What a move to one of them costs instead of `pause_s`."""


@dataclass(frozen=True, slots=True)
class Target:
    """What one job is to have."""

    label: str
    gpus: int
    batch: int
    value: float
    """Its term in the objective."""
    gain: float
    """Relative change of progress against the current allocation; for a job that starts, its speedup."""
    reason: str
    """A code of daemon/reasons.py, or "start" / "keep_frozen"."""
    alternatives: tuple[tuple[int, int, float], ...] = ()
    """The next best sizes at the plan's price of a GPU: (GPUs, batch, value)."""
    measured: bool = True
    """Whether this size was measured; False: predicted."""
    limit: str = ""
    """The limit that keeps it from more; empty when none does."""
    unlimited: int = 0
    """GPUs it would have without that limit; 0: no limit."""


@dataclass(frozen=True, slots=True)
class PlanResult:
    """Targets in the order of the jobs, their value, and what no plan can exceed."""

    targets: tuple[Target, ...]
    value: float
    bound: float
    price: float = 0.0
    stopped: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """One choice of a job: progress relative to the reference before and after the cost of moving there."""

    gpus: int
    batch: int
    speedup: float
    effective: float


@dataclass
class Cache:
    """Choices made before, for callers that plan again and again over jobs that mostly did not change."""

    made: dict[object, tuple[list[Row], list[Option]]] = field(default_factory=dict)
    old: dict[object, tuple[list[Row], list[Option]]] = field(default_factory=dict)
    """Of the turn before; what is not asked for in two turns is forgotten."""
    views: dict[int, tuple[str, JobView, tuple[list[Row], list[Option]]]] = field(default_factory=dict)
    columns: Memo = field(default_factory=dict)

    def turn(self) -> None:
        """Begin another round of plans: forget what the last one did not ask for."""
        kept = {id(column) for _, column in self.made.values()}
        self.old, self.made = self.made, {}
        self.views.clear()
        self.columns = {key: made for key, made in self.columns.items() if _row_of(key) in kept}


def _row_of(key: object) -> object:
    """The identity of the list of options that a column was made of (see table.Memo)."""
    return key[0] if isinstance(key, tuple) else key


def plan(
    jobs: Sequence[JobView], capacity: int, policy: str = DEFAULT_POLICY, cache: Cache | None = None
) -> PlanResult:
    """The best plan for `capacity` GPUs. Raises InfeasiblePlan naming the jobs, PlanInputError for bad input.

    Of equal plans the one that gives more to the jobs that come first (the older ones) is preferred.
    """
    made = [choices(job, policy, cache) for job in jobs]
    options = [column for _, column in made]
    answer = solve(options, capacity, [job.label for job in jobs], memo=cache.columns if cache else None)
    return result(jobs, [table for table, _ in made], options, answer, capacity, policy)


def plan_pools(
    pools: Sequence[Sequence[JobView]],
    capacities: Sequence[int],
    caps: Sequence[Cap],
    policy: str = DEFAULT_POLICY,
    cache: Cache | None = None,
) -> list[PlanResult]:
    """The best plan for several pools of jobs under limits that may cross them; `caps` count through all pools.

    Raises InfeasiblePlan naming the jobs, PlanInputError for bad input.
    """
    made = [[choices(job, policy, cache) for job in jobs] for jobs in pools]
    options = [[column for _, column in pool] for pool in made]
    labels = [job.label for jobs in pools for job in jobs]
    found = solve_limited(options, capacities, caps, labels, cache.columns if cache else None)
    limits = [caps[c] for c in found.binding if caps[c].label]
    out, first = list[PlanResult](), 0
    for jobs, pool, columns, answer, free, k in zip(
        pools, made, options, found.solutions, found.unlimited, capacities, strict=True
    ):
        planned = result(jobs, [table for table, _ in pool], columns, answer, k, policy)
        if limits:
            targets = list(planned.targets)
            for j, (target, column, i) in enumerate(zip(targets, columns, free.choice, strict=True)):
                limit = next((cap.label for cap in limits if first + j in cap.members), "")
                if limit and column[i].gpus > target.gpus:
                    targets[j] = replace(target, limit=limit, unlimited=column[i].gpus)
            planned = replace(planned, targets=tuple(targets))
        out.append(planned)
        first += len(jobs)
    return out


def choose(
    jobs: Sequence[JobView], capacity: int, policy: str = DEFAULT_POLICY, cache: Cache | None = None
) -> list[Row]:
    """The same plan without its explanation: the chosen row of each job."""
    if not jobs:
        return []
    if cache is None:
        tables = [choices(job, policy) for job in jobs]
    else:  # most jobs are as they were: their views are known
        known = zip(map(cache.views.get, map(id, jobs)), jobs, strict=True)
        tables = [k[2] if k and k[0] == policy else choices(job, policy, cache) for k, job in known]
    labels, memo = _Labels(jobs), cache.columns if cache else None
    answer = pick([table[1] for table in tables], capacity, labels, memo=memo)
    return [table[0][i] for table, i in zip(tables, answer.choice, strict=True)]


class _Labels(Sequence[str]):
    """The jobs' labels, read only when a message needs one."""

    def __init__(self, jobs: Sequence[JobView]) -> None:
        self.jobs = jobs

    def __len__(self) -> int:
        return len(self.jobs)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        return self.jobs[index].label if isinstance(index, int) else [job.label for job in self.jobs[index]]


def choices(job: JobView, policy: str, cache: Cache | None = None) -> tuple[list[Row], list[Option]]:
    """The rows of one job and their terms in the objective."""
    if cache is None:
        table = rows(job, policy)
        return table, _options(job, table, policy)
    held = cache.views.get(id(job))
    if held is not None and held[0] == policy:
        return held[2]
    key = (
        policy, job.model, job.choices, job.batches, job.current_gpus, job.current_batch, job.reference_gpus,
        job.reference_batch, job.weight, job.pause_s, job.horizon_s, job.frozen, job.sigma, job.noise_scale, job.dear,
        job.dear_pause_s,
        job.quality,
    )  # fmt: skip
    known = cache.made.get(key)
    if known is None:
        known = cache.old.get(key)
        if known is None:
            table = rows(job, policy)
            known = table, _options(job, table, policy)
        cache.made[key] = known
    cache.views[id(job)] = policy, job, known  # the view is kept, so that its identity stays its own
    return known


def rows(job: JobView, policy: str) -> list[Row]:
    """The choices of one job under a policy, the cost of each move charged to its progress."""
    if policy not in POLICIES:
        raise PlanInputError(f"policy '{policy}' is not known; accepted: {', '.join(POLICIES)}")
    _check(job)
    reference = _reference(job)
    if job.current_gpus > 0 and (job.frozen or policy == "static"):
        nodes = _nodes(job, job.current_gpus)
        speedup = _speedup(job, policy, reference, job.current_gpus, nodes, job.current_batch)
        return [Row(job.current_gpus, job.current_batch, speedup, speedup)]
    wanted = _static(job) if policy == "static" else job.choices
    offered = [(gpus, nodes, _offered(job, policy, gpus)) for gpus, nodes in wanted]
    points = [(gpus, nodes, batch) for gpus, nodes, batches in offered for batch in batches]
    speeds, at, table, cost = _speedups(job, policy, reference, points), 0, list[Row](), penalty(job)
    for gpus, _, batches in offered:
        if gpus == 0:
            table.append(Row(0, 0, 0.0, 0.0))
        elif batches:
            price = penalty(job, gpus) if gpus in job.dear else cost
            table.append(_best(job, gpus, batches, speeds[at : at + len(batches)], price))
            at += len(batches)
    if not table:
        raise PlanInputError(f"job {job.label} has no size with a feasible batch among {[k for k, _ in job.choices]}")
    return _explored(job, table)


def _offered(job: JobView, policy: str, gpus: int) -> tuple[int, ...]:
    """The batches to consider at one size: the feasible ones, and the present one."""
    if gpus == 0:
        return ()
    batches = job.batches(gpus)
    if policy in ("fixed-batch", "static"):
        batches = goodput.nearest(batches, job.reference_batch)
    if gpus == job.current_gpus and job.current_batch > 0 and job.current_batch not in batches:
        return (*batches, job.current_batch)
    return batches


def _best(job: JobView, gpus: int, batches: Sequence[int], speeds: Sequence[float], cost: float) -> Row:
    """The best batch at one size, or the current one while no other is worth its change."""
    speedup, negated = max(zip(speeds, [-b for b in batches], strict=True))
    batch = -negated
    if gpus != job.current_gpus:
        return Row(gpus, batch, speedup, speedup * (1.0 - cost))
    if batch == job.current_batch or job.current_batch <= 0:
        return Row(gpus, batch, speedup, speedup)
    kept = speeds[batches.index(job.current_batch)]
    changed = speedup * (1.0 - max(BATCH_GAIN, NOISE_FACTOR * _sigma(job)))
    if changed > kept:
        return Row(gpus, batch, speedup, changed)
    return Row(gpus, job.current_batch, kept, kept)


def penalty(job: JobView, gpus: int = 0) -> float:
    """Share of its progress that a move of this job (to this size) must bring to be worth it; 0 for one that waits."""
    if job.current_gpus == 0:
        return 0.0
    if job.model is None:
        return UNMEASURED_PENALTY
    pause = job.dear_pause_s if gpus in job.dear else job.pause_s
    return min(0.95, max(pause / job.horizon_s, NOISE_FACTOR * _sigma(job)))


def _sigma(job: JobView) -> float:
    if job.sigma is not None:
        return job.sigma
    return job.model.jitter if job.model is not None else 0.0


def _reference(job: JobView) -> float:
    """Samples per second at the reference size and batch."""
    if job.model is None:
        return 1.0
    return job.model.throughput(job.reference_gpus, _nodes(job, job.reference_gpus), job.reference_batch)


def _speedup(job: JobView, policy: str, reference: float, gpus: int, nodes: int, batch: int) -> float:
    """Progress per second relative to the reference size and batch."""
    return _speedups(job, policy, reference, [(gpus, nodes, batch)])[0]


def _speedups(job: JobView, policy: str, reference: float, points: Sequence[Point]) -> list[float]:
    """Progress per second at each (GPUs, nodes, batch), relative to the reference size and batch."""
    if job.model is None:
        return [math.pow(gpus / job.reference_gpus, UNMEASURED) for gpus, _, _ in points]
    speeds = throughputs(job.model, points)
    if not _counts_efficiency(job, policy):
        return [speed / reference for speed in speeds]
    worth = {b: goodput.efficiency(b, job.reference_batch, job.noise_scale) for b in {p[2] for p in points}}
    return [speed / reference * worth[point[2]] for speed, point in zip(speeds, points, strict=True)]


def _counts_efficiency(job: JobView, policy: str) -> bool:
    """Whether a sample at a large batch is worth less to this job under this policy."""
    return job.quality if policy == "auto" else policy in ("goodput", "log-goodput", "harmonic")


def _nodes(job: JobView, gpus: int) -> int:
    """Nodes of a size: as the choices say, else as dense as the densest of them."""
    for k, nodes in job.choices:
        if k == gpus:
            return max(1, nodes)
    dense = max((k / n for k, n in job.choices if n > 0), default=float(gpus))
    return max(1, math.ceil(gpus / dense))


def _static(job: JobView) -> tuple[tuple[int, int], ...]:
    """What a job that starts may have without elasticity: nothing if it may wait, else what it asked for."""
    asked = tuple(c for c in job.choices if c[0] in (0, job.reference_gpus))
    return asked if any(k for k, _ in asked) else job.choices


def _explored(job: JobView, table: list[Row]) -> list[Row]:
    """Without the larger sizes, never measured, that in one case of ten would not even pay for the move there."""
    if job.current_gpus == 0:
        return table
    if job.model is None:  # never grown blindly; smaller only where somebody needs it
        return [row for row in table if row.gpus <= job.current_gpus] or table
    now = next((r for r in table if r.gpus == job.current_gpus), None)
    if now is None:
        return table
    known = frozenset(job.model.sizes_seen)
    guessed = [row.gpus for row in table if row.gpus > now.gpus and row.gpus not in known]
    nodes = dict(job.choices)
    doubts = uncertainties(job.model, [(k, max(1, nodes[k])) for k in guessed])
    rows, cost = zip(guessed, doubts, strict=True), penalty(job)
    kept = {k: 1.0 - penalty(job, k) for k in job.dear}
    least = {k: now.speedup / (math.exp(-QUANTILE * doubt) * kept.get(k, 1.0 - cost)) for k, doubt in rows}
    return [row for row in table if row.speedup >= least.get(row.gpus, 0.0)]


def _options(job: JobView, table: list[Row], policy: str) -> list[Option]:
    """The objective's term of each choice, ties broken towards an even spread."""
    least = min((r.effective for r in table if r.gpus), default=1.0)
    out = list[Option]()
    for row in table:
        s = row.effective if row.gpus else 0.0
        s *= 1.0 - EVEN_SPREAD * math.log2(row.gpus) if row.gpus > 1 else 1.0
        if policy in ("auto", "log-throughput", "log-goodput"):
            value = math.log(max(s, IDLE_SHARE * least))
        elif policy == "harmonic":
            value = -1.0 / max(s, IDLE_SHARE * least)
        else:
            value = s
        out.append(Option(row.gpus, job.weight * value, row.batch))
    return out


def result(
    jobs: Sequence[JobView],
    tables: Sequence[list[Row]],
    options: Sequence[list[Option]],
    answer: Solution,
    capacity: int,
    policy: str,
) -> PlanResult:
    """Targets with their reasons from a solved allocation."""
    chosen = [table[i] for table, i in zip(tables, answer.choice, strict=True)]
    used = sum(job.current_gpus for job in jobs)
    grown = sum(max(0, row.gpus - job.current_gpus) for job, row in zip(jobs, chosen, strict=True))
    starts = any(job.current_gpus == 0 < row.gpus for job, row in zip(jobs, chosen, strict=True))
    shrink = "shrink_capacity" if used > capacity else "shrink_for_elastic" if starts else "shrink_share"
    grow = "grow_idle" if grown <= capacity - used else "grow_share"
    targets = []
    for job, row, i, column in zip(jobs, chosen, answer.choice, options, strict=True):
        others = sorted((o for o in column if o.gpus != row.gpus), key=lambda o: answer.price * o.gpus - o.value)
        targets.append(
            Target(
                label=job.label,
                gpus=row.gpus,
                batch=row.batch,
                value=column[i].value,
                gain=_gain(job, row, policy),
                reason=_reason(job, row, grow, shrink),
                alternatives=tuple((o.gpus, o.batch, o.value) for o in others[:3]),
                measured=job.model is not None and row.gpus in job.model.sizes_seen,
            )
        )
    return PlanResult(tuple(targets), answer.value, answer.bound, answer.price, answer.stopped)


def _gain(job: JobView, row: Row, policy: str) -> float:
    if job.current_gpus == 0:
        return row.speedup
    if (row.gpus, row.batch) == (job.current_gpus, job.current_batch):
        return 0.0
    batch = job.current_batch if job.current_batch > 0 else row.batch
    nodes = _nodes(job, job.current_gpus)
    return row.speedup / _speedup(job, policy, _reference(job), job.current_gpus, nodes, batch) - 1.0


def _reason(job: JobView, row: Row, grow: str, shrink: str) -> str:
    if job.current_gpus == 0:
        return "start" if row.gpus else "waiting"
    if row.gpus > job.current_gpus:
        return grow
    if row.gpus < job.current_gpus:
        return shrink
    if job.frozen:
        return "keep_frozen"
    if job.model is None:
        return "keep_unmeasured"
    return "batch" if row.batch != job.current_batch else "keep_best"


def _check(job: JobView) -> None:
    """Refuse what no plan can be made from, naming the job and the value."""
    numbers = {"weight": job.weight, "pause": job.pause_s, "horizon": job.horizon_s, "sigma": job.sigma or 0.0}
    for name, value in numbers.items():
        if not math.isfinite(value) or value < 0 or (name in ("weight", "horizon") and value == 0):
            raise PlanInputError(f"job {job.label}: {name} {value} is not a positive number")
    if not job.choices and not job.current_gpus:
        raise PlanInputError(f"job {job.label} has no feasible size")
    if job.reference_gpus < 1 or job.reference_batch < 1:
        raise PlanInputError(f"job {job.label}: reference {job.reference_gpus} GPUs at batch {job.reference_batch}")
