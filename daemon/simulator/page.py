"""A self-contained page of a simulation: figures, use of the GPUs over time, every job's timeline. No script, no link.

Promise: one file that opens anywhere, safe with any job id or program name. Limit: the timeline shows the first
MOST_JOBS jobs by submit time; the curves show all.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from html import escape

from .engine import Outcome
from .metrics import LEGEND, Summary, cells, gains

MOST_JOBS = 400
WIDTH, LEFT = 1100, 60
STYLE = """body{font:14px/1.5 system-ui,sans-serif;margin:2em auto;max-width:1200px;color:#222;background:#fff}
table{border-collapse:collapse}td,th{padding:.2em .7em;text-align:right;border-bottom:1px solid #ddd}
td:first-child,th:first-child{text-align:left}svg{display:block;margin:.5em 0}text{font-size:11px;fill:#555}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}td,th{border-color:#444}text{fill:#aaa}}"""
COLOURS = ("#3b6fb6", "#c8553d", "#3f8f5b", "#8a63a8", "#b58900", "#2a9d9d", "#8c564b", "#7f7f7f")


def page(
    outcomes: Sequence[Outcome], rows: Sequence[Summary], notes: Sequence[str], without: Collection[str] = ()
) -> str:
    """The page's HTML."""
    end = max((o.end_s for o in outcomes), default=0.0) or 1.0
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>selastic simulate</title>",
        f"<style>{STYLE}</style><h1>What would have come of it</h1>",
        _figures(rows, without),
        f"<p>{escape(gains(rows))}</p><p>{escape(LEGEND)}</p>",
        "<h2>What it rests on</h2>",
        "<ul>" + "".join(f"<li>{escape(note)}</li>" for note in notes) + "</ul>",
        "<h2>Jobs completed</h2>",
        _chart([(o.policy, _completions(o)) for o in outcomes], end, max((len(o.jobs) for o in outcomes), default=1)),
        "<h2>GPUs held</h2>",
        _chart([(o.policy, _held(o)) for o in outcomes], end, outcomes[0].settings.gpus if outcomes else 1),
    ]
    for outcome in outcomes:
        parts.append(f"<h2>Allocations: {escape(outcome.policy)}</h2>{_timeline(outcome, end)}")
    return "\n".join(parts) + "</html>\n"


def _figures(rows: Sequence[Summary], without: Collection[str]) -> str:
    head, *lines = cells(rows, without)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in line) + "</tr>" for line in lines)
    titles = "".join(f"<th>{escape(title)}</th>" for title in head)
    return f"<div class=scroll><table><tr>{titles}</tr>{body}</table></div>"


def _completions(outcome: Outcome) -> list[tuple[float, float]]:
    ends = sorted(job.end_s for job in outcome.jobs if job.end_s >= 0)
    return [(at, float(i + 1)) for i, at in enumerate(ends)]


def _held(outcome: Outcome) -> list[tuple[float, float]]:
    holds, total, out = dict[str, int](), 0, list[tuple[float, float]]()
    for at, job, gpus, _ in outcome.changes:
        total += gpus - holds.get(job, 0)
        holds[job] = gpus
        if out and out[-1][0] == at:
            out.pop()
        out.append((at, float(total)))
    return out


def _chart(series: Sequence[tuple[str, list[tuple[float, float]]]], end: float, top: int) -> str:
    """Step curves with a legend."""
    height, draw = 220, WIDTH - LEFT
    out = [f'<svg viewBox="0 0 {WIDTH} {height + 40}" width="100%" role="img">']
    out.append(_axis(end, height, lambda at: LEFT + at / end * draw))
    out.append(f'<text x="0" y="12">{top}</text><text x="0" y="{height}">0</text>')
    for i, (label, points) in enumerate(series):
        colour, path = COLOURS[i % len(COLOURS)], [f"M{LEFT} {height}"]
        for at, value in _thinned(points):
            path.append(f"H{LEFT + at / end * draw:.1f}V{height - value / max(1, top) * (height - 10):.1f}")
        out.append(f'<path d="{"".join(path)}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out.append(f'<rect x="{LEFT + 150 * i}" y="{height + 24}" width="10" height="10" fill="{colour}"/>')
        out.append(f'<text x="{LEFT + 14 + 150 * i}" y="{height + 33}">{escape(label)}</text>')
    return "".join(out) + "</svg>"


def _thinned(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most a few thousand points: more than the page has pixels."""
    step = max(1, len(points) // 3000)
    return points[::step] + points[-1:]


def _axis(end: float, height: int, x: Callable[[float], float]) -> str:
    marks = "".join(
        f'<text x="{x(end * i / 6):.0f}" y="{height + 14}">{end * i / 6 / 3600:.1f} h</text>' for i in range(6)
    )
    return f'<path d="M{LEFT} {height}H{WIDTH}" stroke="#888" fill="none"/>{marks}'


def _timeline(outcome: Outcome, end: float) -> str:
    """A line per job, thicker and darker the more GPUs it holds; hovering tells the size and batch."""
    jobs = sorted(outcome.jobs, key=lambda j: j.trace.submit_s)[:MOST_JOBS]
    row = {job.trace.job_id: i for i, job in enumerate(jobs)}
    largest = max((gpus for _, _, gpus, _ in outcome.changes), default=1)
    pitch, draw = max(3, min(12, 2400 // max(1, len(jobs)))), WIDTH - LEFT
    out = [f'<svg viewBox="0 0 {WIDTH} {pitch * len(jobs) + 30}" width="100%" role="img">']
    since: dict[str, tuple[float, int, int]] = {}
    for at, job, gpus, batch in outcome.changes:
        if job not in row:
            continue
        if job in since:
            start, had, size = since.pop(job)
            x, width = LEFT + start / end * draw, max(0.3, (at - start) / end * draw)
            shade = 0.25 + 0.75 * had / largest
            title = f"{escape(job)}: {had} GPUs, batch {size}, {start / 3600:.2f} to {at / 3600:.2f} h"
            out.append(
                f'<rect x="{x:.1f}" y="{row[job] * pitch}" width="{width:.1f}" height="{pitch - 1}" fill="#3b6fb6" '
                f'fill-opacity="{shade:.2f}"><title>{title}</title></rect>'
            )
        if gpus:
            since[job] = at, gpus, batch
    out.append(_axis(end, pitch * len(jobs), lambda at: LEFT + at / end * draw))
    note = "" if len(outcome.jobs) <= MOST_JOBS else f"<p>The first {MOST_JOBS} of {len(outcome.jobs)} jobs.</p>"
    return "".join(out) + "</svg>" + note
