"""Draws who holds how many GPUs over time: `demo.py --record run.json`, then `figure.py run.json demo-gpus.svg`.

Everything drawn comes from the record of one run. Limit: a step is late by what the demo polls, up to half a second.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

CAPACITY = 32
WIDTH, HEIGHT = 880, 400
LEFT, RIGHT, TOP, BOTTOM = 34, 8, 82, 62
GREY = "#76787c"
"""Text and lines: readable on GitHub's light and on its dark page."""
COLOURS = ("#0072b2", "#00805c", "#b8500a", "#76787c")
"""One for each job, in the order of their start; white numbers are readable on each."""
FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"
Sizes = list[tuple[float, int, int]]
"""Of one job: from when on it trained on how many GPUs, and on how many more its workers started."""


def sizes(record: list[dict[str, Any]]) -> dict[str, Sizes]:
    found: dict[str, Sizes] = {}
    for entry in record:
        if "job" in entry:
            found.setdefault(entry["job"], []).append((entry["s"], entry["trains"], entry["starting"]))
    return found


def at(job: Sizes, seconds: float) -> tuple[int, int]:
    """What a job trained on, and what was starting, at a time."""
    return next(((trains, starting) for since, trains, starting in reversed(job) if since <= seconds), (0, 0))


class Figure:
    """The picture of one record."""

    def __init__(self, record: list[dict[str, Any]]) -> None:
        self.jobs = sizes(record)
        self.chapters = [(entry["s"], entry["chapter"]) for entry in record if "chapter" in entry]
        self.end = max(entry["s"] for entry in record)
        self.times = sorted({since for job in self.jobs.values() for since, _, _ in job} | {self.end})

    def x(self, seconds: float) -> float:
        return round(LEFT + seconds * (WIDTH - LEFT - RIGHT) / self.end, 1)

    def y(self, gpus: float) -> float:
        return round(HEIGHT - BOTTOM - gpus * (HEIGHT - TOP - BOTTOM) / CAPACITY, 1)

    def draw(self) -> str:
        head = (
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' role='img' {FONT} font-size='13'>"
        )
        title = "<title>The GPUs that each job of the demo holds, over time</title>"
        bands = [self.band(*each) for each in zip(range(len(self.jobs)), COLOURS, strict=True)]
        return "\n".join([head, title, *self.axes(), *bands, *self.titles(), *self.legend(), "</svg>"]) + "\n"

    def axes(self) -> list[str]:
        found = []
        for gpus in range(0, CAPACITY + 1, 8):
            found.append(f"<path d='M{LEFT} {self.y(gpus)}H{WIDTH - RIGHT}' stroke='{GREY}' stroke-opacity='.35'/>")
            found.append(text(LEFT - 7, self.y(gpus) + 4, str(gpus), "end"))
        for seconds in range(0, int(self.end) + 1, 20):
            found.append(text(self.x(seconds), HEIGHT - BOTTOM + 18, f"{seconds} s" if seconds else "0", "middle"))
        return found

    def band(self, number: int, colour: str) -> str:
        """One job's GPUs over those of the jobs before it: full where they train, faint where workers start."""
        before, job = list(self.jobs.values())[:number], list(self.jobs.values())[number]
        full, pale, numbers = [], [], []
        for since, until in pairwise(self.times):
            base = sum(sum(at(other, since)) for other in before)
            trains, starting = at(job, since)
            full.append(self.box(since, until, base, trains))
            pale.append(self.box(since, until, base + trains, starting))
        for since, until, trains in runs(job, self.end):
            middle = (since + until) / 2
            if trains and self.x(until) - self.x(since) > 24:
                base = sum(sum(at(other, middle)) for other in before)
                numbers.append(text(self.x(middle), self.y(base + trains / 2) + 4, str(trains), "middle", "#fff"))
        shapes = [f"<path d='{''.join(full)}' fill='{colour}'/>"]
        shapes.append(f"<path d='{''.join(pale)}' fill='{colour}' fill-opacity='.4'/>")
        return "\n".join([*shapes, *numbers])

    def box(self, since: float, until: float, base: int, gpus: int) -> str:
        return f"M{self.x(since)} {self.y(base)}H{self.x(until)}V{self.y(base + gpus)}H{self.x(since)}Z" if gpus else ""

    def titles(self) -> list[str]:
        """What the demo did, above the time at which it did it."""
        found = []
        for number, (seconds, words) in enumerate(self.chapters):
            row = 14 + 18 * number
            title = words.split(",")[0].split(";")[0].split(" that ")[0]
            line = f"M{self.x(seconds)} {row + 5}V{HEIGHT - BOTTOM}"
            found.append(f"<path d='{line}' stroke='{GREY}' stroke-dasharray='2 3'/>")
            found.append(text(self.x(seconds), row, title, "start"))
        return found

    def legend(self) -> list[str]:
        found, left, foot = [], LEFT, HEIGHT - 12
        for name, colour in zip(self.jobs, COLOURS, strict=True):
            kind = "ordinary job" if name.startswith("rigid") else "elastic job"
            found.append(f"<rect x='{left}' y='{foot - 11}' width='13' height='13' fill='{colour}'/>")
            found.append(text(left + 19, foot, f"{kind} {name}", "start"))
            left += 168
        if any(starting for job in self.jobs.values() for _, _, starting in job):
            found.append(f"<rect x='{left}' y='{foot - 11}' width='13' height='13' fill='{GREY}' fill-opacity='.4'/>")
            found.append(text(left + 19, foot, "faint: workers start", "start"))
        return found


def runs(job: Sizes, end: float) -> list[tuple[float, float, int]]:
    """(from, until, GPUs) of each size that a job trained at."""
    found: list[tuple[float, float, int]] = []
    for (since, trains, _), (until, _, _) in pairwise([*job, (end, 0, 0)]):
        if found and found[-1][2] == trains:
            since = found.pop()[0]
        found.append((since, until, trains))
    return found


def text(x: float, y: float, words: str, anchor: str, colour: str = GREY) -> str:
    return f"<text x='{x}' y='{y}' text-anchor='{anchor}' fill='{colour}'>{escape(words)}</text>"


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(Figure(json.loads(source.read_text())).draw())
