"""What the weights of jobs are multiplied by."""

from __future__ import annotations

import math

import pytest

from slurm_elastic.daemon.optimizer.weights import (
    LEAST,
    MOST_POWER,
    fairness_factors,
    group_shares,
    short_factors,
    within_groups,
    worth_preferring,
)

ALONE, MANY = (("user alone", 1.0),), (("user many", 1.0),)


def test_a_group_shares_one_weight() -> None:
    """Of four jobs three are one user's: each user's together count as much. With one group nothing changes."""
    jobs = {1: ALONE, 2: MANY, 3: MANY, 4: MANY}
    assert fairness_factors(jobs) == pytest.approx({1: 1.0, 2: 1 / 3, 3: 1 / 3, 4: 1 / 3})
    shares = group_shares(jobs)
    assert (shares[ALONE].part, shares[ALONE].jobs) == (0.5, 1) and (shares[MANY].part, shares[MANY].jobs) == (0.5, 3)
    assert fairness_factors({1: ALONE, 2: ALONE}) == fairness_factors({}) == {}


def test_what_an_account_has_is_divided_among_its_users_that_have_jobs() -> None:
    """30 shares against 10: three quarters, of which two users with 5 and 1 get five sixths and a sixth."""
    physics, chemistry = ("account physics", 30.0), ("account chemistry", 10.0)
    jobs = {
        1: (physics, ("user ann", 5.0)), 2: (physics, ("user bob", 1.0)), 3: (physics, ("user bob", 1.0)),
        4: (chemistry, ("user cyd", 7.0)),
    }  # fmt: skip
    parts = {group[-1][0]: share.part for group, share in group_shares(jobs).items()}
    assert parts == pytest.approx({"user ann": 0.625, "user bob": 0.125, "user cyd": 0.25})
    factors = fairness_factors(jobs)
    assert [factors[i] / factors[4] for i in (1, 2, 3)] == pytest.approx([2.5, 0.25, 0.25])


def test_a_job_that_comes_changes_the_weights_of_its_own_group_alone() -> None:
    """To the last bit, so that what was computed for the others stays; in a large group mostly nobody's."""
    others = {i: ((f"user {i % 49}", 1.0),) for i in range(200, 400)}
    few, more = ({**dict.fromkeys(range(n), MANY), **others} for n in (50, 51))
    before, after = fairness_factors(few), fairness_factors(more)
    assert all(before[i] == after[i] for i in others) and before[0] != after[0]
    changes = [fairness_factors({**dict.fromkeys(range(n), MANY), 999: ALONE})[0] for n in range(600, 632)]
    assert len(set(changes)) == 2 and max(abs(n * f - 1) for n, f in enumerate(changes, 600)) < 1 / 63


def test_jobs_count_by_their_place_in_the_order_of_what_is_left() -> None:
    """By the square root: 1, 3, 5, 7 from the longest to the shortest, on the grid of an eighth of a doubling; the
    average is 1, whatever the amounts are. Jobs with as much left count alike."""
    factors = short_factors({1: 8e5, 2: 3e3, 3: 2e3, 4: 10.0}, 0.5)
    assert [factors.get(job, 1.0) for job in (1, 2, 3, 4)] == pytest.approx([0.25, 0.75, 1.25, 1.75], rel=0.05)
    steps = [8 * math.log2(factor) for factor in factors.values()]
    assert steps == pytest.approx([round(step) for step in steps])
    alike = short_factors({1: 1000.0, 2: 1010.0, 3: 90.0}, 0.5)
    assert alike[1] == alike[2] < alike[3]
    assert short_factors({1: 1000.0, 2: 1010.0}, 0.5) == short_factors({1: 1000.0}, 0.5) == {}


def test_what_is_left_gives_no_user_more() -> None:
    """Two short trainings of one user against two long ones of another: each user's count as much together, and among
    a user's own the shorter counts more. With one user, or none, the order is that of all jobs."""
    short = short_factors({1: 10.0, 2: 100.0, 3: 1e4, 4: 1e6}, 0.5)
    within = within_groups(short, {1: ALONE, 2: ALONE, 3: MANY, 4: MANY})
    counts = [within.get(job, 1.0) for job in (1, 2, 3, 4)]
    assert counts[0] > counts[1] and counts[2] > counts[3]
    assert sum(counts[:2]) == pytest.approx(sum(counts[2:]), rel=2 * (2 ** (1 / 16) - 1))
    assert within_groups(short, {}) == within_groups(short, dict.fromkeys((1, 2, 3, 4), MANY)) == short


def test_a_shorter_job_that_ends_or_comes_changes_nobodys_weight() -> None:
    """As long as the jobs are about as many: what was planned for the others is found again."""
    work = {job: 1000.0 * job for job in range(3, 40)}
    assert short_factors({**work, 1: 5.0}, 0.5).items() > short_factors(work, 0.5).items()


@pytest.mark.parametrize(
    ("left", "gpus", "worth"),
    [(1e3, 1.0, 0.0), (4e4, 64.0, 0.0), (2e3, 1.0, 0.75), (4800.0, 2.0, 1.0), (1e9, 8.0, 1.0), (1e9, 0.0, 1.0)],
)
def test_the_short_are_preferred_where_the_middle_one_trains_on_for_long(
    left: float, gpus: float, worth: float
) -> None:
    """By what an equal share of GPUs would still take it; what one script says of itself changes nothing."""
    work = {1: 0.0, **dict.fromkeys(range(2, 9), left), 9: 1e30}
    assert worth_preferring(work, gpus) == worth_preferring({**work, 1: left, 9: left}, gpus) == worth
    assert worth_preferring({}, gpus) == 0.0


@pytest.mark.parametrize("power", [0.3, 0.5, 0.9, 1.0])
def test_no_estimate_moves_a_weight_beyond_the_bounds(power: float) -> None:
    """A script that says it is as good as done gains e = 1 / (1 - power) at most, the grid aside; one that never ends
    keeps an eighth of the average."""
    work = {1: 0.0, 2: 1e30, **dict.fromkeys(range(3, 99), 5000.0)}
    found = short_factors(work, power)
    assert 1.0 < found[1] <= 1.1 / (1.0 - min(power, MOST_POWER)) and LEAST <= found[2] < 0.14
    assert short_factors(work, 0.0) == short_factors({}, power) == {}
