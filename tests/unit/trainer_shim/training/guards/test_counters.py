"""A script's own count of steps that begins anew where a worker comes to a training under way is named, once."""

from __future__ import annotations

import pytest

from slurm_elastic.trainer_shim.training.guards.counters import Counters

PASS = 8


def trains(began: int, count: int, steps: int = 14, of_pass: bool = False) -> list[str]:
    """The sentences of so many steps behind the one where a worker has begun, with a count of its own. of_pass: it
    begins anew with each pass."""
    said: list[str] = []
    counters, samples = Counters(said.append), 0
    for step in range(began, began + steps):
        for _ in range(2):  # also asked at the beginning of a pass
            counters.look(step, step % PASS)
        count = 0 if of_pass and step % PASS == PASS - 1 else count + 1 + (step == 18)  # in two micro batches
        samples += 12
    return said


@pytest.mark.parametrize(
    ("began", "count", "named"),
    [
        (20, 0, "count counts the steps since this worker began, 3 of 23: "),
        (20, 1, "count counts the steps since this worker began, 4 of 23: "),
        (16, 0, "count counts the steps since this worker began, "),  # which may be the pass's own, until that is over
        (20, 20, ""),
        (20, 21, ""),
        (20, 500, ""),
        (0, 0, ""),
        (2, 0, ""),
    ],
)
def test_a_count_that_begins_anew_is_named(began: int, count: int, named: str) -> None:
    """Not the job's own, one that goes on from elsewhere, or any where a training begins."""
    said = trains(began, count)
    assert len(said) == bool(named) and all(named in line and "test_counters.py line " in line for line in said)


@pytest.mark.parametrize(("began", "count", "named"), [(16, 0, 0), (20, 4, 0), (20, 0, 1)])
def test_a_count_of_a_pass(began: int, count: int, named: int) -> None:
    """It is right where it begins with the pass, or as far on as that is."""
    assert len(trains(began, count, of_pass=True)) == named
