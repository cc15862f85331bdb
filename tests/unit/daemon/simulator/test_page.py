"""The figures of a simulation and the page that shows them."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from xml.etree import ElementTree

from simulations import QUIET, job, outcome

from slurm_elastic.daemon.simulator.metrics import gains, per_job, quantile, summary, table
from slurm_elastic.daemon.simulator.page import means, page


def test_figures_of_known_numbers() -> None:
    """Quantiles interpolate, an empty sequence has none, and the table has a dash instead of an invented number."""
    assert quantile([1.0, 2.0, 3.0, 4.0], 0.5) == 2.5
    assert math.isnan(quantile([], 0.5))
    rows = [job("a", 0, 8, 800, min_gpus=8)]
    nothing = outcome(rows, settings=replace(QUIET, drop=True))
    assert table([summary(replace(nothing, jobs=[]))]).split().count("-") == 7


def test_curves_of_the_page_are_means() -> None:
    """Of a step function over equal stretches, with what comes before its first point and after its end as nothing."""
    assert means([(1.0, 4.0), (2.5, 8.0), (3.0, 0.0)], 4.0, 4) == [0.0, 4.0, 6.0, 0.0]
    assert means([(0.0, 2.0)], 4.0, 2) == [2.0, 2.0] and means([], 4.0, 2) == [0.0, 0.0]


def test_the_page_is_self_contained_and_escaped() -> None:
    """The page holds every figure, no script and no link, and an evil job id does no harm."""
    rows = [job("<script>alert(1)</script>", 0), job("b", 1)]
    result = outcome(rows)
    text = page([result], [summary(result)], ["assumed <b>"], unfit="too <small>")
    assert "<script" not in text and not re.search(r"https?://(?!www\.w3\.org)", text)
    ElementTree.fromstring(text)
    assert "&lt;script&gt;" in text and "assumed &lt;b&gt;" in text
    assert text.index("too &lt;small&gt;") < text.index("mean time from submission to end") < text.index("<table")
    assert len(per_job(result)) == 2


def test_a_comparison_in_plain_words() -> None:
    """The last policy against the first: sooner or later, fewer or more; nothing to say of one policy alone."""
    first = summary(outcome([job("a", 0), job("b", 1)], "static"))
    last = replace(first, policy="auto", mean_s=first.mean_s * 0.75, gpu_hours=first.gpu_hours * 1.5, restarts=1.25)
    mean, _, hours, moves = gains([first, last])
    assert mean.endswith(": 25% sooner.") and "50% more GPU-hours" in hours and "1.2 times" in moves
    assert gains([last, first])[0].endswith("33% later.") and gains([first]) == []


def test_what_was_recorded_on_another_cluster_is_no_measure() -> None:
    """Backfill on the same cluster is compared with, wherever it stands; without it the first that is simulated."""
    first = summary(outcome([job("a", 0), job("b", 1)], "static"))
    happened = replace(first, policy="recorded", mean_s=first.mean_s * 0.5)
    last = replace(first, policy="auto", mean_s=first.mean_s * 0.8)
    backfill = replace(first, policy="backfill")
    for rows, measure in (
        ([happened, backfill, last], "backfill"),
        ([happened, replace(last, policy="throughput", mean_s=9.0), backfill, last], "backfill"),
        ([happened, first, last], "static"),
    ):
        assert f"under {measure} after" in gains(rows)[0] and gains(rows)[0].endswith("20% sooner.")
    assert gains([happened, last]) == []
