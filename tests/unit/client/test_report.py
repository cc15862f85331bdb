"""`selastic report` and `selastic review`: what they say of an afternoon, and to whom."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sample_history

from slurm_elastic.client import main, options
from slurm_elastic.client.commands import review
from slurm_elastic.client.report.command import hours, summary
from slurm_elastic.daemon import reports
from slurm_elastic.daemon.models.cache import observation
from slurm_elastic.daemon.optimizer.models.prior import DEFAULT
from slurm_elastic.daemon.optimizer.models.throughput import fit
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.answers.history import CurvePoint, Usage
from slurm_elastic.protocol.answers.review import Review, WaitingReview
from slurm_elastic.protocol.api.client import Client
from slurm_elastic.protocol.api.routes import WindowQuery
from slurm_elastic.protocol.errors import ElasticError
from slurm_elastic.protocol.text.tables import digits


@pytest.fixture
def course(store: Store, viewer: Callable[..., Any]) -> Usage:
    """The facts of the page, for an admin."""
    sample_history.acted(store)
    return reports.usage(store, viewer(0, True), sample_history.END, start=sample_history.START)


def test_a_curve_passes_through_its_measurements(course: Usage) -> None:
    """The model's line is that of the same batches, so it lies within a tenth of what was measured."""
    (chars,) = (job for job in course.jobs if job.job_id == 11)
    curve = {point.gpus: point.samples_per_s for point in chars.curve}
    assert max(curve) == 32 and len(chars.measured) == 5
    for seen in chars.measured:
        if seen.gpus >= 8:
            assert curve[seen.gpus] == pytest.approx(seen.samples_per_s, rel=0.1)


def test_a_curve_is_that_of_the_plans_own_prior(store: Store, viewer: Callable[..., Any]) -> None:
    """What was learned from earlier runs bends the line where nothing was measured, as it does in the plans."""
    sample_history.acted(store)
    slower = replace(DEFAULT, mean=tuple(x + 1.0 for x in DEFAULT.mean))
    priors = {13: slower}

    def drawn(**prior: Any) -> dict[int, tuple[CurvePoint, ...]]:
        told = reports.usage(store, viewer(0, True), sample_history.END, start=sample_history.START, **prior)
        return {job.job_id: job.curve for job in told.jobs}

    shipped, learned = drawn(), drawn(prior=priors.get)
    assert learned[11] == shipped[11] and learned[13] != shipped[13]
    model = fit([observation(row) for row in store.reports.observations(13)], slower)
    for point in learned[13]:
        assert point.samples_per_s == model.throughput(point.gpus, point.nodes, point.batch)


def test_the_report_shows_ones_own(store: Store, viewer: Callable[..., Any]) -> None:
    """Another user's jobs are not on the page at all."""
    sample_history.acted(store)
    told = reports.usage(store, viewer(sample_history.ALICE), sample_history.END, start=sample_history.START)
    assert [job.job_id for job in told.jobs] == [11, 13]
    assert {row.job_id for row in told.allocations} == {11, 13}


def test_hours_are_accounted_for(course: Usage) -> None:
    """Held is the sum of its parts; of a step waits and communication by their shares; idle before, between and after
    worlds; the gain by the speed measured at the first size, with the model's doubt; none where no size changed."""
    chars, _, vit = course.jobs
    seen = tuple(replace(one, input_wait_share=0.25, comm_share=0.5) for one in chars.measured if one.gpus == 24)
    others = tuple(one for one in chars.measured if one.gpus != 24)
    jobs = (replace(chars, measured=(*seen, *others), start_time=sample_history.START - 360), *course.jobs[1:])
    begins = sample_history.START - 3600
    usage = replace(course, start=begins, jobs=jobs)
    row, _, small = hours(usage, "job")
    own = [one for one in course.allocations if one.job_id == 11]
    assert row.held == pytest.approx(sum(one.gpu_hours for one in own) + 0.4)
    assert row.idle == pytest.approx(4 * 360 / 3600), "six minutes on its four GPUs until the first world"
    assert row.trained + row.input + row.comm + row.pauses + row.idle == pytest.approx(row.held)
    at_24 = 24 * (1300.0 - 0.4) / 3600
    assert (row.input, row.comm) == (pytest.approx(at_24 / 4), pytest.approx(at_24 / 2))
    slow = next(one.samples_per_s for one in chars.measured if one.gpus == 4)
    spent = sum(one.elapsed_s for one in own)
    assert row.sooner_s == pytest.approx(sum(one.samples for one in own) / slow - spent) and row.sooner_s > 3600
    assert row.doubt_s is not None and 0 < row.doubt_s < row.sooner_s
    alone = replace(usage, jobs=(vit,), allocations=tuple(one for one in usage.allocations if one.job_id == 13)[:1])
    assert hours(alone, "job")[0].sooner_s is None and small.name == "vit-large"


