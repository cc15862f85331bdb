"""What comes first of several sizes, how probable it is, and what one more measurement would be worth."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.daemon.prediction.choices import Aim, Option, probability, ranked, with_waits, worth_measuring

HOUR = 3600.0
ONE = Option("gpu", "a100", 1, 1, 64, 10 * HOUR, 0.02, True, 1.0)
FOUR = Option("gpu", "a100", 4, 1, 256, 4 * HOUR, 0.3, False, 4.0)

seconds = st.floats(60.0, 1e6)
options = st.builds(
    Option,
    st.sampled_from(["gpu", "spot"]),
    st.sampled_from(["a100", "v100"]),
    st.integers(1, 64),
    st.just(1),
    st.just(64),
    seconds,
    st.floats(0.01, 1.0),
    st.booleans(),
    st.floats(0.0, 100.0),
    st.lists(st.floats(0.0, 1e5), min_size=1, max_size=3).map(tuple),
)
aims = st.builds(Aim, st.just(math.inf) | seconds, st.just(math.inf) | st.floats(0.1, 1e4), st.floats(0.5, 0.99))


@given(st.lists(options, min_size=1, max_size=8), aims)
def test_nothing_is_cheaper_at_the_price_of_probability(several: list[Option], aim: Aim) -> None:
    """What comes first is as probable as asked for where anything is, then the cheapest, or fastest, of those that are;
    else nothing is more probable, or it is nearest to what was asked for."""
    rated = ranked(several, aim)
    best, likely = rated[0]
    enough = [one for one, said in rated if said >= aim.confidence]
    assert (likely >= aim.confidence) == bool(enough)
    most = max(said for _, said in rated)
    assert likely in (most, max(likely, aim.confidence)) or most < 0.1
    if enough and aim.deadline_s < math.inf:
        assert best.cost == min(one.cost for one in enough)
    elif enough and aim.budget < math.inf:
        assert best.until_s == min(one.until_s for one in enough)
    assert all(0.0 <= said <= 1.0 for _, said in rated)


@given(options, aims, st.floats(1.0, 10.0))
def test_more_time_or_money_is_never_less_probable(one: Option, aim: Aim, more: float) -> None:
    """Nor is a shorter wait."""
    said = probability(one, aim)
    assert probability(one, replace(aim, deadline_s=aim.deadline_s * more, budget=aim.budget * more)) >= said
    assert probability(replace(one, waits_s=tuple(wait / more for wait in one.waits_s)), aim) >= said
    assert probability(one, Aim()) == 1.0


def test_the_middle_is_even_and_what_was_not_measured_is_less_sure() -> None:
    """At the limit itself p is a half; beyond it the same doubt is worth less where nothing was measured."""
    assert probability(FOUR, Aim(4 * HOUR)) == pytest.approx(0.5) == probability(ONE, Aim(10 * HOUR))
    sure, guessed = (replace(ONE, doubt=0.3, measured=measured) for measured in (True, False))
    assert probability(sure, Aim(20 * HOUR)) > probability(guessed, Aim(20 * HOUR)) > 0.8
    assert probability(ONE, Aim(20 * HOUR, budget=9.0)) < 0.01 < 0.99 < probability(ONE, Aim(20 * HOUR, budget=11.0))


def test_the_three_questions() -> None:
    """Before a deadline the cheap one while it is in time, within a budget the fast one, else by cost times time."""
    assert ranked([FOUR, ONE], Aim(24 * HOUR))[0][0] is ONE
    assert ranked([FOUR, ONE], Aim(8 * HOUR, confidence=0.8))[0][0] is FOUR
    assert ranked([FOUR, ONE], Aim(budget=100.0))[0][0] is FOUR
    assert ranked([FOUR, ONE], Aim(budget=10.5))[0][0] is ONE
    assert ranked([FOUR, ONE], Aim())[0][0] is FOUR  # 16 x 4 before 10 x 10


def test_a_measurement_is_proposed_where_it_would_change_the_answer() -> None:
    """Where the size that was not measured may keep the deadline, or may not; never one that was measured."""
    assert worth_measuring([ONE, FOUR], Aim(24 * HOUR)) is None
    assert worth_measuring([ONE, FOUR], Aim(4.5 * HOUR)) is None  # nothing else is nearer to it
    eight = Option("gpu", "a100", 8, 1, 512, 3 * HOUR, 0.02, True, 8.0)
    assert worth_measuring([ONE, FOUR, eight], Aim(4.5 * HOUR)) is FOUR
    assert worth_measuring([ONE, replace(FOUR, measured=True), eight], Aim(4.5 * HOUR)) is None


def test_waits_are_those_of_the_nearest_size_in_the_partition() -> None:
    """What Slurm would not start is gone; another partition's, or another kind's, wait says nothing."""
    two = replace(ONE, gpus=2)
    spot = replace(ONE, partition="spot")
    old = replace(ONE, gpu_type="v100")
    known = {("gpu", "a100", 4): [60.0, 120.0], ("gpu", "a100", 1): ()}
    found = with_waits([ONE, two, FOUR, spot, old], known)
    assert [(one.partition, one.gpus, one.waits_s) for one in found] == [
        ("gpu", 2, (60.0, 120.0)),
        ("gpu", 4, (60.0, 120.0)),
        ("spot", 1, (0.0,)),
        ("gpu", 1, (0.0,)),
    ]
