"""`selastic report` and `selastic advise`: what they say of an afternoon, to whom, and that the page is well formed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import sample_history

from slurm_elastic.daemon import reports
from slurm_elastic.daemon.cli import main, options
from slurm_elastic.daemon.cli.commands import advise
from slurm_elastic.daemon.html import charts, report_charts, report_page
from slurm_elastic.daemon.html.report_page import clipped, page, used
from slurm_elastic.daemon.models.cache import observation
from slurm_elastic.daemon.optimizer.models.shipped_prior import DEFAULT
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import routes
from slurm_elastic.protocol.client import Client
from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.routes import Route, WindowQuery

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def course(store: Store, viewer: Callable[..., Any]) -> dict[str, Any]:
    """The facts of the page, for an admin."""
    sample_history.acted(store)
    return reports.course(store, viewer(0, True), sample_history.END, start=sample_history.START)


def test_the_page_is_well_formed_and_fetches_nothing(course: dict[str, Any]) -> None:
    """HTML and SVG are XML to the last tag, whatever a job is called; no script, no link, no picture from elsewhere."""
    text = page(course)
    root = ElementTree.fromstring(text)
    assert len(list(root.iter(f"{SVG}svg"))) == 6
    assert not {element.tag.rpartition("}")[2] for element in root.iter()} & {"script", "link", "img", "iframe", "a"}
    assert not re.search(r"url\(|@import|\son\w+=|https?://(?!www\.w3\.org)", text)
    assert sample_history.HOSTILE in {cell.text for cell in root.iter("td")}


def test_the_page_draws_what_is_recorded(course: dict[str, Any]) -> None:
    """A bar for each size a job has had, a mark for each pause, a dot for each measurement, the capacity's line."""
    root = ElementTree.fromstring(page(course))
    kinds = [element.get("class", "") for element in root.iter()]
    assert sum("held" in kind for kind in kinds) == len(course["allocations"]) == 10
    assert sum(kind == "pause" for kind in kinds) == 7
    assert sum("dot" in kind for kind in kinds) == 7 + sum(len(job["measured"]) for job in course["jobs"])
    assert [(point["at"] - sample_history.START, point["gpus"]) for point in course["capacity"]] == [
        (0, 32), (5000, 24), (7000, 32),
    ]  # fmt: skip
    tiles = [element.text for element in root.iter("b")]
    assert tiles[0] == "3" and tiles[4] == "7" and tiles[2] == "74%"


