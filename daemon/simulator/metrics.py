"""What a simulation amounts to: completion times, use of the GPUs, restarts, jobs done in a window; and how it served
those whose jobs it ran: how evenly their elastic jobs' GPUs were divided, and how much longer a job took than it would
have alone on an equal part of the cluster.

Pure. Limit: the division is looked at in LOOKS moments; nobody's shares but equal ones are known; who has nothing but
waiting jobs in a moment is not counted in it, for the queue is Slurm's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from slurm_elastic.protocol.answers.record import Column, about, columns, record
from slurm_elastic.protocol.text.tables import digits, lines
from slurm_elastic.protocol.text.times import elapsed

from ..reports.fairness import Presence, ShareOfGpus, Sharer, groups_of, looks
from .engine import Outcome
from .jobs import SimulatedJob
from .programs import BatchLadder, Program

RECORDED, BACKFILL = "recorded", "backfill"
"""The policy of an outcome that the trace itself tells, and of what Slurm does with fixed sizes."""
LEGEND = (
    "WAIT: mean time until a job first starts. MEAN to P99: from when it could start to its end. MAKESPAN: until the "
    "last has ended.\nUSED: share of the cluster's GPU time held until then. SPREAD: of it, on more nodes than needed."
)
"""What the columns of a summary are."""
FAIR_COLUMNS = ("JAIN", "RHO", "WORST-RHO")
FAIR_LEGEND = (
    "JAIN: how even the progress of those is whose jobs they are (1: as an equal division would have it). RHO: time "
    "from\nsubmission to end over that alone on an equal part of the cluster; WORST-RHO: of the job with the largest."
)
"""What these columns are, where the trace says whose its jobs are."""


def tells_of_fairness(rows: Sequence[Summary]) -> bool:
    """Whether the trace says whose its jobs are."""
    return any(not math.isnan(row.jain) for row in rows)


def legend(rows: Sequence[Summary]) -> str:
    """What the columns of these rows are."""
    return f"{LEGEND}\n{FAIR_LEGEND}" if tells_of_fairness(rows) else LEGEND


def _known(form: Callable[[float], str]) -> Callable[[float], str]:
    """The cell of a figure; empty for NaN."""
    return lambda value: "" if math.isnan(value) else form(value)


_time = _known(elapsed)
_share = _known("{:.1%}".format)


@record
class Summary:
    """One policy's figures; times in seconds, NaN where no job completed."""

    policy: str = about("what decided", Column("POLICY"))
    jobs: int = about("jobs of the trace")
    completed: int = about("jobs that ended", Column("DONE"))
    dropped: int = about("jobs that could not start at once", Column("DROPPED"))
    completed_in_window: int = about("jobs that ended within the window", Column("INWINDOW"))
    mean_wait_s: float = about("from submission to the first start", Column("WAIT", form=_time))
    mean_s: float = about("from submission to the end", Column("MEAN", form=_time))
    median_s: float = about("the same, of the middle job", Column("MEDIAN", form=_time))
    p90_s: float = about("what nine of ten jobs stay below", Column("P90", form=_time))
    p99_s: float = about("what 99 of 100 jobs stay below", Column("P99", form=_time))
    makespan_s: float = about("until the last job ended", Column("MAKESPAN", form=_time))
    gpu_hours: float = about("held", Column("GPU-HOURS", form=digits()))
    gpus_used: float = about("share of GPU-seconds held until the last job ended", Column("USED", form=_share))
    restarts: float = about("changes of size or batch per completed job", Column("RESIZES/JOB", form="{:.2f}".format))
    pause_s: float = about("time in which training stood still for them, per completed job")
    spread: float = about("share of GPU-seconds on more nodes than the GPUs need", Column("SPREAD", form=_share))
    jain: float = about(
        "Jain's index over users or accounts of the progress got by that of an equal division: 1 is even",
        Column("JAIN", form=_known("{:.3f}".format)),
    )
    rho_mean: float = about(
        "finish-time fairness: from submission to end, by the time alone on an equal part of the cluster",
        Column("RHO", form=_known("{:.2f}".format)),
    )
    rho_worst: float = about("the same of the job with the largest", Column("WORST-RHO", form=_known("{:.1f}".format)))
    in_time: float = about("share of the jobs with a deadline that had ended by it; NaN: none has one")
    decisions: int = about("rounds of the planner")


@record
class JobOutcome:
    """What became of one job; times in seconds since the first submission."""

    job_id: str = about("of the trace", Column("JobID"))
    program: str = about("whose speed is assumed", Column("Program"))
    policy: str = about("what decided", Column("Policy"))
    submit_s: float = about("since the first submission", Column("Submit", "Submit s", form="{:.0f}".format))
    start_s: float | None = about("since the first submission", Column("Start", "Start s", form="{:.0f}".format))
    end_s: float | None = about("since the first submission", Column("End", "End s", form="{:.0f}".format))
    completion_s: float | None = about(
        "from submission to end", Column("Completion", "Completion s", form="{:.0f}".format)
    )
    dropped: bool = about("it could not start at once, and --drop was given")
    restarts: int = about("resizes and restarts", Column("Restarts"))
    gpu_seconds: float = about("held", Column("GPUHours", form=lambda value: digits()(value / 3600)))


