"""A self-contained page of a simulation: figures, what they rest on, use of the GPUs over time, every job's timeline.
No script, no link.

Promise: one file that opens anywhere, safe with any job id or program name. Limit: the timeline shows the first
MOST_JOBS jobs by submit time; the curves show all, as means over stretches of time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from html import escape
from itertools import pairwise

from ..html.charts import LEFT, RIGHT, WIDTH, Axis, label, picture, ticks, values
from ..html.report_page import STYLE as REPORT_STYLE
from .engine import Outcome
from .metrics import LEGEND, Summary, cells, gains

MOST_JOBS = 400
STRETCHES = 160
"""Of time, over each of which a curve gives the mean: changes by the minute would be a smear."""
DASHES = ("none", "7 3", "2 3", "9 3 2 3")
"""Of curves, in turn, so that they can be told apart without their colours."""
STYLE = REPORT_STYLE + (
    "td:nth-child(-n+4),th:nth-child(-n+4){text-align:right}td:first-child,th:first-child{text-align:left}"
    "li{color:var(--soft)}.key{display:inline-block;margin-right:1.4rem}"
    ".key svg{display:inline-block;width:2.2rem;height:.6rem;margin-right:.4rem}.curve{stroke-width:1.6}"
)
Points = list[tuple[float, float]]
"""(from when, value from then on)"""


def page(
    outcomes: Sequence[Outcome], rows: Sequence[Summary], notes: Sequence[str], without: Collection[str] = ()
) -> str:
    """The page's HTML."""
    end = max((o.end_s for o in outcomes), default=0.0) or 1.0
    gpus = outcomes[0].settings.gpus if outcomes else 1
    parts = [
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"/>',
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>',
        f"<title>selastic simulate</title><style>{STYLE}</style></head><body><h1>What would have come of it</h1>",
        f"<p>{escape(gains(rows))}</p>",
        _figures(rows, without),
        f"<p>{escape(LEGEND)}</p><h2>What it rests on</h2>",
        "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>",
        f"<h2>GPUs held</h2><p>Of {gpus}; means over {_span(end / STRETCHES)}, time since the first job.</p>",
        _chart([(o.policy, _held(o)) for o in outcomes], end, gpus, "GPUs"),
        "<h2>Jobs that wait</h2><p>Submitted and not started, means as above.</p>",
        _chart([(o.policy, _waiting(o)) for o in outcomes], end, 0, "jobs"),
    ]
    first = _first_jobs(outcomes)
    shown = min(MOST_JOBS, max((len(o.jobs) for o in outcomes), default=0))
    until = max((job.end_s for o in outcomes for job in o.jobs if job.trace.job_id in first), default=end)
    for outcome in outcomes:
        told = "A line per job, by submission, darker the more GPUs it holds; pointing at one tells."
        told += f" The first {shown} of {len(outcome.jobs)} jobs." if len(outcome.jobs) > shown else ""
        parts += [f"<h2>Jobs under {escape(outcome.policy)}</h2><p>{told}</p>", _timeline(outcome, first, until)]
    return "\n".join(parts) + "</body></html>\n"


def _span(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


def _figures(rows: Sequence[Summary], without: Collection[str]) -> str:
    head, *lines = cells(rows, without)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in line) + "</tr>" for line in lines)
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    return f'<div class="scroll"><table><tr>{titles}</tr>{body}</table></div>'


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


def _chart(series: Sequence[tuple[str, Points]], end: float, top: float, unit: str) -> str:
    """A curve for each series, with a key."""
    drawn = [(name, means(points, end)) for name, points in series]
    height = 220
    most = max([top, 1.0, *(value for _, each in drawn for value in each)])
    x, y = Axis(0, end, LEFT, WIDTH - RIGHT), Axis(0, most, height, 20)
    parts, keys = _hours(x, height) + values(y, unit, LEFT, WIDTH - RIGHT), list[str]()
    for index, (name, each) in enumerate(drawn):
        path = "".join(f"L{x.at((i + 0.5) * end / STRETCHES):.1f} {y.at(value):.1f}" for i, value in enumerate(each))
        look = f'class="s{index % 8} curve" stroke-dasharray="{DASHES[index % len(DASHES)]}"'
        parts.append(f'<path {look} d="M{path[1:]}"><title>{escape(name)}</title></path>')
        keys.append(f'<span class="key"><svg viewBox="0 0 35 8"><path {look} d="M0 4H35"/></svg>{escape(name)}</span>')
    return picture(WIDTH, height + 26, f"{unit} over time", parts) + f"<p>{''.join(keys)}</p>"


def _hours(x: Axis, height: float) -> list[str]:
    days = x.high > 5 * 86400
    unit, word = (86400.0, "d") if days else (3600.0, "h")
    parts = []
    for value in ticks(x.high / unit, 8):
        parts.append(f'<path class="grid" d="M{x.at(value * unit):.1f} 0V{height:.0f}"/>')
        parts.append(label(x.at(value * unit), height + 16, f"{value:g} {word}", "middle"))
    return parts


def _first_jobs(outcomes: Sequence[Outcome]) -> dict[str, int]:
    """The lane of each job that is drawn."""
    found = {job.trace.job_id: job.trace.submit_s for outcome in outcomes for job in outcome.jobs}
    return {job: lane for lane, job in enumerate(sorted(found, key=lambda job: found[job])[:MOST_JOBS])}


def _timeline(outcome: Outcome, lanes: dict[str, int], end: float) -> str:
    """A line per job, darker the more GPUs it holds; hovering tells the size and batch."""
    largest = max((gpus for _, job, gpus, _ in outcome.changes if job in lanes), default=1)
    pitch = max(3, min(12, 2400 // max(1, len(lanes))))
    x, height = Axis(0, end, LEFT, WIDTH - RIGHT), pitch * len(lanes)
    out, since = _hours(x, height), dict[str, tuple[float, int, int]]()
    for at, job, gpus, batch in outcome.changes:
        if job not in lanes:
            continue
        if job in since:
            start, had, size = since.pop(job)
            width = max(0.5, x.at(at) - x.at(start))
            title = f"{escape(job)}: {had} GPUs" + (f", batch {size}" if size else "")
            title += f", {start / 3600:.2f} to {at / 3600:.2f} h"
            out.append(
                f'<rect class="c0" x="{x.at(start):.1f}" y="{lanes[job] * pitch}" width="{width:.1f}" '
                f'height="{pitch - 1}" fill-opacity="{0.3 + 0.7 * had / largest:.2f}"><title>{title}</title></rect>'
            )
        if gpus:
            since[job] = at, gpus, batch
    return picture(WIDTH, height + 26, f"jobs under {outcome.policy}", out)
