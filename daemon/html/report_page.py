"""The page of `selastic report --html`: key figures, charts and a table of how jobs have gone over a window.

Promise: pure; no link, nothing fetched: the page opens anywhere, years later, and says the same without its one
script, which sorts the table. Limit: the charts show the MOST_JOBS jobs with the most GPU-hours, the figures and the
table count all; rows lie within the window (`client.report`).
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import groupby

from slurm_elastic.client.report.command import Stretch, clipped
from slurm_elastic.protocol.answers.history import CapacityPoint, CurvePoint, Fairness, Usage, UsageJob
from slurm_elastic.protocol.text.tables import clean, cut, folded, number
from slurm_elastic.protocol.text.times import elapsed, span

from . import charts

LANE = 44
NAME = 17
"""Of a job's name beside its lane, in the widths of a narrow letter."""


def timeline(rows: Sequence[Stretch], names: Mapping[int, str], start: float, end: float) -> charts.Chart:
    """A lane per job: what it held over time, as high as its GPUs; a mark where a resize paused it."""
    jobs = list(dict.fromkeys(row.job_id for row in rows))
    x, top = charts.horizontal(start, end), max((row.gpus for row in rows), default=1)
    height = LANE * len(jobs)
    marks = charts.time_axis(x, height, charts.time_ticks(start, end))
    for index, job in enumerate(jobs):
        floor = LANE * (index + 1)
        full = names[job]
        short = cut(full, NAME, "…")
        marks.append(charts.path("grid", f"M{charts.LEFT} {floor}H{charts.WIDTH - charts.RIGHT}"))
        marks.append(
            charts.Mark("g", {}, full, children=(charts.label(charts.LEFT - 8, floor - 18, short, "end", "name"),))
        )
        marks.append(charts.label(charts.LEFT - 8, floor - 5, str(job), "end"))
        marks += [mark for row in rows if row.job_id == job for mark in _held(row, x, floor, top, index)]
    return charts.Chart(charts.WIDTH, height + charts.BELOW, "GPUs of every job over time", marks)


def _held(row: Stretch, x: charts.Axis, floor: float, top: int, index: int) -> list[charts.Mark]:
    left, right = x.at(row.start), x.at(row.end)
    tall, width = max(4.0, (LANE - 8) * row.gpus / max(1, top)), max(0.8, right - left)
    held = row.allocation
    where = folded(held.node_list or "")
    title = f"{held.gpus} GPUs on {where}, batch {held.batch}, {held.steps} steps: {held.reason_text}"
    marks = [charts.rect(f"{charts.colour(index)} held", left, floor - tall, width, tall, title)]
    if width > 10 + 7 * len(str(row.gpus)):
        inside = tall > 15
        place = floor - tall + 12 if inside else floor - tall - 3
        marks.append(charts.label(left + 4, place, str(row.gpus), kind=charts.ink(index) if inside else None))
    if row.pause_s and x.low < row.start:
        marks.append(charts.path("pause", f"M{left:.1f} {floor + 5}v-5", f"paused for {row.pause_s:.2f} s"))
    return marks


def stacked(
    rows: Sequence[Stretch], shown: Collection[int], capacity: Sequence[CapacityPoint], start: float, end: float
) -> charts.Chart:
    """GPUs that train under the line of what elastic jobs may hold: the jobs `shown` one upon another, and what all
    together held behind them."""
    jobs = list(dict.fromkeys(row.job_id for row in rows if row.job_id in shown))
    drawn = [row for row in rows if row.job_id in shown]
    edges = sorted({start, end, *(row.start for row in drawn), *(row.end for row in drawn)})
    at = {edge: index for index, edge in enumerate(edges)}
    total, held = held_by_all(rows, start, end), dict[int, dict[int, int]]()
    for row in drawn:
        mine = held.setdefault(row.job_id, {})
        for index in range(at[row.start], at[row.end]):
            mine[index] = mine.get(index, 0) + row.gpus
    top = max([1.0, *(gpus for _, gpus in total), *(point.gpus for point in capacity)])
    height = 230
    x, y = charts.horizontal(start, end), charts.Axis(0, top, height, 20)
    marks = charts.time_axis(x, height, charts.time_ticks(start, end)) + charts.value_axis(y, "GPUs")
    if len(drawn) < len(rows):
        d = "".join(f"H{x.at(moment):.1f}V{y.at(gpus):.1f}" for moment, gpus in total)
        marks.append(charts.path("others", f"M{x.at(start):.1f} {height}{d}V{height}z", "other jobs"))
    floor = [0] * len(edges)
    for place, job in enumerate(jobs):
        shape = ""
        for index, gpus in sorted(held[job].items()):
            low, high = floor[index], floor[index] + gpus
            left, right = x.at(edges[index]), x.at(edges[index + 1])
            shape += f"M{left:.1f} {y.at(low):.1f}V{y.at(high):.1f}H{right:.1f}V{y.at(low):.1f}z"
            floor[index] = high
        marks.append(charts.path(charts.colour(place), shape, f"job {job}"))
    return charts.Chart(
        charts.WIDTH, height + charts.BELOW, "GPUs that train, all jobs", marks + _capacity(capacity, x, y)
    )