def summary(outcome: Outcome, window_s: float = 0.0) -> Summary:
    """Figures of one outcome; `window_s`: jobs done by then count as completed in the window (0: all)."""
    fair = served(outcome, outcome.settings.fairness)
    done = [job for job in outcome.jobs if job.end_s >= 0]
    times = sorted(job.end_s - job.trace.submit_s for job in done)
    first = min((job.trace.submit_s for job in outcome.jobs), default=0.0)
    span = max(outcome.end_s - first, 1e-9)
    count = max(1, len(done))
    held = sum(job.gpu_seconds for job in outcome.jobs)
    return Summary(
        policy=outcome.policy,
        jobs=len(outcome.jobs),
        completed=len(done),
        dropped=sum(job.dropped for job in outcome.jobs),
        completed_in_window=sum(1 for job in done if not window_s or job.end_s <= window_s),
        mean_s=sum(times) / len(times) if times else math.nan,
        median_s=quantile(times, 0.5),
        p90_s=quantile(times, 0.9),
        p99_s=quantile(times, 0.99),
        mean_wait_s=sum(job.start_s - job.trace.submit_s for job in done) / count,
        makespan_s=outcome.end_s - first,
        gpu_hours=held / 3600,
        gpus_used=held / (outcome.settings.gpus * span),
        restarts=sum(job.moves for job in done) / count,
        pause_s=sum(job.paused_s for job in done) / count,
        spread=_spread(outcome, held),
        jain=fair.jain,
        rho_mean=fair.rho_mean,
        rho_worst=fair.rho_worst,
        in_time=_in_time(outcome.jobs),
        decisions=outcome.decisions,
    )


def _in_time(jobs: Sequence[SimulatedJob]) -> float:
    due = [job for job in jobs if job.trace.deadline_s]
    kept = sum(0 <= job.end_s <= job.trace.submit_s + job.trace.deadline_s for job in due)
    return kept / len(due) if due else math.nan


def _spread(outcome: Outcome, held: float) -> float:
    if outcome.policy == RECORDED:  # a trace says nothing of nodes
        return math.nan
    return sum(job.spread_seconds for job in outcome.jobs) / max(1e-9, held)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Linear interpolation between the order statistics of a sorted sequence; NaN of nothing."""
    if not ordered:
        return math.nan
    at = share * (len(ordered) - 1)
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def per_job(outcome: Outcome) -> list[JobOutcome]:
    """One record per job, in submit order."""
    return [_of_job(job, outcome.policy) for job in outcome.jobs]


def _of_job(job: SimulatedJob, policy: str) -> JobOutcome:
    finished = job.end_s >= 0
    return JobOutcome(
        job_id=job.trace.job_id,
        program=job.program.name,
        policy=policy,
        submit_s=round(job.trace.submit_s, 3),
        start_s=round(job.start_s, 3) if job.start_s >= 0 else None,
        end_s=round(job.end_s, 3) if finished else None,
        completion_s=round(job.end_s - job.trace.submit_s, 3) if finished else None,
        dropped=job.dropped,
        restarts=job.moves,
        gpu_seconds=round(job.gpu_seconds, 1),
    )


def cells(rows: Sequence[Summary], without: Collection[str] = ()) -> list[list[str]]:
    """The headings, then each policy's figures; `without`: headings to leave out."""
    shown = [column for column in columns(Summary) if column.header not in without]
    return [[column.header for column in shown], *([column.text(row) for column in shown] for row in rows)]


def table(rows: Sequence[Summary], without: Collection[str] = ()) -> str:
    """The figures side by side, one policy a line."""
    return "\n".join(lines([column for column in columns(Summary) if column.header not in without], rows))


def gains(rows: Sequence[Summary]) -> list[str]:
    """The last policy against backfill on the same cluster, or else against the first that is simulated, in sentences:
    what was recorded may have been another cluster. Empty with less than two, or where no job ended."""
    simulated = [row for row in rows if row.policy != RECORDED]
    last = rows[-1]
    first = next((row for row in simulated if row.policy == BACKFILL), simulated[0] if simulated else last)
    if first is last or not first.completed or not last.completed:
        return []
    lead = f"Under {last.policy} jobs end after {elapsed(last.mean_s)} in the mean, under {first.policy} after "
    found = [f"{lead}{elapsed(first.mean_s)}: {_change(last.mean_s, first.mean_s, 'sooner', 'later')}."]
    found.append(
        f"Nine of ten have ended after {elapsed(last.p90_s)} instead of {elapsed(first.p90_s)}; a job waits "
        f"{elapsed(last.mean_wait_s)} instead of {elapsed(first.mean_wait_s)} before it starts."
    )
    found.append(
        f"The jobs take {_change(last.gpu_hours, first.gpu_hours, 'fewer', 'more')} GPU-hours, and hold "
        f"{last.gpus_used:.0%} of the cluster's GPU time instead of {first.gpus_used:.0%}."
    )
    if not math.isnan(last.in_time):
        found.append(f"Of the jobs with a deadline {last.in_time:.0%} keep it instead of {first.in_time:.0%}.")
    if last.restarts:
        found.append(f"A job is resized {last.restarts:.1f} times, and pauses {elapsed(last.pause_s)} in all for it.")
    return found


