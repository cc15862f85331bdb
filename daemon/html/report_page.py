"""The page of `selastic report --html`: key figures, charts and a table, in one file. Pure, standard library only.

Promise: no script, no link, nothing fetched: it opens anywhere, years later; well-formed XML whatever a job is called.
Limit: the charts show the MOST_JOBS jobs with the most GPU-hours, the figures and the table count all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from html import escape
from itertools import pairwise
from typing import Any

from ..text.tables import clean, number
from ..text.times import elapsed, span
from . import charts

MOST_JOBS = 40
MOST_CURVES = 12
Row = Mapping[str, Any]

_LIGHT = "--ink:#1d2433;--soft:#667085;--line:#e3e7ee;--paper:#fff;--card:#f6f8fb;--alarm:#c02626"
_DARK = "--ink:#e6e9ef;--soft:#98a2b3;--line:#2c3444;--paper:#12161f;--card:#1a202c;--alarm:#ff7b72"
_PALETTE = ("#2f6fb5", "#d1683f", "#2e9a6b", "#8a5cb8", "#c49a1a", "#1f9aa8", "#c2528b", "#6b7685")
STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}@media(prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    "body{font:15px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif;color:var(--ink);background:var(--paper);"
    "max-width:1120px;margin:2rem auto;padding:0 1rem}h1{font-size:1.6rem;margin:0}"
    "h2{font-size:1.1rem;margin:2.2rem 0 .6rem}"
    "p{color:var(--soft);margin:.2rem 0 .8rem}svg{display:block;width:100%;height:auto;overflow:visible}"
    "svg text{font-size:11px;fill:var(--soft)}svg text.name{font-size:12px;fill:var(--ink)}svg text.in{fill:#fff}"
    ".grid{stroke:var(--line);fill:none}.capacity{stroke:var(--ink);stroke-dasharray:5 4;fill:none}"
    ".linear{stroke:var(--soft);stroke-dasharray:2 4;fill:none}.pause{stroke:var(--alarm);stroke-width:1.5}"
    ".others{fill:var(--soft);fill-opacity:.35}.band{fill-opacity:.18}.curve{fill:none;stroke-width:2}.dot{stroke:var(--paper);stroke-width:1}"
    ".figures{display:grid;grid-template-columns:repeat(auto-fit,minmax(8rem,1fr));gap:.7rem;margin:1.2rem 0}"
    ".figures div{background:var(--card);border-radius:.5rem;padding:.7rem .9rem}"
    ".figures b{display:block;font-size:1.3rem}"
    ".figures span{color:var(--soft);font-size:.85rem}"
    ".curves{display:grid;grid-template-columns:repeat(auto-fill,minmax(20rem,1fr));gap:1rem}"
    ".curves figure{margin:0;background:var(--card);border-radius:.5rem;padding:.7rem}"
    "figcaption{font-weight:600;overflow-wrap:anywhere}.scroll{overflow-x:auto}.wide{overflow-y:hidden;"
    "padding-top:1px}.wide svg{min-width:44rem}summary{cursor:pointer;color:var(--soft);margin:.8rem 0}"
    "table{border-collapse:collapse;width:100%;"
    "font-size:.9rem;font-variant-numeric:tabular-nums}th,td{padding:.3rem .45rem;text-align:right;"
    "border-bottom:1px solid var(--line)}"
    "th{color:var(--soft);font-weight:500}td:nth-child(-n+4),th:nth-child(-n+4){text-align:left}td{white-space:nowrap}"
    "td:nth-child(2){max-width:16rem;overflow:hidden;text-overflow:ellipsis}"
    + "".join(f".c{i}{{fill:{colour}}}.s{i}{{stroke:{colour}}}" for i, colour in enumerate(_PALETTE))
    + "@media print{body{max-width:none;margin:0}.curves figure,tr,.figures div{break-inside:avoid}"
    "h2{break-after:avoid}"
    ".scroll{overflow:visible}.wide svg{min-width:0;max-height:23cm}table{font-size:.58rem}th,td{padding:.1rem .2rem}"
    ".figures{grid-template-columns:repeat(7,1fr);font-size:.7rem}.figures b{font-size:1rem}details{display:none}}"
)


def page(told: Row) -> str:
    """The HTML of an answer of /v1/report."""
    start, end = told["start"], told["end"]
    rows = clipped(told["allocations"], start, end)
    jobs = {job["job_id"]: job for job in told["jobs"]}
    start = min((row["start"] for row in rows), default=start)
    parts = [
        f"<h1>Elastic jobs</h1><p>{_when(start)} to {_when(end)}, times in {_zone(end)}</p>",
        _figures(rows, told["capacity"], end),
    ]
    if not rows:
        return _document([*parts, "<p>No elastic job has trained in this time.</p>"])
    parts += _charts(jobs, rows, told["capacity"], start, end)
    table = [_job(jobs[job], [row for row in rows if row["job_id"] == job]) for job in sorted(jobs)]
    return _document([*parts, _section("Jobs", ""), _table(table)])


def _charts(
    jobs: Mapping[int, Row], rows: Sequence[Row], capacity: Sequence[Row], start: float, end: float
) -> list[str]:
    hours = {job: sum(row["gpu_hours"] for row in rows if row["job_id"] == job) for job in jobs}
    shown = sorted(sorted(jobs, key=lambda job: -hours[job])[:MOST_JOBS])
    drawn = [row for row in rows if row["job_id"] in shown]
    names = {job: clean(jobs[job]["name"] or "") for job in shown}
    some = "" if len(shown) == len(jobs) else f" The {len(shown)} of {len(jobs)} jobs with the most GPU-hours."
    return [
        _section("What each job had", "As high as its GPUs; a red tick below is a resize that paused training." + some),
        charts.timeline(drawn, names, start, end),
        _section(
            "GPUs in training",
            "Dashed: what elastic jobs might hold, as far as a decision tells."
            + (f" Grey: the other {len(jobs) - len(shown)} jobs together." if some else ""),
        ),
        charts.stacked(rows, shown, capacity, start, end),
        _section(
            "Throughput against GPUs",
            "Dots: measured, larger for more reports. Line: the model that plans are made with, at as many samples per "
            "GPU as were measured last, shaded by one sigma. Dotted: linear scaling from the smallest size.",
        ),
        _curves([jobs[job] for job in shown], hours),
        _section("Pauses", "How long training stood still at each resize." + some),
        charts.pauses(drawn, start, end),
    ]


def _document(parts: Iterable[str]) -> str:
    head = f'<head><meta charset="utf-8"/><title>Elastic jobs</title><style>{STYLE}</style></head>'
    view = '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
    head = head.replace("<title>", view + "<title>")
    return f'<!DOCTYPE html>\n<html lang="en">{head}\n<body>\n' + "\n".join(parts) + "\n</body></html>\n"


def clipped(rows: Sequence[Row], start: float, end: float) -> list[dict[str, Any]]:
    """Rows cut to the window; hours are of what is left, samples and steps by its share of the whole row."""
    found = []
    for row in rows:
        left, right = max(start, row["start"]), min(end, end if row["end"] is None else row["end"])
        if right <= left:
            continue
        share = (right - left) / row["elapsed_s"] if row["elapsed_s"] else 1.0
        cut = {"start": left, "end": right, "elapsed_s": right - left, "gpu_hours": row["gpus"] * (right - left) / 3600}
        cut |= {"samples": row["samples"] * min(1.0, share), "pause_s": row["pause_s"] if left == row["start"] else 0.0}
        found.append({**row, **cut})
    return found


def used(rows: Iterable[Row], capacity: Sequence[Row], end: float) -> float | None:
    """Share of the GPU-hours that elastic jobs might have had in which they trained, from the first moment at which
    capacity is known; None: it never is."""
    ends = [point["at"] for point in capacity[1:]] + [end]
    might = sum(point["gpus"] * max(0.0, until - point["at"]) for point, until in zip(capacity, ends, strict=True))
    if not might:
        return None
    since = capacity[0]["at"]
    held = sum(row["gpus"] * max(0.0, row["end"] - max(since, row["start"])) for row in rows)
    return float(held / might)


def _figures(rows: Sequence[Row], capacity: Sequence[Row], end: float) -> str:
    jobs, pauses = {row["job_id"] for row in rows}, [row["pause_s"] for row in rows if row["pause_s"]]
    hours = sum(row["gpu_hours"] for row in rows)
    lost = sum(row["pause_s"] * row["gpus"] for row in rows) / 3600
    share = used(rows, capacity, end) if capacity else None
    figures = [
        (str(len(jobs)), "jobs"),
        (f"{hours:,.0f}" if hours >= 1000 else number(hours), "GPU-hours"),
        (
            "unknown" if share is None else f"{100 * min(1.0, share):.0f}%",
            "of the GPUs they might hold were in training",
        ),
        _samples(sum(row["samples"] for row in rows)),
        (str(len(pauses)), "resizes"),
        (f"{sorted(pauses)[len(pauses) // 2]:.2f} s" if pauses else "none", "median pause"),
        (_percent(lost / hours) if hours else "none", "of the GPU-hours lost to pauses"),
    ]
    tiles = "".join(f"<div><b>{escape(value)}</b><span>{escape(words)}</span></div>" for value, words in figures)
    return f'<div class="figures">{tiles}</div>'


def _samples(count: float) -> tuple[str, str]:
    for size, name in ((1e9, "billion "), (1e6, "million ")):
        if count >= size:
            return number(count / size), f"{name}samples trained on"
    return f"{count:,.0f}", "samples trained on"


def _curves(jobs: Sequence[Row], hours: Mapping[int, float]) -> str:
    """The first MOST_CURVES by GPU-hours, the others folded away."""
    measured = [(index, job) for index, job in enumerate(jobs) if job["measured"]]
    if not measured:
        return "<p>Nothing has been measured yet.</p>"
    order = sorted(measured, key=lambda entry: -hours[entry[1]["job_id"]])
    first = _figure_grid(entry for entry in measured if entry in order[:MOST_CURVES])
    if len(measured) <= MOST_CURVES:
        return first
    more = _figure_grid(entry for entry in measured if entry not in order[:MOST_CURVES])
    words = f"{len(measured) - MOST_CURVES} more, of jobs with fewer GPU-hours"
    return f"{first}<details><summary>{words}</summary>{more}</details>"


def _figure_grid(jobs: Iterable[tuple[int, Row]]) -> str:
    parts = []
    for index, job in jobs:
        name = escape(f"{job['job_id']} {clean(job['name'] or '')}")
        parts.append(f"<figure><figcaption>{name}</figcaption>{charts.scaling(job, index)}</figure>")
    return f'<div class="curves">{"".join(parts)}</div>'


def _job(job: Row, rows: Sequence[Row]) -> list[str]:
    pauses = [row["pause_s"] for row in rows if row["pause_s"]]
    seconds, hours = sum(row["elapsed_s"] for row in rows), sum(row["gpu_hours"] for row in rows)
    samples = sum(row["samples"] for row in rows)
    sizes = [rows[0]["gpus"], *(b["gpus"] for a, b in pairwise(rows) if a["gpus"] != b["gpus"])] if rows else []
    return [
        str(job["job_id"]), clean(job["name"] or ""), clean(job["user"] or ""), job["state"], elapsed(seconds),
        " → ".join(map(str, sizes[:3] + ["…"] * (len(sizes) > 6) + sizes[max(3, len(sizes) - 3):])),
        number(hours), f"{samples:,.0f}", number(samples / seconds if seconds else None), str(len(pauses)),
        span(sum(pauses)) if pauses else "",
    ]  # fmt: skip


_HEADS = (
    *("Job", "Name", "User", "State", "Trained", "GPUs", "GPU-hours", "Samples", "Samples/s"),
    *("Resizes", "Paused"),
)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in _HEADS)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _section(title: str, words: str) -> str:
    return f"<h2>{escape(title)}</h2>" + (f"<p>{escape(words)}</p>" if words else "")


def _percent(share: float) -> str:
    return "under 0.01%" if 0 < share < 1e-4 else f"{100 * share:.2f}%"


def _zone(at: float) -> str:
    here = datetime.fromtimestamp(at).astimezone()
    return f"{here.tzname()} ({here.strftime('%z')[:3]}:{here.strftime('%z')[3:5]})"


def _when(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%Y-%m-%d %H:%M")