def held_by_all(rows: Iterable[Stretch], start: float, end: float, most: int = 1500) -> list[charts.Point]:
    """(from when, GPUs held by all from then on), the last (end, 0). Of more than `most` changes, what is largest and
    what is left within each of as many stretches."""
    changes: dict[float, int] = {}
    for row in rows:
        changes[row.start] = changes.get(row.start, 0) + row.gpus
        changes[row.end] = changes.get(row.end, 0) - row.gpus
    steps, gpus = [(start, 0.0)], 0
    for moment in sorted(changes):
        gpus += changes[moment]
        steps.append((moment, float(gpus)))
    if len(steps) > most:
        width, slots = (end - start) / most, dict[int, tuple[float, float]]()
        for moment, level in steps:
            slot = int((moment - start) / width)
            slots[slot] = max(slots.get(slot, (0.0, 0.0))[0], level), level
        steps = []
        for slot, (peak, last) in sorted(slots.items()):
            steps += [(start + slot * width, peak), (min(end, start + (slot + 1) * width), last)]
    return [*steps, (end, 0.0)]


def _capacity(points: Sequence[CapacityPoint], x: charts.Axis, y: charts.Axis) -> list[charts.Mark]:
    if not points:
        return []
    d = f"M{x.at(points[0].at):.1f} {y.at(points[0].gpus):.1f}"
    d += "".join(f"H{x.at(point.at):.1f}V{y.at(point.gpus):.1f}" for point in points[1:])
    return [charts.path("capacity", f"{d}H{x.last:.1f}", "GPUs that elastic jobs may hold")]


def scaling(job: UsageJob, index: int) -> charts.Chart:
    """Throughput against GPUs: measurements, the model's curve with one sigma about it, and linear scaling."""
    curve, seen = job.curve, job.measured
    width, height, left = 340, 220, 56
    most = max([1, *(p.gpus for p in curve), *(m.gpus for m in seen)])
    upper = [p.samples_per_s * (1 + p.uncertainty) for p in curve]
    top = max([1e-9, *upper, *(m.samples_per_s for m in seen)])
    x, y = charts.Axis(0, most * 1.05, left, width - 10), charts.Axis(0, top * 1.08, height - 34, 26)
    marks = charts.value_axis(y, "samples/s", left, width - 10)
    marks += [charts.label(x.at(v), height - 18, f"{v:g}", "middle") for v in charts.ticks(most) if v == int(v)]
    marks.append(charts.label(width - 10, height - 4, "GPUs", "end"))
    marks += _fitted(curve, x, y, most, index) if curve else []
    for point in seen:
        title = f"{point.gpus} GPUs, batch {point.batch}: {point.samples_per_s:.4g} samples/s"
        title += f", {point.count} report{'s' * (point.count != 1)}"
        radius = min(7.0, 2.5 + math.sqrt(point.count) / 2)
        marks.append(charts.dot(index, x.at(point.gpus), y.at(point.samples_per_s), radius, title))
    return charts.Chart(width, height, f"throughput of job {job.job_id} against its GPUs", marks)


def _fitted(curve: Sequence[CurvePoint], x: charts.Axis, y: charts.Axis, most: float, index: int) -> list[charts.Mark]:
    first = curve[0]
    each = first.samples_per_s / first.gpus
    far = min(most, y.high / each)
    points = [(p.gpus, p.samples_per_s, p.uncertainty) for p in curve]
    upper = [(x.at(gpus), y.at(rate * (1 + sigma))) for gpus, rate, sigma in points]
    lower = [(x.at(gpus), y.at(rate * max(0.0, 1 - sigma))) for gpus, rate, sigma in points]
    return [
        charts.path("linear", charts.line([(x.at(0), y.at(0)), (x.at(far), y.at(each * far))]), "linear scaling"),
        charts.path(f"{charts.colour(index)} band", charts.line([*upper, *reversed(lower)]) + "z"),
        charts.path(
            f"s{index % charts.COLOURS} curve", charts.line([(x.at(gpus), y.at(rate)) for gpus, rate, _ in points])
        ),
    ]


def pauses(rows: Sequence[Stretch], start: float, end: float) -> charts.Chart:
    """Every resize by when it was and how long training was paused."""
    found = [row for row in rows if row.pause_s and row.start >= start]
    order = {job: index for index, job in enumerate(dict.fromkeys(row.job_id for row in rows))}
    height, top = 160, max((row.pause_s for row in found), default=1.0)
    x, y = charts.horizontal(start, end), charts.Axis(0, top * 1.1, height, 20)
    marks = charts.time_axis(x, height, charts.time_ticks(start, end)) + charts.value_axis(y, "seconds")
    for row in found:
        title = f"job {row.job_id} to {row.gpus} GPUs: {row.pause_s:.2f} s ({row.allocation.reason})"
        marks.append(charts.dot(order[row.job_id], x.at(row.start), y.at(row.pause_s), 5, title))
    return charts.Chart(charts.WIDTH, height + charts.BELOW, "pauses of resizes", marks)