def _change(new: float, old: float, less: str, more: str) -> str:
    """How much less or more the new is than the old, which is above 0, in percent of the old."""
    return f"{abs(new / old - 1):.0%} {less if new <= old else more}"


@dataclass(frozen=True, slots=True)
class FairnessResult:
    """How those were served whose jobs they were. NaN where less than two had elastic jobs."""

    groups: int
    jain: float
    """Of their progress (`ShareOfGpus.jain`)."""
    jain_gpus: float
    rho_mean: float
    """Of the elastic jobs that ended: the time from submission to end, by the time alone on an equal part."""
    rho_worst: float
    progress: float
    """Until the last submission (where all came at once, to the end): what all running elastic jobs did in a second, in
    what one GPU does of each."""


def served(outcome: Outcome, by: str) -> FairnessResult:
    """Of one outcome, between those that `groups_of` names."""
    _, groups = groups_of([(job.trace.account, job.trace.user) for job in outcome.jobs], by)
    of = {job.trace.job_id: group for job, group in zip(outcome.jobs, groups, strict=True)}
    count = len({of[job.trace.job_id] for job in outcome.jobs if job.elastic})
    if count < 2:
        return FairnessResult(count, math.nan, math.nan, math.nan, math.nan, math.nan)
    sharers = _sharers(outcome, of)
    division, progress = _divided(outcome, sharers)
    rho = _rho(outcome, of, sharers)
    return FairnessResult(
        groups=count,
        jain=division.jain(),
        jain_gpus=division.jain_gpus(),
        rho_mean=math.fsum(rho) / len(rho) if rho else math.nan,
        rho_worst=max(rho, default=math.nan),
        progress=progress,
    )


def _sharers(outcome: Outcome, groups: Mapping[str, str]) -> dict[str, Sharer]:
    """The elastic jobs by id; jobs of one shape share their speeds."""
    known: dict[tuple[Program, tuple[tuple[int, int], ...], BatchLadder, bool], list[tuple[int, float]]] = {}
    found = {}
    for job in outcome.jobs:
        if not job.elastic:
            continue
        key = job.program, job.sizes, job.batches, job.quality
        if key not in known:
            known[key] = [(gpus, _speed(job, gpus, nodes)) for gpus, nodes in job.sizes]
        least = min(job.accepted[0], job.asked)
        found[job.trace.job_id] = Sharer(groups[job.trace.job_id], known[key], least, job.accepted[-1])
    return found


def _speed(job: SimulatedJob, gpus: int, nodes: int) -> float:
    """Samples of the work a second at the best batch, over all phases of the training: the harmonic mean of the best in
    each."""
    program = job.program
    offered = [(program.throughput(gpus, nodes, batch), batch) for batch in job.batches(gpus)]
    if not job.quality:
        return max(offered)[0]
    phases = [(phase + 0.5) / program.phases for phase in range(program.phases)]
    return len(phases) / sum(1.0 / max(speed * program.efficiency(b, done) for speed, b in offered) for done in phases)


def _divided(outcome: Outcome, sharers: Mapping[str, Sharer]) -> tuple[ShareOfGpus, float]:
    """(how GPUs were divided, progress in a second until the last job came)."""
    first, last = (end(job.trace.submit_s for job in outcome.jobs) for end in (min, max))
    changes = [(at, job_id, gpus) for at, job_id, gpus, _ in outcome.changes if job_id in sharers]
    division, done, seen = ShareOfGpus(), 0.0, 0
    for moment, held in looks(changes, first, outcome.end_s):
        running = [(sharers[job_id], gpus) for job_id, gpus in held.items()]
        if moment <= last or first == last:
            done, seen = done + sum(sharer.progress(gpus) for sharer, gpus in running), seen + 1
        division.add(running)
    return division, done / seen if seen else math.nan


def _rho(outcome: Outcome, groups: Mapping[str, str], sharers: Mapping[str, Sharer]) -> list[float]:
    """Of each elastic job that ended, by all jobs that did."""
    ended = [job for job in outcome.jobs if job.end_s >= 0]
    presence = Presence((groups[job.trace.job_id], job.trace.submit_s, job.end_s) for job in ended)
    return [
        sharers[job.trace.job_id].rho(job.work, job.trace.submit_s, job.end_s, outcome.settings.gpus, presence)
        for job in ended
        if job.elastic
    ]
