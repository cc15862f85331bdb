"""What charts are made of: axes with round marks, and the shapes of an SVG as data that templates draw; and pages from
the templates in this folder, one self-contained HTML file each, with the style in it.

Promise: a shape holds text as it is, and templates/parts.html escapes it, as every value is escaped: no name can become
markup. A value that a template names and nobody gives is an error. Colours and text sizes come from style.css, so that
dark and light work alike. Limit: no interaction but the tooltips that browsers make of a title; needs jinja2: import it
only where a page is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

WIDTH = 1080
LEFT, RIGHT = 160, 20
BELOW = 26
"""Room for the labels of the horizontal axis."""
COLOURS = 8
"""Colours of style.css, c0 to c7 (areas), s0 to s7 (lines) and i0 to i7 (texts on areas); jobs take turns."""
_TIME_STEPS = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800),
)
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Mark:
    """An element of an SVG: a shape with a tooltip, a text, or a group."""

    tag: str
    attributes: dict[str, Any]
    title: str = ""
    text: str = ""
    children: tuple[Mark, ...] = ()


@dataclass(frozen=True, slots=True)
class Chart:
    """An SVG. `name` is for readers who cannot see it."""

    width: float
    height: float
    name: str
    marks: Sequence[Mark]


@dataclass(frozen=True, slots=True)
class Axis:
    """Values from `low` to `high` on the pixels from `first` to `last`."""

    low: float
    high: float
    first: float
    last: float

    def at(self, value: float) -> float:
        """The pixel of a value, to a tenth; values outside end at the edge."""
        share = (value - self.low) / ((self.high - self.low) or 1.0)
        return round(self.first + min(1.0, max(0.0, share)) * (self.last - self.first), 1)


def horizontal(low: float, high: float) -> Axis:
    """The time axis of a chart as wide as the page."""
    return Axis(low, high, LEFT, WIDTH - RIGHT)


def colour(index: int) -> str:
    """The class of an area's colour."""
    return f"c{index % COLOURS}"


def ink(index: int) -> str:
    """The class of a text on an area of that colour."""
    return f"i{index % COLOURS}"


def path(kind: str, d: str, title: str = "", **attributes: Any) -> Mark:
    """A path of SVG's own path data."""
    return Mark("path", {"class": kind, "d": d, **attributes}, title)


def rect(kind: str, x: float, y: float, width: float, height: float, title: str, **attributes: Any) -> Mark:
    place = {"x": x, "y": round(y, 1), "width": round(width, 1), "height": round(height, 1)}
    return Mark("rect", {"class": kind, **place, **attributes}, title)


def sample(index: int, name: str) -> Chart:
    return Chart(20, 10, name, [Mark("rect", {"class": colour(index), "width": 20, "height": 10})])


def dot(index: int, x: float, y: float, radius: float, title: str) -> Mark:
    """A measurement."""
    return Mark("circle", {"class": f"{colour(index)} dot", "cx": x, "cy": y, "r": round(radius, 1)}, title)


def label(x: float, y: float, text: str, anchor: str = "start", kind: str | None = None) -> Mark:
    return Mark("text", {"x": round(x, 1), "y": round(y, 1), "text-anchor": anchor, "class": kind}, text=text)


def line(points: Iterable[Point]) -> str:
    """Path data: straight lines from point to point."""
    return "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)


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
    step = next((step for step in _TIME_STEPS if (end - start) / step <= most), None) or (end - start) / most
    offset = datetime.fromtimestamp(start).astimezone().utcoffset()
    zone = offset.total_seconds() if offset else 0.0
    form = "%d %b" if step >= 86400 else "%d %b %H:%M" if end - start > 86400 else "%H:%M" if step >= 60 else "%H:%M:%S"
    first = math.ceil((start + zone) / step) * step - zone
    count = int((end - first) // step) + 1
    return [(at, datetime.fromtimestamp(at).strftime(form)) for at in (first + step * i for i in range(count))]


def hour_ticks(end: float) -> list[tuple[float, str]]:
    """Round hours, or days, from 0 to `end` seconds, with their labels."""
    unit, word = (86400.0, "d") if end > 5 * 86400 else (3600.0, "h")
    return [(value * unit, f"{value:g} {word}") for value in ticks(end / unit, 8)]


def time_axis(x: Axis, height: float, marks: Iterable[tuple[float, str]]) -> list[Mark]:
    """Grid lines and labels at these times."""
    drawn = []
    for at, text in marks:
        drawn.append(path("grid", f"M{x.at(at):.1f} 0V{height:.0f}"))
        drawn.append(label(x.at(at), height + 16, text, "middle"))
    return drawn


def value_axis(y: Axis, unit: str, left: float = LEFT, right: float = WIDTH - RIGHT) -> list[Mark]:
    """Grid lines and labels at round values, the unit above them."""
    drawn = []
    for value in ticks(y.high):
        drawn.append(path("grid", f"M{left:.0f} {y.at(value):.1f}H{right:.0f}"))
        drawn.append(label(left - 6, y.at(value) + 4, f"{value:g}", "end"))
    return [*drawn, label(left - 6, y.last - 8, unit, "end")]


def render(template: str, **values: object) -> str:
    """The page of a template in templates/."""
    return _environment().get_template(f"templates/{template}").render(values)


@cache
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
