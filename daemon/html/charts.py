"""Charts as inline SVG: axes, GPUs over time, a job's throughput against its GPUs, pauses. Pure, standard library only.

Promise: well-formed XML whatever a job is called; colours and text sizes come from the page's CSS, so that dark and
light work alike. Limit: rows lie within the window (`report_page.clipped`); no interaction but the tooltips that
browsers make of <title>.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

Row = Mapping[str, Any]

WIDTH = 1080
LEFT, RIGHT = 130, 20
LANE = 44
NAME = 18
"""Characters of a job's name beside its lane."""
COLOURS = 8
"""Colours of the page's CSS, c0 to c7; jobs take turns."""
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800)


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high` on the pixels from `first` to `last`."""

    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        """The pixel of a value; values outside end at the edge."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return self.first + min(1.0, max(0.0, share)) * (self.last - self.first)


def ticks(high: float, most: int = 5) -> list[float]:
    """Round numbers from 0 up to `high`, at most `most` above 0."""
    if high <= 0:
        return [0.0]
    raw = high / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    return [step * index for index in range(int(high / step * 1.0001) + 1)]


def time_ticks(start: float, end: float, most: int = 8) -> list[tuple[float, str]]:
    """Round local times between two, with their labels."""
    step = next((step for step in _STEPS if (end - start) / step <= most), None) or (end - start) / most
    offset = datetime.fromtimestamp(start).astimezone().utcoffset()
    zone = offset.total_seconds() if offset else 0.0
    form = "%d %b" if step >= 86400 else "%d %b %H:%M" if end - start > 86400 else "%H:%M" if step >= 60 else "%H:%M:%S"
    first = math.ceil((start + zone) / step) * step - zone
    count = int((end - first) // step) + 1
    return [(at, datetime.fromtimestamp(at).strftime(form)) for at in (first + step * i for i in range(count))]


def picture(width: float, height: float, name: str, parts: Iterable[str]) -> str:
    """One SVG with a name for who cannot see it; a wide one scrolls sideways where the screen is narrow, to be read."""
    label = escape(name, quote=True)
    drawn = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>'
    )
    return f'<div class="scroll wide">{drawn}</div>' if width == WIDTH else drawn


def label(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    """A text."""
    style = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{style}>{escape(words)}</text>'


def timeline(rows: Sequence[Row], names: Mapping[int, str], start: float, end: float) -> str:
    """A lane per job: what it held over time, as high as its GPUs; a mark where a resize paused it."""
    jobs = list(dict.fromkeys(row["job_id"] for row in rows))
    x, top = Axis(start, end, LEFT, WIDTH - RIGHT), max((row["gpus"] for row in rows), default=1)
    height = LANE * len(jobs)
    parts = times(x, height)
    for index, job in enumerate(jobs):
        floor = LANE * (index + 1)
        parts.append(f'<path class="grid" d="M{LEFT} {floor}H{WIDTH - RIGHT}"/>')
        full = names[job]
        short = full if len(full) <= NAME else full[: NAME - 1] + "…"
        parts.append(f"<g><title>{escape(full)}</title>{label(LEFT - 8, floor - 18, short, 'end', 'name')}</g>")
        parts.append(label(LEFT - 8, floor - 5, str(job), "end"))
        mine = [row for row in rows if row["job_id"] == job]
        parts += [part for row in mine for part in _held(row, x, floor, top, index)]
    return picture(WIDTH, height + 26, "GPUs of every job over time", parts)


def _held(row: Row, x: Axis, floor: float, top: int, index: int) -> list[str]:
    left, right = x.at(row["start"]), x.at(row["end"])
    tall, width = max(4.0, (LANE - 8) * row["gpus"] / max(1, top)), max(0.8, right - left)
    told = f"{row['gpus']} GPUs on {row['node_list']}, batch {row['batch']}, {row['steps']} steps: {row['reason_text']}"
    parts = [
        f'<rect class="c{index % COLOURS} held" x="{left:.1f}" y="{floor - tall:.1f}" width="{width:.1f}" '
        f'height="{tall:.1f}"><title>{escape(told)}</title></rect>'
    ]
    if width > 10 + 7 * len(str(row["gpus"])):
        inside = tall > 15
        place = floor - tall + 12 if inside else floor - tall - 3
        parts.append(label(left + 4, place, str(row["gpus"]), kind="in" if inside else ""))
    if row["pause_s"] and x.low < row["start"]:
        pause = f"paused for {row['pause_s']:.2f} s"
        parts.append(f'<path class="pause" d="M{left:.1f} {floor + 5}v-5"><title>{pause}</title></path>')
    return parts


def times(x: Axis, height: float) -> list[str]:
    parts = []
    for at, words in time_ticks(x.low, x.high):
        parts.append(f'<path class="grid" d="M{x.at(at):.1f} 0V{height:.0f}"/>')
        parts.append(label(x.at(at), height + 16, words, "middle"))
    return parts


def values(y: Axis, unit: str, left: float, right: float) -> list[str]:
    parts = []
    for value in ticks(y.high):
        parts.append(f'<path class="grid" d="M{left:.0f} {y.at(value):.1f}H{right:.0f}"/>')
        parts.append(label(left - 6, y.at(value) + 4, f"{value:g}", "end"))
    return [*parts, label(left - 6, y.last - 8, unit, "end")]


def stacked(rows: Sequence[Row], shown: Collection[int], capacity: Sequence[Row], start: float, end: float) -> str:
    """GPUs that train under the line of what elastic jobs may hold: the jobs `shown` one upon another, and what all
    together held behind them."""
    jobs = list(dict.fromkeys(row["job_id"] for row in rows if row["job_id"] in shown))
    drawn = [row for row in rows if row["job_id"] in shown]
    edges = sorted({start, end, *(row["start"] for row in drawn), *(row["end"] for row in drawn)})
    at = {edge: index for index, edge in enumerate(edges)}
    total, held = held_by_all(rows, start, end), dict[int, dict[int, int]]()
    for row in drawn:
        mine = held.setdefault(row["job_id"], {})
        for index in range(at[row["start"]], at[row["end"]]):
            mine[index] = mine.get(index, 0) + row["gpus"]
    top = max([1.0, *(gpus for _, gpus in total), *(point["gpus"] for point in capacity)])
    height = 230
    x, y = Axis(start, end, LEFT, WIDTH - RIGHT), Axis(0, top, height, 20)
    parts, floor = times(x, height) + values(y, "GPUs", LEFT, WIDTH - RIGHT), [0] * len(edges)
    if len(drawn) < len(rows):
        path = "".join(f"H{x.at(moment):.1f}V{y.at(gpus):.1f}" for moment, gpus in total)
        parts.append(
            f'<path class="others" d="M{x.at(start):.1f} {height}{path}V{height}z"><title>other jobs</title></path>'
        )
    for number, job in enumerate(jobs):
        shape = ""
        for index, gpus in sorted(held[job].items()):
            low, high = floor[index], floor[index] + gpus
            left, right = x.at(edges[index]), x.at(edges[index + 1])
            shape += f"M{left:.1f} {y.at(low):.1f}V{y.at(high):.1f}H{right:.1f}V{y.at(low):.1f}z"
            floor[index] = high
        parts.append(f'<path class="c{number % COLOURS}" d="{shape}"><title>job {job}</title></path>')
    parts.append(_steps(capacity, x, y, end))
    return picture(WIDTH, height + 26, "GPUs that train, all jobs", parts)


def held_by_all(rows: Iterable[Row], start: float, end: float, most: int = 1500) -> list[tuple[float, float]]:
    """(from when, GPUs held by all from then on), the last (end, 0). Of more than `most` changes, what is largest and
    what is left within each of as many stretches."""
    changes: dict[float, int] = {}
    for row in rows:
        changes[row["start"]] = changes.get(row["start"], 0) + row["gpus"]
        changes[row["end"]] = changes.get(row["end"], 0) - row["gpus"]
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


def _steps(points: Sequence[Row], x: Axis, y: Axis, end: float) -> str:
    if not points:
        return ""
    path = f"M{x.at(points[0]['at']):.1f} {y.at(points[0]['gpus']):.1f}"
    path += "".join(f"H{x.at(point['at']):.1f}V{y.at(point['gpus']):.1f}" for point in points[1:])
    return f'<path class="capacity" d="{path}H{x.at(end):.1f}"><title>GPUs that elastic jobs may hold</title></path>'


def scaling(job: Row, index: int) -> str:
    """Throughput against GPUs: measurements, the model's curve with one sigma about it, and linear scaling."""
    curve, seen = job["curve"], job["measured"]
    width, height, left = 340.0, 220.0, 56.0
    most = max([1, *(p["gpus"] for p in curve), *(m["gpus"] for m in seen)])
    upper = [p["samples_per_s"] * (1 + p["uncertainty"]) for p in curve]
    top = max([1e-9, *upper, *(m["samples_per_s"] for m in seen)])
    x, y = Axis(0, most * 1.05, left, width - 10), Axis(0, top * 1.08, height - 34, 26)
    parts = values(y, "samples/s", left, width - 10)
    parts += [label(x.at(v), height - 18, f"{v:g}", "middle") for v in ticks(most) if v == int(v)]
    parts.append(label(width - 10, height - 4, "GPUs", "end"))
    parts += _fitted(curve, x, y, most, index) if curve else []
    for point in seen:
        told = f"{point['gpus']} GPUs, batch {point['batch']}: {point['samples_per_s']:.4g} samples/s"
        told += f", {point['count']} report{'s' * (point['count'] != 1)}"
        place = f'cx="{x.at(point["gpus"]):.1f}" cy="{y.at(point["samples_per_s"]):.1f}"'
        size = min(7.0, 2.5 + math.sqrt(point["count"]) / 2)
        parts.append(f'<circle class="c{index % COLOURS} dot" {place} r="{size:.1f}"><title>{told}</title></circle>')
    return picture(width, height, f"throughput of job {job['job_id']} against its GPUs", parts)


def _fitted(curve: Sequence[Row], x: Axis, y: Axis, most: float, index: int) -> list[str]:
    first, colour = curve[0], index % COLOURS
    each = first["samples_per_s"] / first["gpus"]
    far = min(most, y.high / each)
    points = [(p["gpus"], p["samples_per_s"], p["uncertainty"]) for p in curve]
    upper = [(x.at(gpus), y.at(rate * (1 + sigma))) for gpus, rate, sigma in points]
    lower = [(x.at(gpus), y.at(rate * max(0.0, 1 - sigma))) for gpus, rate, sigma in points]
    linear = _line([(x.at(0), y.at(0)), (x.at(far), y.at(each * far))])
    return [
        f'<path class="linear" d="{linear}"><title>linear scaling</title></path>',
        f'<path class="c{colour} band" d="{_line([*upper, *reversed(lower)])}z"/>',
        f'<path class="s{colour} curve" d="{_line([(x.at(gpus), y.at(rate)) for gpus, rate, _ in points])}"/>',
    ]


def _line(points: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


def pauses(rows: Sequence[Row], start: float, end: float) -> str:
    """Every resize by when it was and how long training stood still."""
    found = [row for row in rows if row["pause_s"] and row["start"] >= start]
    colour = {job: index for index, job in enumerate(dict.fromkeys(row["job_id"] for row in rows))}
    height, top = 160, max((row["pause_s"] for row in found), default=1.0)
    x, y = Axis(start, end, LEFT, WIDTH - RIGHT), Axis(0, top * 1.1, height, 20)
    parts = times(x, height) + values(y, "seconds", LEFT, WIDTH - RIGHT)
    for row in found:
        told = escape(f"job {row['job_id']} to {row['gpus']} GPUs: {row['pause_s']:.2f} s ({row['reason']})")
        place = f'cx="{x.at(row["start"]):.1f}" cy="{y.at(row["pause_s"]):.1f}" r="5"'
        parts.append(f'<circle class="c{colour[row["job_id"]] % COLOURS} dot" {place}><title>{told}</title></circle>')
    return picture(WIDTH, height + 26, "pauses of resizes", parts)
