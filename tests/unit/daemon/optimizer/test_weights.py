"""What the weights of jobs are multiplied by."""

from __future__ import annotations

import pytest

from slurm_elastic.daemon.optimizer.weights import OCTAVES, fair_factors, short_factors


def test_a_group_shares_one_weight() -> None:
    """Of four jobs three are one user's: each user's together count two, so that factors are one in the mean."""
    found = fair_factors({1: "alone", 2: "many", 3: "many", 4: "many"})
    assert found == pytest.approx({1: 2.0, 2: 2 / 3, 3: 2 / 3, 4: 2 / 3})
    assert fair_factors({1: "a", 2: "a"}) == fair_factors({}) == {}


def test_a_job_with_a_quarter_of_the_work_counts_twice_as_much() -> None:
    """By the square root, in steps of a doubling; the middle job counts as ever."""
    assert short_factors({1: 1000.0, 2: 4000.0, 3: 2000.0}, 0.5) == pytest.approx({1: 2**0.5, 2: 2**-0.5})
    assert short_factors({1: 1000.0, 2: 1100.0}, 0.5) == {}


def test_no_estimate_moves_a_weight_beyond_the_bounds() -> None:
    """A script that says it is as good as done, and one that never ends."""
    work = {1: 0.0, 2: 1e30, **dict.fromkeys(range(3, 99), 5000.0)}
    found = short_factors(work, 0.5)
    assert found[1] == 2 ** (0.5 * OCTAVES) and found[2] == 2 ** (-0.5 * OCTAVES)
    assert short_factors(work, 0.0) == short_factors({}, 0.5) == {}
