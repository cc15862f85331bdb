"""Costs against bytes: the line is found, nothing negative comes out, and an interval says what is not known."""

from __future__ import annotations

import random

import pytest

from slurm_elastic.daemon.optimizer.errors import PlanInputError
from slurm_elastic.daemon.optimizer.models.costs import CostPrior, fit

PRIOR = CostPrior(5.0, 1e-3)


def drawn(count: int, seed: int = 1, noise: float = 0.1) -> list[tuple[float, float]]:
    """(MB, seconds) of 3 s and 200 MB/s, with relative noise."""
    rng = random.Random(seed)
    sizes = [rng.uniform(10, 4000) for _ in range(count)]
    return [(mb, (3.0 + mb / 200) * (1 + rng.gauss(0, noise))) for mb in sizes]


def test_without_measurements_the_prior_is_the_answer() -> None:
    """And its interval is as wide as its doubt."""
    found = fit([], PRIOR).at(0.0)
    assert found.seconds == 5.0
    assert found.low < 2.0 and found.high > 12.0


def test_the_line_is_found() -> None:
    """Fixed seconds and bandwidth, from 40 noisy measurements, between and beyond them."""
    model = fit(drawn(40), PRIOR)
    for mb in (0.0, 1000.0, 8000.0):
        assert model.at(mb).seconds == pytest.approx(3.0 + mb / 200, rel=0.12)


def test_intervals_cover_what_they_say() -> None:
    """Four of five, or some more while few were measured."""
    covered = tried = 0
    for seed in range(60):
        model = fit(drawn(12, seed), PRIOR)
        for mb, seconds in drawn(5, 1000 + seed):
            found = model.at(mb)
            covered, tried = covered + (found.low <= seconds <= found.high), tried + 1
    assert 0.76 <= covered / tried <= 0.95


def test_one_straggler_moves_little() -> None:
    """A file system that hung once does not make every checkpoint expensive."""
    calm = fit(drawn(20), PRIOR).at(1000.0).seconds
    assert fit([*drawn(20), (1000.0, 400.0)], PRIOR).at(1000.0).seconds == pytest.approx(calm, rel=0.25)


@pytest.mark.parametrize(
    "measured",
    [[(100.0, 9.0), (5000.0, 1.0)], [(5000.0, 1e-3)], [(0.0, 1e-6)] * 30, [(1e6, 1e6), (0.0, 1e-3)]],
)
def test_nothing_negative_and_nothing_infinite(measured: list[tuple[float, float]]) -> None:
    """Costs that fall with bytes, or are next to nothing."""
    model = fit(measured, PRIOR)
    for mb in (0.0, 1.0, 1e7):
        found = model.at(mb)
        assert 0 < found.low <= found.seconds <= found.high < float("inf")


@pytest.mark.parametrize("wrong", [(-1.0, 1.0), (1.0, 0.0), (1.0, float("nan")), (float("inf"), 1.0)])
def test_what_cannot_have_been_measured_is_refused(wrong: tuple[float, float]) -> None:
    """Naming it."""
    with pytest.raises(PlanInputError, match="accepted: positive seconds at 0 MB or more"):
        fit([wrong], PRIOR)
