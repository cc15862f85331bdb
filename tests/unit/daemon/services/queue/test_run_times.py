"""How long a job will probably run."""

from __future__ import annotations

from math import inf

from slurm_elastic.daemon.services.queue.run_times import LAST, Ended, RunTimes


def known(*ended: tuple[str, str, int, float]) -> RunTimes:
    times = RunTimes()
    for user, name, gpus, seconds in ended:
        times.add(Ended(user, name, gpus, seconds))
    return times


def test_the_median_of_the_closest_kind_counts() -> None:
    """The user's of that name and size; else of that size; else all of theirs; never another user's."""
    times = known(("a", "x", 1, 10), ("a", "x", 1, 30), ("a", "x", 1, 20), ("a", "y", 1, 500), ("a", "z", 4, 900))
    assert times.left_s("a", "x", 1, inf) == 20
    assert times.left_s("a", "new", 1, inf) == 25
    assert times.left_s("a", "new", 4, inf) == 900
    assert times.left_s("a", "new", 2, inf) == 30
    assert times.left_s("b", "x", 1, 3600) == 3600


def test_runs_that_a_number_tells_apart_have_one_name() -> None:
    """train_12 is as train_7."""
    assert known(("a", "train_7", 1, 40), ("a", "other", 1, 9)).left_s("a", "train_12", 1, inf) == 40


def test_only_those_that_ran_longer_tell_of_one_that_runs() -> None:
    """And its time limit is the most that it has left."""
    times = known(*(("a", "x", 1, float(seconds)) for seconds in (10, 20, 100, 200)))
    assert times.left_s("a", "x", 1, inf, ran_s=50) == 100
    assert times.left_s("a", "x", 1, 90, ran_s=50) == 40
    assert times.left_s("a", "x", 1, 600, ran_s=300) == 300
    assert times.left_s("a", "x", 1, inf, ran_s=100_000) == 100_000


def test_the_last_ones_count() -> None:
    """A program that has become slower is soon known to be."""
    times = known(*[("a", "x", 1, 10.0)] * LAST, *[("a", "x", 1, 99.0)] * LAST)
    assert times.left_s("a", "x", 1, inf) == 99
