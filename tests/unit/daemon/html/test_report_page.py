"""The page of a report: what it says of an afternoon, that it is well formed, and that its axes can be read."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any
from xml.etree import ElementTree

import pytest
import sample_history

from slurm_elastic.daemon import reports
from slurm_elastic.daemon.html import charts, report_charts, report_page
from slurm_elastic.daemon.html.report_page import page
from slurm_elastic.daemon.html.stretches import clipped, used
from slurm_elastic.daemon.reports.acct import Allocation
from slurm_elastic.daemon.reports.record import read
from slurm_elastic.daemon.reports.usage import CapacityPoint, Usage
from slurm_elastic.db.store import Store

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
    """HTML and SVG are XML to the last tag, whatever a job is called; no script, no link, no picture from elsewhere."""
    text = page(report)
    root = ElementTree.fromstring(text)
    assert len(list(root.iter(f"{SVG}svg"))) == 6
    assert not {element.tag.rpartition("}")[2] for element in root.iter()} & {"script", "link", "img", "iframe", "a"}
    assert not re.search(r"url\(|@import|\son\w+=|https?://(?!www\.w3\.org)", text)
    assert sample_history.HOSTILE in {cell.text for cell in root.iter("td")}


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
    assert "".join(lane.itertext()) == sample_history.HOSTILE + sample_history.HOSTILE[:17] + "…"
    assert f"times in {datetime.fromtimestamp(report.end).astimezone().tzname()}" in text


def test_a_hundred_thousand_changes_are_drawn_as_few() -> None:
    """The peaks stay, and what was left when nothing more changed."""
    short = [replace(ALLOCATION, start=float(i), end=i + 0.5, gpus=1 + (i == 5000)) for i in range(10_000)]
    rows = clipped([*short, replace(ALLOCATION, start=0.0, end=20_000.0, gpus=3)], 0.0, 20_000.0)
    steps = report_charts.held_by_all(rows, 0.0, 20_000.0, 100)
    assert len(steps) < 210 and steps[-1] == (20_000.0, 0.0)
    assert max(gpus for _, gpus in steps) == 5.0 and steps == sorted(steps, key=lambda step: step[0])
    assert [gpus for at, gpus in steps if 10_100 < at < 20_000] == []
    assert [gpus for at, gpus in steps if at <= 10_100][-1] == 3.0


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