def test_many_jobs_are_all_counted_and_few_drawn(course: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of more jobs than are drawn the others are one grey area behind, as high as all together; curves beyond the first
    are folded away; a long name is cut visibly, and whole in the tooltip; times name their zone."""
    monkeypatch.setattr(report_page, "MOST_JOBS", 2)
    monkeypatch.setattr(report_page, "MOST_CURVES", 1)
    text = page(course)
    root = ElementTree.fromstring(text)
    assert "Grey: the other 1 jobs together." in text and "1 more, of jobs with fewer GPU-hours" in text
    (others,) = (element for element in root.iter() if element.get("class") == "others")
    heights = {float(y) for y in re.findall(r"V([\d.]+)", others.get("d", ""))}
    axis = charts.Axis(0, 32, 230, 20)
    assert min(heights) == pytest.approx(axis.at(24 + 8 + 0), abs=0.1)
    assert len([e for d in root.iter("details") for e in d.iter("figure")]) == 1
    lane = next(group for group in root.iter(f"{SVG}g") if "…" in "".join(group.itertext()))
    assert "".join(lane.itertext()) == sample_history.HOSTILE + sample_history.HOSTILE[:17] + "…"
    assert f"times in {datetime.fromtimestamp(course['end']).astimezone().tzname()}" in text


def test_a_hundred_thousand_changes_are_drawn_as_few() -> None:
    """The peaks stay, and what was left when nothing more changed."""
    rows = [{"start": float(i), "end": i + 0.5, "gpus": 1 + (i == 5000)} for i in range(10_000)]
    rows.append({"start": 0.0, "end": 20_000.0, "gpus": 3})
    steps = report_charts.held_by_all(rows, 0.0, 20_000.0, 100)
    assert len(steps) < 210 and steps[-1] == (20_000.0, 0.0)
    assert max(gpus for _, gpus in steps) == 5.0 and steps == sorted(steps, key=lambda step: step[0])
    assert [gpus for at, gpus in steps if 10_100 < at < 20_000] == []
    assert [gpus for at, gpus in steps if at <= 10_100][-1] == 3.0


def test_a_curve_passes_through_its_measurements(course: dict[str, Any]) -> None:
    """The model's line is that of the same batches, so it lies within a tenth of what was measured."""
    (chars,) = (job for job in course["jobs"] if job["job_id"] == 11)
    curve = {point["gpus"]: point["samples_per_s"] for point in chars["curve"]}
    assert max(curve) == 32 and len(chars["measured"]) == 5
    for seen in chars["measured"]:
        if seen["gpus"] >= 8:
            assert curve[seen["gpus"]] == pytest.approx(seen["samples_per_s"], rel=0.1)


def test_a_curve_is_that_of_the_plans_own_prior(store: Store, viewer: Callable[..., Any]) -> None:
    """What was learned from earlier runs bends the line where nothing was measured, as it does in the plans."""
    sample_history.acted(store)
    slower = replace(DEFAULT, mean=tuple(x + 1.0 for x in DEFAULT.mean))
    priors = {13: slower}

    def drawn(**prior: Any) -> dict[int, list[dict[str, Any]]]:
        told = reports.course(store, viewer(0, True), sample_history.END, start=sample_history.START, **prior)
        return {job["job_id"]: job["curve"] for job in told["jobs"]}

    shipped, learned = drawn(), drawn(prior=priors.get)
    assert learned[11] == shipped[11] and learned[13] != shipped[13]
    model = fit([observation(row) for row in store.observations(13)], slower)
    for point in learned[13]:
        assert point["samples_per_s"] == model.throughput(point["gpus"], point["nodes"], point["batch"])


def test_the_report_shows_ones_own(store: Store, viewer: Callable[..., Any]) -> None:
    """Another user's jobs are not on the page at all."""
    sample_history.acted(store)
    told = reports.course(store, viewer(sample_history.ALICE), sample_history.END, start=sample_history.START)
    assert [job["job_id"] for job in told["jobs"]] == [11, 13]
    assert {row["job_id"] for row in told["allocations"]} == {11, 13}


def test_an_empty_time_is_a_page_too(store: Store, viewer: Callable[..., Any]) -> None:
    """Before any job there is nothing to draw, which is said."""
    text = page(reports.course(store, viewer(0, True), 5.0, start=1.0))
    ElementTree.fromstring(text)
    assert "No elastic job has trained" in text


def test_hours_are_those_of_the_window() -> None:
    """A row that began before the window and goes on after it counts with the part that lies in it."""
    row = {"start": 0.0, "end": None, "elapsed_s": 7200.0, "gpus": 2, "samples": 100, "pause_s": 1.0}
    (cut,) = clipped([row], 1800.0, 5400.0)
    assert (cut["gpu_hours"], cut["samples"], cut["pause_s"], cut["start"]) == (2.0, 50.0, 0.0, 1800.0)
    assert clipped([row | {"end": 100.0}], 1800.0, 5400.0) == []
    assert used([cut], [{"at": 3600.0, "gpus": 8.0}], 5400.0) == 0.25


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


def test_advice_against_what_was(store: Store, viewer: Callable[..., Any]) -> None:
    """The same advice in two decisions is one move with one pause; what would have been is held against what was."""
    sample_history.advised(store)
    told = reports.advice(store, viewer(0, True), sample_history.END, start=sample_history.START)
    chars, digits = told["jobs"]
    assert (chars["moves"], chars["gpu_hours"], chars["advised_gpu_hours"]) == (2, 12.0, 34.0)
    assert (chars["gpus"], chars["advised_gpus"], chars["pause_s"]) == (4.0, pytest.approx(34 / 3), 2.0)
    was, would = 2.0 * 10_800, 6.0 * 7199 + 1.0 * 3599
    assert chars["change"] == pytest.approx(would / was - 1)
    assert (digits["moves"], digits["unknown_s"], digits["change"]) == (1, 3600.0, 0.0)
    first, last = (move for move in told["moves"] if move["job_id"] == 11)
    assert (first["at"], first["seconds"], first["advised_gpus"], first["reason"]) == (
        *(sample_history.START, 7200.0, 16, "grow_share"),
    )
    assert (last["advised_gpus"], last["reason"]) == (2, "shrink_for_job")
    assert told["cluster"]["moves"] == 3 and told["cluster"]["jobs"] == 2 and told["acted"] == 0
    assert told["waited"] == [{"job_id": 99, "gpus": 2, "at": sample_history.START + 7200, "waited_s": 3600.0}]


def test_advice_within_a_window(store: Store, viewer: Callable[..., Any]) -> None:
    """What stood at the window's beginning counts from there, and one's own jobs are all that a user sees."""
    sample_history.advised(store)
    window = {"start": sample_history.START + 1800, "end": sample_history.START + 5400}
    told = reports.advice(store, viewer(sample_history.ALICE), sample_history.END, **window)
    assert [(job["job_id"], job["seconds"], job["moves"]) for job in told["jobs"]] == [(11, 3600.0, 1)]
    assert told["cluster"]["jobs"] == 2 and told["waited"] == []
    assert reports.advice(store, viewer(0, True), sample_history.END, start=0.0, end=5.0)["jobs"] == []


def test_what_was_done_is_no_advice(store: Store, viewer: Callable[..., Any]) -> None:
    """Decisions that were acted on are counted, and not as advice."""
    sample_history.acted(store)
    told = reports.advice(store, viewer(0, True), sample_history.END, start=sample_history.START)
    assert told["acted"] == 3 and told["cluster"]["moves"] == 0 and told["moves"] == []


def test_the_commands_print_what_they_were_told(
    store: Store,
    viewer: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """`advise` ends with the cluster's sums in words; `report --html FILE` leaves a page and nothing else there."""
    sample_history.advised(store)
    answers = {routes.ADVICE: reports.advice, routes.USAGE: reports.course}

    def ask(route: Route, query: WindowQuery, **_: object) -> object:
        return answers[route](store, viewer(0, True), sample_history.END, start=query.start)

    monkeypatch.setattr(options, "ask", ask)
    monkeypatch.setattr(options, "clock", lambda: sample_history.END)
    assert main.main(["advise", "-a"]) == 0
    header, chars, digits, *sums = capsys.readouterr().out.splitlines()
    assert chars.split() == ["11", "chars", "alice", "03:00:00", "2", "4", "11.3", "12.0", "34.0", "+117%"]
    assert digits.split()[4:] == ["1", "8", "10.7", "24.0", "32.0", "+0%"] and header.split()[-1] == "CHANGE"
    assert "3 resizes advised, 30.00 GPU-hours more than the 36.00 they had" in sums[0]
    assert sums[1].startswith("progress of all jobs together: +") and "60 min of advice" in sums[1]
    assert sums[2].startswith("job 99 would have had its 2 GPUs at ") and sums[2].endswith("wait 60 min longer")
    assert main.main(["advise", "-a", "--moves", "-n", "-o", "JobID,GPUs,WouldGPUs,Reason"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["11", "4", "16", "grow_share"], ["11", "4", "2", "shrink_for_job"], ["12", "8", "16", "grow_idle"],
    ]  # fmt: skip
    assert main.main(["report", "-a", "--html", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == "" and "chars" in (tmp_path / "page.html").read_text()
    assert [file.name for file in tmp_path.iterdir() if "page" in file.name] == ["page.html"]
    assert main.main(["report", "-a", "--html", str(tmp_path / "none" / "page.html")]) == 1
    assert "name another file with --html" in capsys.readouterr().err
    for place in ("", str(tmp_path)):
        assert main.main(["report", "-a", "--html", place]) == 2
        assert "is no file; accepted: a file's path, or -" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir() if "page" in file.name] == ["page.html"]
    assert main.main(["report", "-a", "--json", "-j", "11"]) == 0
    assert [job["job_id"] for job in json.loads(capsys.readouterr().out)["jobs"]] == [11]


@pytest.mark.parametrize("command", ["report", "advise", "acct"])
def test_a_month_of_jobs_is_waited_for(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tells of thousands of jobs takes the daemon longer than the ten seconds that the client waits for others."""
    waited = list[float | None]()

    def call(self: Client, *_: object, timeout: float | None = None, **__: object) -> None:
        waited.append(timeout)
        raise ElasticError("enough")

    monkeypatch.setattr(Client, "call", call)
    assert main.main([command, "-a", "-S", "now-30days"]) == 1
    assert waited[-1] == options.LONG_S > 60


def test_advice_says_what_of_it_is_only_predicted(store: Store, viewer: Callable[..., Any]) -> None:
    """A job is never measured at a size that it was only advised: how long that was, and how sure the model is."""
    sample_history.advised(store)
    told = reports.advice(store, viewer(0, True), sample_history.END, start=sample_history.START)
    assert told["cluster"]["doubt"] is None and "predicts" not in advise.summary(told, sample_history.END)[1]
    guess = {"speedup_from": 1.0, "speedup_to": 2.0, "modelled": True, "doubt": 0.5}
    at = sample_history.END - 1800
    store.save_decisions(
        at, [sample_history._decision(12, at, 8, 24, guess), sample_history._decision(11, at, 4, 4, guess)]
    )
    told = reports.advice(store, viewer(0, True), sample_history.END, start=sample_history.START)
    assert (told["cluster"]["modelled_s"], told["cluster"]["doubt"]) == (1800.0, 0.5)
    said = advise.summary(told, sample_history.END)[1]
    assert said.endswith("30 min of it at sizes never measured, as the model predicts them, give or take 50%")
    assert {move["job_id"]: move["doubt"] for move in told["moves"]}[12] == 0.5


def test_no_advice_is_said() -> None:
    """Nothing to resize, and nobody there, are sentences too."""
    empty = {"start": 0.0, "end": 60.0, "acted": 0, "waited": [], "cluster": {"jobs": 0}}
    assert advise.summary(empty, 60.0)[0].startswith("no elastic job ran from ")
    quiet = empty | {"acted": 2, "cluster": {"jobs": 1, "moves": 0}}
    (said,) = advise.summary(quiet, 60.0)
    assert "nothing would have been resized; 2 decisions of this time were acted on" in said
