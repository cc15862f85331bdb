"""The page of `selastic simulate --html`: figures, assumptions, use of the GPUs over time, every job's timeline.

Promise: one file without script or link that opens anywhere, safe with any job id or program name. Limit: the timeline
shows the first MOST_JOBS jobs by submit time; the curves show all, as means over stretches of time.
"""

from collections.abc import Collection, Sequence
from itertools import pairwise
from typing import Any

from slurm_elastic.protocol.text.times import elapsed

from ..html import charts
from .engine import Outcome
from .metrics import Summary, cells, gains, legend

MOST_JOBS = 400
ROW, NAMES = 28, 150
"""Pixels of a bar of the first picture, and of the names and figures beside the bars."""
STRETCHES = 160
"""Of time, over each of which a curve gives the mean: changes by the minute would be a smear."""
DASHES = ("none", "7 3", "2 3", "9 3 2 3")
"""Of curves, in turn, so that they can be told apart without their colours."""
Points = list[tuple[float, float]]
"""(from when, value from then on)"""


def page(
    outcomes: Sequence[Outcome],
    rows: Sequence[Summary],
    notes: Sequence[str],
    without: Collection[str] = (),
    unfit: str = "",
) -> str:
    """The page's HTML. unfit: why the jobs look like those of another cluster."""
    end = max((o.end_s for o in outcomes), default=0.0) or 1.0
    gpus = outcomes[0].settings.gpus if outcomes else 1
    lanes = _lanes(outcomes)
    until = max((job.end_s for o in outcomes for job in o.jobs if job.trace.job_id in lanes), default=end)
    head, *lines = cells(rows, without)
    return charts.render(
        "simulation.html",
        gains=[*([unfit] if unfit else []), *gains(rows)],
        times=_times([row for row in rows if row.completed]),
        head=head,
        rows=lines,
        legend=legend(rows),
        notes=notes,
        gpus=gpus,
        stretch=_span(end / STRETCHES),
        held=_curves([(o.policy, _held(o)) for o in outcomes], end, gpus, "GPUs"),
        waiting=_curves([(o.policy, _waiting(o)) for o in outcomes], end, 0, "jobs"),
        outcomes=[
            {
                "policy": outcome.policy,
                "jobs": len(outcome.jobs),
                "drawn": min(MOST_JOBS, len(outcome.jobs)),
                "chart": _timeline(outcome, lanes, until),
            }
            for outcome in outcomes
        ],
    )


def _times(rows: Sequence[Summary]) -> charts.Chart:
    """A bar for each policy: the mean time from submission to end, of which a paler part is waiting."""
    longest, height = max((row.mean_s for row in rows), default=1.0), ROW * len(rows)
    x, marks = charts.Axis(0, longest, NAMES, charts.WIDTH - NAMES), list[charts.Mark]()
    for index, row in enumerate(rows):
        top, waited = index * ROW, min(row.mean_wait_s, row.mean_s)
        marks.append(charts.label(NAMES - 8, top + 18, row.policy, "end"))
        for start, end, dark, what in ((0.0, waited, "0.35", "waiting"), (waited, row.mean_s, "1", "running")):
            width, title = x.at(end) - x.at(start), f"{row.policy}: {elapsed(end - start)} {what}"
            marks.append(charts.rect("c0", x.at(start), top + 3, width, ROW - 6, title, **{"fill-opacity": dark}))
        marks.append(charts.label(x.at(row.mean_s) + 8, top + 18, elapsed(row.mean_s)))
    return charts.Chart(charts.WIDTH, height, "mean time from submission to end", marks)


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _held(outcome: Outcome) -> Points:
    holds: dict[str, int] = {}
    total, out = 0, list[tuple[float, float]]()
    for at, job, gpus, _ in outcome.changes:
        total += gpus - holds.get(job, 0)
        holds[job] = gpus
        out.append((at, float(total)))
    return out


def _waiting(outcome: Outcome) -> Points:
    changes = [(job.trace.submit_s, 1) for job in outcome.jobs if job.start_s >= 0]
    changes += [(job.start_s, -1) for job in outcome.jobs if job.start_s >= 0]
    count, out = 0, list[tuple[float, float]]()
    for at, more in sorted(changes):
        count += more
        out.append((at, float(count)))
    return out


def means(points: Points, end: float, count: int = STRETCHES) -> list[float]:
    """The mean of a step function over each of so many equal stretches of [0, end]; 0 before its first point."""
    width, sums = end / count, [0.0] * count
    for (at, value), (until, _) in pairwise([*points, (end, 0.0)]):
        slot = int(at / width)
        while value and slot < count and slot * width < until:
            sums[slot] += value * max(0.0, min(until, (slot + 1) * width) - max(at, slot * width))
            slot += 1
    return [total / width for total in sums]


def _curves(series: Sequence[tuple[str, Points]], end: float, top: float, unit: str) -> dict[str, Any]:
    """A chart with a curve for each series, and its key: each name with a sample of its line."""
    drawn = [(name, means(points, end)) for name, points in series]
    height = 220
    most = max([top, 1.0, *(value for _, each in drawn for value in each)])
    x, y = charts.horizontal(0, end), charts.Axis(0, most, height, 20)
    marks, key = (
        charts.time_axis(x, height, charts.hour_ticks(end)) + charts.value_axis(y, unit),
        list[tuple[str, charts.Chart]](),
    )
    for index, (name, each) in enumerate(drawn):
        kind, dashes = f"s{index % charts.COLOURS} curve", {"stroke-dasharray": DASHES[index % len(DASHES)]}
        d = charts.line((x.at((i + 0.5) * end / STRETCHES), y.at(value)) for i, value in enumerate(each))
        marks.append(charts.path(kind, d, name, **dashes))
        key.append((name, charts.Chart(35, 8, name, [charts.path(kind, "M0 4H35", **dashes)])))
    return {"chart": charts.Chart(charts.WIDTH, height + charts.BELOW, f"{unit} over time", marks), "key": key}


def _lanes(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """The lane of each job that is drawn."""
    found = {job.trace.job_id: job.trace.submit_s for outcome in outcomes for job in outcome.jobs}
    return {job: lane for lane, job in enumerate(sorted(found, key=lambda job: found[job])[:MOST_JOBS])}


def _timeline(outcome: Outcome, lanes: dict[str, int], end: float) -> charts.Chart:
    """A line per job, darker the more GPUs it holds; its tooltip has the size and batch."""
    largest = max((gpus for _, job, gpus, _ in outcome.changes if job in lanes), default=1)
    pitch = max(3, min(12, 2400 // max(1, len(lanes))))
    x, height = charts.horizontal(0, end), pitch * len(lanes)
    marks, since = charts.time_axis(x, height, charts.hour_ticks(end)), dict[str, tuple[float, int, int]]()
    for at, job, gpus, batch in outcome.changes:
        if job not in lanes:
            continue
        if job in since:
            start, had, size = since.pop(job)
            title = f"{job}: {had} GPUs" + (f", batch {size}" if size else "")
            title += f", {start / 3600:.2f} to {at / 3600:.2f} h"
            width, dark = max(0.5, x.at(at) - x.at(start)), f"{0.3 + 0.7 * had / largest:.2f}"
            bar = charts.rect("c0", x.at(start), lanes[job] * pitch, width, pitch - 1, title, **{"fill-opacity": dark})
            marks.append(bar)
        if gpus:
            since[job] = at, gpus, batch
    return charts.Chart(charts.WIDTH, height + charts.BELOW, f"jobs under {outcome.policy}", marks)
