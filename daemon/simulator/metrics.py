"""What a simulation amounts to: completion times, use of the GPUs, restarts, jobs done in a window."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..text.times import elapsed
from .engine import Outcome
from .jobs import SimulatedJob

RECORDED = "recorded"
"""The policy of an outcome that the trace itself tells."""


@dataclass(frozen=True, slots=True)
class Summary:
    """One policy's figures; times in seconds, NaN where no job completed."""

    policy: str
    jobs: int
    completed: int
    dropped: int
    completed_in_window: int
    mean_s: float
    median_s: float
    p90_s: float
    p99_s: float
    mean_wait_s: float
    makespan_s: float
    gpu_hours: float
    gpus_used: float
    """Share of GPU-seconds held until the last job ended."""
    restarts: float
    """Changes of size or batch per completed job."""
    pause_s: float
    """Time in which training stood still for them, per completed job."""
    spread: float
    """Share of held GPU-seconds of jobs spread over more nodes than their GPUs need."""
    decisions: int


def summary(outcome: Outcome, window_s: float = 0.0) -> Summary:
    """Figures of one outcome; `window_s`: jobs done by then count as completed in the window (0: all)."""
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
        decisions=outcome.decisions,
    )


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


def per_job(outcome: Outcome) -> list[dict[str, Any]]:
    """One record per job, in submit order."""
    return [record(job) for job in outcome.jobs]


def record(job: SimulatedJob) -> dict[str, Any]:
    finished = job.end_s >= 0
    return {
        "job_id": job.trace.job_id,
        "program": job.program.name,
        "submit_s": round(job.trace.submit_s, 3),
        "start_s": round(job.start_s, 3) if job.start_s >= 0 else None,
        "end_s": round(job.end_s, 3) if finished else None,
        "completion_s": round(job.end_s - job.trace.submit_s, 3) if finished else None,
        "dropped": job.dropped,
        "restarts": job.moves,
        "gpu_seconds": round(job.gpu_seconds, 1),
    }


TITLES = {
    "policy": "POLICY",
    "completed": "DONE",
    "dropped": "DROPPED",
    "completed_in_window": "IN WINDOW",
    "mean_s": "MEAN s",
    "median_s": "MEDIAN s",
    "p90_s": "P90 s",
    "p99_s": "P99 s",
    "mean_wait_s": "WAIT s",
    "makespan_s": "MAKESPAN s",
    "gpus_used": "GPUS USED",
    "restarts": "RESTARTS/JOB",
    "spread": "SPREAD",
}


CLOCKED = {
    "policy": "POLICY",
    "completed": "DONE",
    "dropped": "DROPPED",
    "completed_in_window": "IN WINDOW",
    "mean_wait_s": "WAIT",
    "mean_s": "MEAN",
    "median_s": "MEDIAN",
    "p90_s": "P90",
    "p99_s": "P99",
    "makespan_s": "ALL DONE",
    "gpu_hours": "GPU-HOURS",
    "gpus_used": "USED",
    "restarts": "RESIZES/JOB",
    "spread": "SPREAD",
}
LEGEND = (
    "WAIT: mean time until a job first starts. MEAN to P99: from when it could start to its end. ALL DONE: until the "
    "last has ended.\nUSED: share of the cluster's GPU time held until then. SPREAD: of it, on more nodes than needed."
)
"""What the columns of CLOCKED are."""


def cells(rows: Sequence[Summary], without: Collection[str] = ()) -> list[list[str]]:
    """The figures under CLOCKED's titles, times as sacct prints them; `without`: names of columns to leave out."""
    names = [name for name in CLOCKED if name not in without]
    lines = [[CLOCKED[name] for name in names]]
    for row in rows:
        values = asdict(row)
        lines.append([_clocked(name, values[name]) for name in names])
    return lines


def gains(rows: Sequence[Summary]) -> str:
    """The last policy against the first, in a sentence; empty with less than two."""
    first, last = rows[0], rows[-1]
    if first is last or not first.completed or not last.completed:
        return ""
    figures = {"mean time to the end": (last.mean_s, first.mean_s), "P90": (last.p90_s, first.p90_s)}
    figures["GPU-hours"] = last.gpu_hours, first.gpu_hours
    told = [f"{name} {100 * (new / old - 1):+.0f} %" for name, (new, old) in figures.items() if old > 0]
    return f"{last.policy} against {first.policy}: {', '.join(told)}"


def _clocked(name: str, value: Any) -> str:
    if name.endswith("_s") and not math.isnan(value):
        return elapsed(value)
    if name == "gpu_hours":
        return f"{value:,.{0 if value >= 100 else 1}f}"
    return _cell(name, value)


def table(rows: Sequence[Summary]) -> str:
    """The figures side by side in seconds, one policy a line: what benchmarks print."""
    lines = [list(TITLES.values())]
    for row in rows:
        values = asdict(row)
        lines.append([_cell(name, values[name]) for name in TITLES])
    return aligned(lines)


def aligned(lines: Sequence[Sequence[str]]) -> str:
    """Cells as text."""
    widths = [max(len(line[c]) for line in lines) for c in range(len(lines[0]))]
    widths[0] *= -1  # the names to the left, the figures to the right
    return "\n".join("  ".join(_padded(cell, w) for cell, w in zip(line, widths, strict=True)) for line in lines)


def _padded(cell: str, width: int) -> str:
    return cell.ljust(-width) if width < 0 else cell.rjust(width)


def _cell(name: str, value: Any) -> str:
    if isinstance(value, float):
        if math.isnan(value):
            return "n/a"
        shapes = {"gpus_used": f"{100 * value:.1f} %", "spread": f"{100 * value:.1f} %", "restarts": f"{value:.2f}"}
        return shapes.get(name, f"{value:.0f}")
    return str(value)
