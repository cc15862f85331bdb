"""Figures of fairness, by arithmetic."""

from __future__ import annotations

import math

import pytest

from slurm_elastic.daemon.reports.fairness import Presence, at_size, equal_division, jain


def test_jains_index_is_one_where_all_have_as_much() -> None:
    """1/n where one of n has all; of nothing there is none."""
    assert jain([3.0, 3.0, 3.0]) == 1.0 and jain([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain([1.0, 2.0]) == pytest.approx(0.9)
    assert math.isnan(jain([])) and math.isnan(jain([0.0]))


@pytest.mark.parametrize(
    ("total", "bounds", "parts"),
    [
        (12, [(0, 100), (0, 100)], [6, 6]),
        (12, [(0, 2), (0, 100)], [2, 10]),
        (12, [(9, 100), (0, 100), (0, 100)], [9, 1.5, 1.5]),
        (12, [(0, 1), (0, 1), (0, 10)], [1, 1, 10]),
        (12, [(4, 4), (8, 8)], [4, 8]),
        (5, [(1, 3), (2, 9)], [2.5, 2.5]),
        (3, [(1, 3), (2, 9)], [1, 2]),
    ],
)
def test_what_one_cannot_use_goes_to_the_others(
    total: float, bounds: list[tuple[float, float]], parts: list[float]
) -> None:
    """Everyone as much as the others, as far as their least and most let them."""
    assert equal_division(total, bounds) == pytest.approx(parts)


def test_who_was_there_in_the_mean() -> None:
    """Two groups, one with two jobs that overlap for half of the time; never less than the job itself."""
    there = Presence([("a", 0.0, 10.0), ("a", 5.0, 15.0), ("b", 10.0, 20.0), ("b", 30.0, 40.0)])
    assert there.mean("a", 0.0, 10.0) == (1.0, 1.5)
    assert there.mean("b", 10.0, 20.0) == (1.5, 1.0)
    assert there.mean("b", 30.0, 40.0) == (1.0, 1.0) and there.mean("b", 20.0, 20.0) == (1.0, 1.0)


def test_speed_at_a_part_of_a_cluster() -> None:
    """In proportion below the smallest size, linear between two, and never slower than a smaller size."""
    speeds = [(2, 10.0), (4, 16.0), (8, 12.0)]
    assert [at_size(speeds, gpus) for gpus in (1, 2, 3, 4, 6, 8, 99)] == [5.0, 10.0, 13.0, 16.0, 16.0, 16.0, 16.0]