def test_hours_beside_the_first_size(course: Usage) -> None:
    """Beyond it what was idle when it was taken, while the job kept it, and not what another elastic job had; below
    it what was given back."""
    chars, digits_, _ = hours(course, "job")
    rest = sample_history.END - 600 - sample_history.START - 7000
    assert chars.spare == pytest.approx((20 * 1300 + 12 * 3100 + 4 * 2000 + 16 * rest) / 3600)
    assert (chars.back, digits_.spare, digits_.back) == (0.0, 0.0, 0.0)
    first = next(one for one in course.allocations if one.job_id == 12)
    larger = tuple(replace(one, gpus=12) if one == first else one for one in course.allocations)
    row = hours(replace(course, allocations=larger), "job")[1]
    left = sample_history.END - sample_history.START - 1800 - 6000
    assert (row.spare, row.back) == (0.0, pytest.approx((4 * 5100 + 8 * left) / 3600))


@pytest.mark.parametrize(
    ("by", "names"),
    [("user", ["alice", "bob"]), ("account", ["lab"]), ("cluster", ["all"]), ("month", ["2026-09"])],
)
def test_hours_by_whose_they_were(by: str, names: list[str], course: Usage) -> None:
    """Sums are those of the jobs, doubts add up as those of independent figures; the sentences are of all of it."""
    each, groups = hours(course, by="job"), hours(course, by)
    assert [row.of for row in groups] == names
    assert sum(row.held for row in groups) == pytest.approx(sum(row.held for row in each))
    whole = hours(course, "cluster")[0]
    assert whole.doubt_s == pytest.approx(sum((row.doubt_s or 0.0) ** 2 for row in each) ** 0.5)
    first, spare, second = summary(groups)
    assert f"began with {digits()(whole.spare)} GPU-hours of these would have stood idle" in spare
    assert first.startswith(f"{digits()(whole.held)} GPU-hours were held: ") and "% in computing" in first
    assert "sooner in all, give or take" in second
    assert summary([]) == ["no job trained in this time"]


def test_advice_against_what_was(store: Store, viewer: Callable[..., Any]) -> None:
    """The same advice in two decisions is one move with one pause; what would have been is held against what was."""
    sample_history.advised(store)
    told = reports.review(store, viewer(0, True), sample_history.END, start=sample_history.START)
    chars, digits = told.jobs
    assert (chars.moves, chars.gpu_hours, chars.advised_gpu_hours) == (2, 12.0, 34.0)
    assert (chars.gpus, chars.advised_gpus, chars.pause_s) == (4.0, pytest.approx(34 / 3), 2.0)
    was, would = 2.0 * 10_800, 6.0 * 7199 + 1.0 * 3599
    assert chars.change == pytest.approx(would / was - 1)
    assert (digits.moves, digits.unknown_s, digits.change) == (1, 3600.0, 0.0)
    first, last = (move for move in told.moves if move.job_id == 11)
    assert (first.at, first.seconds, first.advised_gpus, first.reason) == (
        *(sample_history.START, 7200.0, 16, "grow_share"),
    )
    assert (last.advised_gpus, last.reason) == (2, "shrink_for_job")
    assert told.cluster.moves == 3 and told.cluster.jobs == 2 and told.acted == 0
    assert told.waited == (WaitingReview(job_id=99, gpus=2, at=sample_history.START + 7200, waited_s=3600.0),)


def test_advice_within_a_window(store: Store, viewer: Callable[..., Any]) -> None:
    """What stood at the window's beginning counts from there, and one's own jobs are all that a user sees."""
    sample_history.advised(store)
    window = {"start": sample_history.START + 1800, "end": sample_history.START + 5400}
    told = reports.review(store, viewer(sample_history.ALICE), sample_history.END, **window)
    assert [(job.job_id, job.seconds, job.moves) for job in told.jobs] == [(11, 3600.0, 1)]
    assert told.cluster.jobs == 2 and told.waited == ()
    assert reports.review(store, viewer(0, True), sample_history.END, start=0.0, end=5.0).jobs == ()


def test_what_was_done_is_no_advice(store: Store, viewer: Callable[..., Any]) -> None:
    """Decisions that were acted on are counted, and not as advice."""
    sample_history.acted(store)
    told = reports.review(store, viewer(0, True), sample_history.END, start=sample_history.START)
    assert told.acted == 3 and told.cluster.moves == 0 and told.moves == ()