MOST_JOBS = 40
MOST_CURVES = 12
Curve = tuple[str, charts.Chart]
"""A job's name and its chart."""
HEAD = (
    *("Job", "Name", "User", "State", "Trained", "GPUs", "GPU-hours", "Samples", "Samples/s"),
    *("Resizes", "Paused", "Rho"),
)


def page(usage: Usage) -> str:
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
    return charts.render(
        "report.html",
        time=shown_time(usage, rows),
        figures=key_figures(usage, rows),
        fairness=fairness_figures(usage.fairness) if usage.fairness else [],
        drawn=len(shown),
        timeline=timeline(drawn, {job: clean(jobs[job].name or "") for job in shown}, start, end),
        stacked=stacked(rows, shown, usage.capacity, start, end),
        key=[
            (f"{job} {clean(jobs[job].name or '')}", charts.sample(index, f"job {job}"))
            for index, job in enumerate(dict.fromkeys(row.job_id for row in drawn))
        ],
        curves=curves,
        more_curves=more_curves,
        pauses=pauses(drawn, start, end),
        head=HEAD,
        jobs=[_job(jobs[job], mine) for job, mine in by_job.items()] if rows else [],
    )


def _curves(jobs: Sequence[UsageJob], hours: Mapping[int, float]) -> tuple[list[Curve], list[Curve]]:
    """The MOST_CURVES jobs with the most GPU-hours, and the others; of both those that were measured."""
    measured = [(index, job) for index, job in enumerate(jobs) if job.measured]
    first = {job.job_id for _, job in sorted(measured, key=lambda entry: -hours[entry[1].job_id])[:MOST_CURVES]}
    made = [(job.job_id, (f"{job.job_id} {clean(job.name or '')}", scaling(job, index))) for index, job in measured]
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


Figure = tuple[str, str]
"""A value, and what it is."""


def used(rows: Iterable[Stretch], capacity: Sequence[CapacityPoint], end: float) -> float | None:
    """Share of the GPU-hours that elastic jobs might have had in which they trained, from the first moment at which
    capacity is known; None: it never is."""
    ends = [point.at for point in capacity[1:]] + [end]
    might = sum(point.gpus * max(0.0, until - point.at) for point, until in zip(capacity, ends, strict=True))
    if not might:
        return None
    since = capacity[0].at
    return sum(row.gpus * max(0.0, row.end - max(since, row.start)) for row in rows) / might


def key_figures(usage: Usage, rows: Sequence[Stretch]) -> list[Figure]:
    """Of the jobs shown; rows: their allocations, cut to the window."""
    jobs, pauses = {row.job_id for row in rows}, [row.pause_s for row in rows if row.pause_s]
    hours = sum(row.gpu_hours for row in rows)
    lost = sum(row.pause_s * row.gpus for row in rows) / 3600
    share = used(rows, usage.capacity, usage.end) if usage.capacity else None
    return [
        (str(len(jobs)), "jobs"),
        (f"{hours:,.0f}" if hours >= 1000 else number(hours), "GPU-hours"),
        (
            "unknown" if share is None else f"{100 * min(1.0, share):.0f}%",
            "of the GPUs they might hold were in training",
        ),
        _samples(sum(row.samples for row in rows)),
        (str(len(pauses)), "resizes"),
        (f"{sorted(pauses)[len(pauses) // 2]:.2f} s" if pauses else "none", "median pause"),
        (_percent(lost / hours) if hours else "none", "of the GPU-hours lost to pauses"),
    ]


def fairness_figures(fairness: Fairness) -> list[Figure]:
    """Between all whose jobs shared the GPUs."""
    ended = f"{fairness.ended} {'job' if fairness.ended == 1 else 'jobs'} that ended"
    return [
        (_known(fairness.jain, 3), f"Jain's index of the progress of {fairness.groups} {fairness.between}s (1: even)"),
        (_known(fairness.jain_gpus, 3), "Jain's index of their GPUs"),
        (_known(fairness.rho_mean, 2), f"rho, mean of {ended}"),
        (_known(fairness.rho_worst, 2), "rho of the worst of them"),
    ]


def first_moment(usage: Usage, rows: Sequence[Stretch]) -> float:
    """When the first job shown trained in the window."""
    return min((row.start for row in rows), default=usage.start)


def shown_time(usage: Usage, rows: Sequence[Stretch]) -> str:
    """From when to when, in words."""
    here = datetime.fromtimestamp(usage.end).astimezone()
    zone = f"{here.tzname()} ({here.strftime('%z')[:3]}:{here.strftime('%z')[3:5]})"
    return f"{_when(first_moment(usage, rows))} to {_when(usage.end)}, times in {zone}"


def _known(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"


def _samples(count: float) -> Figure:
    for size, name in ((1e9, "billion "), (1e6, "million ")):
        if count >= size:
            return number(count / size), f"{name}samples trained on"
    return f"{count:,.0f}", "samples trained on"


def _percent(share: float) -> str:
    return "under 0.01%" if 0 < share < 1e-4 else f"{100 * share:.2f}%"


def _when(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
