"""The page of a report: what it says of an afternoon, that it is well formed, and that its axes can be read."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import sample_history

from slurm_elastic.client.report.command import clipped
from slurm_elastic.daemon import reports
from slurm_elastic.daemon.html import charts, report_page
from slurm_elastic.daemon.html.report_page import page, used
from slurm_elastic.daemon.reports.fairness import Fairness
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.history import Allocation, CapacityPoint, Usage
from slurm_elastic.protocol.answers.record import read

SVG = "{http://www.w3.org/2000/svg}"
ALLOCATION = read(
    Allocation,
    {"job_id": 7, "state": "RUNNING", "own": True, "gpus": 2}
    | {"start": 0.0, "end": None, "elapsed_s": 7200.0, "samples": 100, "pause_s": 1.0},
)


@pytest.fixture
def report(store: Store, viewer: Callable[..., Any]) -> Usage:
    """What the page is made from, for an admin."""
    sample_history.acted(store)
    return reports.usage(store, viewer(0, True), sample_history.END, start=sample_history.START)


def test_the_page_is_well_formed_and_fetches_nothing(report: Usage) -> None:
    """HTML and SVG are XML to the last tag, whatever a job is called; no link, no picture from elsewhere; a script that
    sorts, and only one."""
    text = page(report)
    root = ElementTree.fromstring(text)
    assert len(list(root.iter(f"{SVG}svg"))) == 6 + 3  # and the key's samples
    assert not {element.tag.rpartition("}")[2] for element in root.iter()} & {"link", "img", "iframe", "a"}
    assert len(list(root.iter("script"))) == 1
    assert not re.search(r"url\(|@import|\son\w+=|https?://(?!www\.w3\.org)", text)
    assert sample_history.HOSTILE in {cell.text for cell in root.iter("td")}


def test_texts_on_colours_can_be_read_and_colours_told_apart() -> None:
    """WCAG's contrast of 4.5 between each colour and the text on it; no two colours look the same to a deuteranope."""
    css = (Path(report_page.__file__).parent / "style.css").read_text()

    def linear(colour: str) -> list[float]:
        digits = colour if len(colour) == 6 else "".join(2 * digit for digit in colour)
        shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
        return [share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4 for share in shares]

    def luminance(colour: str) -> float:
        red, green, blue = linear(colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    found = re.findall(r"\.c(\d) \{ fill: #(\w+); \} \.s\1 \{ stroke: #\2; \} \.i\1 \{ fill: #(\w+); \}", css)
    assert [int(index) for index, *_ in found] == list(range(charts.COLOURS))
    for _, colour, ink in found:
        dark, light = sorted((luminance(colour), luminance(ink)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, colour

    def seen(colour: str) -> list[float]:  # Machado, Oliveira and Fernandes 2009, deuteranopia
        rows = ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881))
        return [max(0.0, sum(a * b for a, b in zip(row, linear(colour), strict=True))) ** (1 / 2.4) for row in rows]

    views = [seen(colour) for _, colour, _ in found]
    assert min(math.dist(a, b) for i, a in enumerate(views) for b in views[:i]) > 0.1


def test_the_page_draws_what_is_recorded(report: Usage) -> None:
    """A bar for each size a job has had, a mark for each pause, a dot for each measurement, the capacity's line."""
    root = ElementTree.fromstring(page(report))
    kinds = [element.get("class", "") for element in root.iter()]
    assert sum("held" in kind for kind in kinds) == len(report.allocations) == 10
    assert sum(kind == "pause" for kind in kinds) == 7
    assert sum("dot" in kind for kind in kinds) == 7 + sum(len(job.measured) for job in report.jobs)
    assert [(point.at - sample_history.START, point.gpus) for point in report.capacity] == [
        (0, 32), (5000, 24), (7000, 32),
    ]  # fmt: skip
    tiles = [element.text for element in root.iter("b")]
    assert tiles[0] == "3" and tiles[4] == "7" and tiles[2] == "74%"


def test_many_jobs_are_all_counted_and_few_drawn(report: Usage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more jobs than are drawn the others are one grey area behind, as high as all together; curves beyond the first
    are folded away; a long name is cut visibly, and whole in the tooltip; times name their zone."""
    monkeypatch.setattr(report_page, "MOST_JOBS", 2)
    monkeypatch.setattr(report_page, "MOST_CURVES", 1)
    text = page(report)
    root = ElementTree.fromstring(text)
    assert "Grey: the other 1 jobs together." in text and "1 more, of jobs with fewer GPU-hours" in text
    (others,) = (element for element in root.iter() if element.get("class") == "others")
    heights = {float(y) for y in re.findall(r"V([\d.]+)", others.get("d", ""))}
    axis = charts.Axis(0, 32, 230, 20)
    assert min(heights) == pytest.approx(axis.at(24 + 8 + 0), abs=0.1)
    assert len([e for d in root.iter("details") for e in d.iter("figure")]) == 1
    lane = next(group for group in root.iter(f"{SVG}g") if "…" in "".join(group.itertext()))
    assert "".join(lane.itertext()) == sample_history.HOSTILE + sample_history.HOSTILE[:16] + "…"
    assert f"times in {datetime.fromtimestamp(report.end).astimezone().tzname()}" in text


def test_a_hundred_thousand_changes_are_drawn_as_few() -> None:
    """The peaks stay, and what was left when nothing more changed."""
    short = [replace(ALLOCATION, start=float(i), end=i + 0.5, gpus=1 + (i == 5000)) for i in range(10_000)]
    rows = clipped([*short, replace(ALLOCATION, start=0.0, end=20_000.0, gpus=3)], 0.0, 20_000.0)
    steps = report_page.held_by_all(rows, 0.0, 20_000.0, 100)
    assert len(steps) < 210 and steps[-1] == (20_000.0, 0.0)
    assert max(gpus for _, gpus in steps) == 5.0 and steps == sorted(steps, key=lambda step: step[0])
    assert [gpus for at, gpus in steps if 10_100 < at < 20_000] == []
    assert [gpus for at, gpus in steps if at <= 10_100][-1] == 3.0


def test_fairness_is_on_the_page(report: Usage) -> None:
    """The figures that the record has; a page of a single user's cluster has no such part."""
    fairness = Fairness(between="user", groups=2, jain=0.9714, jain_gpus=1.0, ended=1, rho_mean=0.5, rho_worst=None)
    jobs = (replace(report.jobs[0], rho=1.234), *report.jobs[1:])
    root = ElementTree.fromstring(page(replace(report, fairness=fairness, jobs=jobs)))
    shown = {(each[0].text, each[1].text) for each in root.iter("div") if len(each) == 2 and each[0].tag == "b"}
    assert {
        ("0.971", "Jain's index of the progress of 2 users (1: even)"),
        ("0.50", "rho, mean of 1 job that ended"),
        ("unknown", "rho of the worst of them"),
    } <= shown
    assert "1.23" in {cell.text for cell in root.iter("td")}
    assert "Jain" not in page(replace(report, fairness=None))


def test_an_empty_time_is_a_page_too(store: Store, viewer: Callable[..., Any]) -> None:
    """Before any job there is nothing to draw, which is said."""
    text = page(reports.usage(store, viewer(0, True), 5.0, start=1.0))
    ElementTree.fromstring(text)
    assert "No elastic job has trained" in text


def test_hours_are_those_of_the_window() -> None:
    """A row that began before the window and goes on after it counts with the part that lies in it."""
    (cut,) = clipped([ALLOCATION], 1800.0, 5400.0)
    assert (cut.gpu_hours, cut.samples, cut.pause_s, cut.start) == (2.0, 50.0, 0.0, 1800.0)
    assert clipped([replace(ALLOCATION, end=100.0)], 1800.0, 5400.0) == []
    assert used([cut], [CapacityPoint(at=3600.0, gpus=8.0)], 5400.0) == 0.25


@pytest.mark.parametrize("high", [0.0, 1e-9, 0.37, 1, 7, 32, 999, 1e7])
def test_axes_have_few_round_marks(high: float) -> None:
    """From 0 to the largest value in at most five steps."""
    marks = charts.ticks(high)
    assert marks[0] == 0 and len(marks) <= 6 and marks[-1] <= high * 1.001


@pytest.mark.parametrize("seconds", [0.5, 20, 400, 9000, 200_000, 4e7])
def test_times_have_few_marks(seconds: float) -> None:
    """Whatever the window, a handful of labels within it."""
    marks = charts.time_ticks(1.79e9, 1.79e9 + seconds)
    assert len(marks) <= 9 and all(1.79e9 <= at <= 1.79e9 + seconds for at, _ in marks)