def test_the_commands_print_what_they_were_told(
    store: Store,
    viewer: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    """`review` ends with the cluster's sums in words; `report --html FILE` leaves a page and nothing else there."""
    sample_history.advised(store)
    answers = {Review: reports.review, Usage: reports.usage}

    def ask(kind: type, query: WindowQuery, **_: object) -> object:
        return answers[kind](store, viewer(0, True), sample_history.END, start=query.start)

    monkeypatch.setattr(options, "ask", ask)
    monkeypatch.setattr(options, "clock", lambda: sample_history.END)
    assert main.main(["review", "-a"]) == 0
    header, chars, digits, *sums = capsys.readouterr().out.splitlines()
    assert chars.split() == ["11", "chars", "alice", "03:00:00", "2", "4", "11.3", "12.0", "34.0", "+117%"]
    assert digits.split()[4:] == ["1", "8", "10.7", "24.0", "32.0", "+0%"] and header.split()[-1] == "CHANGE"
    assert "3 resizes advised, 30.00 GPU-hours more than the 36.00 they had" in sums[0]
    assert sums[1].startswith("progress of all jobs together: +") and "60 min of advice" in sums[1]
    assert sums[2].startswith("job 99 would have had its 2 GPUs at ") and sums[2].endswith("it waited 60 min longer")
    assert main.main(["review", "-a", "--moves", "-n", "-o", "JobID,GPUs,WouldGPUs,Reason"]) == 0
    assert [line.split() for line in capsys.readouterr().out.splitlines()] == [
        ["11", "4", "16", "grow_share"], ["11", "4", "2", "shrink_for_job"], ["12", "8", "16", "grow_idle"],
    ]  # fmt: skip
    assert main.main(["report", "-a", "--html", str(tmp_path / "page.html")]) == 0
    assert capsys.readouterr().out == "" and "chars" in (tmp_path / "page.html").read_text()
    assert [file.name for file in tmp_path.iterdir() if "page" in file.name] == ["page.html"]
    assert main.main(["report", "-a", "--html", str(tmp_path / "none" / "page.html")]) == 1
    assert "name another file with --page" in capsys.readouterr().err
    for place in ("", str(tmp_path)):
        assert main.main(["report", "-a", "--html", place]) == 2
        assert "is no file; accepted: a file's path, or -" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir() if "page" in file.name] == ["page.html"]
    assert main.main(["report", "-a", "--json", "-j", "11"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [job["job_id"] for job in told["jobs"]] == [11] and told["hours"][0]["of"] == "11"
    assert main.main(["report", "-a", "--by", "user", "-o", "of,held"]) == 0
    assert capsys.readouterr().out.split()[:6] == ["Of", "Held", "-----", "----", "alice", "12.0"]


def test_a_page_without_jinja2_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """It names the missing package, and no simulation is run in vain."""
    for module in ("html.charts", "html.report_page", "simulator.page"):
        monkeypatch.delitem(sys.modules, f"slurm_elastic.daemon.{module}", raising=False)
    monkeypatch.delattr("slurm_elastic.daemon.html.charts", raising=False)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    (tmp_path / "trace").write_text("job_id,submit_s,program,gpus,duration_s\n1,0,a,1,60\n")
    nothing = Usage(now=2.0, start=1.0, end=2.0, jobs=(), allocations=(), capacity=())
    monkeypatch.setattr(options, "ask", lambda *_, **__: nothing)
    for words in (["report", "-a", "--html"], ["simulate", str(tmp_path / "trace"), "--html"]):
        assert main.main([*words, str(tmp_path / "page.html")]) == 1
        out, said = capsys.readouterr()
        assert out == "" and said.startswith(
            "selastic: this command needs the package 'jinja2', which is not installed"
        )
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize("command", ["report", "review", "acct"])
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
    told = reports.review(store, viewer(0, True), sample_history.END, start=sample_history.START)
    assert told.cluster.doubt is None and "predicts" not in review.summary(told, sample_history.END)[1]
    guess = {"speedup_from": 1.0, "speedup_to": 2.0, "modelled": True, "doubt": 0.5}
    at = sample_history.END - 1800
    store.decisions.save(
        at, [sample_history._decision(12, at, 8, 24, guess), sample_history._decision(11, at, 4, 4, guess)]
    )
    told = reports.review(store, viewer(0, True), sample_history.END, start=sample_history.START)
    assert (told.cluster.modelled_s, told.cluster.doubt) == (1800.0, 0.5)
    said = review.summary(told, sample_history.END)[1]
    assert said.endswith("30 min of it at sizes never measured, as the model predicts them, give or take 50%")
    assert {move.job_id: move.doubt for move in told.moves}[12] == 0.5


def test_no_advice_is_said(store: Store, viewer: Callable[..., Any]) -> None:
    """Nothing to resize, and nobody there, are sentences too."""
    empty = reports.review(store, viewer(0, True), 60.0, start=0.0)
    assert review.summary(empty, 60.0)[0].startswith("no elastic job ran from ")
    quiet = replace(empty, acted=2, cluster=replace(empty.cluster, jobs=1))
    (said,) = review.summary(quiet, 60.0)
    assert "nothing would have been resized; 2 decisions of this time were acted on" in said
