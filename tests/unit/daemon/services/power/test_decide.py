"""How many nodes sleep: within the buffer and the limits, whatever comes, and by nothing that is still to come."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.daemon.services.power.decide import AHEAD, DAY, Counts, Demand, Limits, change, replay

few = st.integers(0, 60)
limits = st.builds(Limits, st.floats(0, 1), st.integers(1, 50))


@given(few, few, few, few, few, few, few, few, few, limits)
def test_never_below_the_buffer_and_never_more_than_the_limits(
    busy: int,
    wanted: int,
    free: int,
    waking: int,
    ripe: int,
    more: int,
    expected: int,
    slept: int,
    woken: int,
    of: Limits,
) -> None:
    total = busy + free + waking + ripe + more
    now = Counts(busy, min(wanted, total - busy), free, waking, ripe, total)
    count = change(now, expected, of, slept, woken)
    if count < 0:
        assert free + count >= of.kept(total) and slept - count <= of.per_hour
        assert busy + free + waking + count >= max(expected, busy + now.wanted)
    assert count <= ripe and (count <= 0 or woken + count <= of.per_hour)


demands = st.lists(st.integers(0, 40), min_size=2, max_size=400)


@given(demands, demands, st.data(), limits)
@settings(max_examples=50)
def test_another_future_leaves_decisions_as_they_are(
    past: list[int], other: list[int], data: st.DataObject, of: Limits
) -> None:
    """Up to and including a step all is decided by what was until then."""
    cut = data.draw(st.integers(1, len(past)))
    one, two = (dict(enumerate(steps)) for steps in (past, past[:cut] + other))
    assert replay(one, 40, of).awake[:cut] == replay(two, 40, of).awake[:cut]


@given(demands, limits)
@settings(max_examples=50)
def test_what_is_needed_is_awake_and_all_is_counted(needed: list[int], of: Limits) -> None:
    found = replay(dict(enumerate(needed)), 40, of)
    assert all(awake >= need for awake, need in zip(found.awake, needed, strict=True))
    assert found.short <= found.wake_ups <= found.woken and 0 <= found.asleep <= 1
    idle = sum(40 - need for need in needed)
    assert abs(found.asleep * idle - sum(40 - awake for awake in found.awake)) < 1e-6 * max(1, idle)


def test_nodes_that_are_never_needed_sleep_but_for_the_buffer() -> None:
    found = replay(dict.fromkeys(range(60), 10), 100, Limits(0.05, 100))
    assert found.awake[-1] == 15 and not found.wake_ups


def test_a_rise_of_every_day_is_foreseen_and_woken_for_ahead() -> None:
    """Demand of 10 by night and of 60 from eight on: persistence is short each morning, the forecast is not."""
    days = {step: 60 if 48 <= step % DAY < 108 else 10 for step in range(8 * DAY)}
    demand = Demand()
    for step in range(7 * DAY + 48 - 3):
        demand.add(step, days[step])
    assert demand.expected(7 * DAY + 48 - 3, 10) > 40
    assert Demand().expected(0, 10) == 10
    of = Limits(0.05, 100)
    late = replay({step: n for step, n in days.items() if step >= 7 * DAY}, 100, of)
    assert late.short == 1
    learned, six = replay(days, 100, of), replay({step: n for step, n in days.items() if step < 7 * DAY}, 100, of)
    assert learned.short == six.short < 7


def test_steps_that_nobody_saw_teach_nothing() -> None:
    demand = Demand()
    for step in (*range(AHEAD), *range(AHEAD + 1, 2 * AHEAD)):
        demand.add(step, step)
    assert demand.usual_rise(DAY) == 0.0
    demand.add(2 * AHEAD, 100)
    assert demand.usual_rise(DAY) == 0.0
