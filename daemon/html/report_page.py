"""The page of `selastic report --html`: key figures, charts and a table of how jobs have gone over a window.

Promise: pure; no link, nothing fetched: the page opens anywhere, years later, and says the same without its one
script, which sorts the table. Limit: the charts show the MOST_JOBS jobs with the most GPU-hours, the figures and the
table count all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

from slurm_elastic.client.report.figures import (
    Stretch,
    clipped,
    fairness_figures,
    first_moment,
    key_figures,
    shown_time,
)
from slurm_elastic.protocol.answers.history import Usage, UsageJob
from slurm_elastic.protocol.text.tables import clean, number
from slurm_elastic.protocol.text.times import elapsed, span

from . import report_charts as charts
from .charts import Chart, sample
from .render import render

MOST_JOBS = 40
MOST_CURVES = 12
Curve = tuple[str, Chart]
"""A job's name and its chart."""
HEAD = (
    *("Job", "Name", "User", "State", "Trained", "GPUs", "GPU-hours", "Samples", "Samples/s"),
    *("Resizes", "Paused", "Rho"),
)


def page(usage: Usage) -> str:
    """The HTML of these jobs."""
    rows = clipped(usage.allocations, usage.start, usage.end)
    jobs = {job.job_id: job for job in usage.jobs}
    start, end = first_moment(usage, rows), usage.end
    by_job: dict[int, list[Stretch]] = {job: [] for job in sorted(jobs)}
    for row in rows:
        by_job[row.job_id].append(row)
    hours = {job: sum(row.gpu_hours for row in mine) for job, mine in by_job.items()}
    shown = sorted(sorted(jobs, key=lambda job: -hours[job])[:MOST_JOBS])
    drawn = [row for row in rows if row.job_id in shown]
    curves, more_curves = _curves([jobs[job] for job in shown], hours)
    return render(
        "report.html",
        time=shown_time(usage, rows),
        figures=key_figures(usage, rows),
        fairness=fairness_figures(usage.fairness) if usage.fairness else [],
        drawn=len(shown),
        timeline=charts.timeline(drawn, {job: clean(jobs[job].name or "") for job in shown}, start, end),
        stacked=charts.stacked(rows, shown, usage.capacity, start, end),
        key=[
            (f"{job} {clean(jobs[job].name or '')}", sample(index, f"job {job}"))
            for index, job in enumerate(dict.fromkeys(row.job_id for row in drawn))
        ],
        curves=curves,
        more_curves=more_curves,
        pauses=charts.pauses(drawn, start, end),
        head=HEAD,
        jobs=[_job(jobs[job], mine) for job, mine in by_job.items()] if rows else [],
    )


def _curves(jobs: Sequence[UsageJob], hours: Mapping[int, float]) -> tuple[list[Curve], list[Curve]]:
    """The MOST_CURVES jobs with the most GPU-hours, and the others; of both those that were measured."""
    measured = [(index, job) for index, job in enumerate(jobs) if job.measured]
    first = {job.job_id for _, job in sorted(measured, key=lambda entry: -hours[entry[1].job_id])[:MOST_CURVES]}
    made = [
        (job.job_id, (f"{job.job_id} {clean(job.name or '')}", charts.scaling(job, index))) for index, job in measured
    ]
    return [each for job, each in made if job in first], [each for job, each in made if job not in first]


def _job(job: UsageJob, rows: Sequence[Stretch]) -> list[str | tuple[str, float]]:
    """A row of the table; a number with the value that it is sorted by."""
    pauses = [row.pause_s for row in rows if row.pause_s]
    seconds, hours = sum(row.seconds for row in rows), sum(row.gpu_hours for row in rows)
    samples = sum(row.samples for row in rows)
    rate = samples / seconds if seconds else None
    sizes = [str(gpus) for gpus, _ in groupby(row.gpus for row in rows)]
    shown = " → ".join(sizes[:3] + ["…"] * (len(sizes) > 6) + sizes[max(3, len(sizes) - 3) :])
    return [
        (str(job.job_id), job.job_id), clean(job.name or ""), clean(job.user or ""), job.state,
        (elapsed(seconds), round(seconds)),
        (shown, max((row.gpus for row in rows), default=0)),
        (number(hours), round(hours, 4)), (f"{samples:,.0f}", samples),
        (number(rate), round(rate or 0.0, 4)), (str(len(pauses)), len(pauses)),
        (span(sum(pauses)) if pauses else "", round(sum(pauses), 3)),
        ("" if job.rho is None else f"{job.rho:.2f}", round(job.rho or 0.0, 4)),
    ]  # fmt: skip
