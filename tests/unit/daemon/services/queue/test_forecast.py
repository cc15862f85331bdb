"""How long jobs run, in which order those that wait start, when, and how far from that."""

from __future__ import annotations

from math import inf

from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.daemon.capacity.free_gpus import FreeGpus
from slurm_elastic.daemon.services.queue.forecast import (
    AGES_S,
    ENDED_KEPT,
    KNOWN,
    Bounds,
    Ended,
    Held,
    RunTimes,
    Wanted,
    need,
    site_factor,
    starts,
)

SECONDS = st.floats(1, 1e7)
GPUS = st.integers(1, 512)


@given(SECONDS, GPUS, SECONDS, GPUS)
def test_who_needs_less_is_never_behind(first: float, gpus: int, second: float, others: int) -> None:
    """Both came at the same time."""
    mine, theirs = need(first, gpus, 0), need(second, others, 0)
    assert (site_factor(mine, 1000) >= site_factor(theirs, 1000)) or mine > theirs


@given(SECONDS, GPUS, st.floats(0, 1e8), st.integers(1, 10**9))
def test_the_factor_is_bounded_and_grows_with_the_wait(left: float, gpus: int, waited: float, most: int) -> None:
    """From 0 to the most that the admin allows."""
    now, later = (site_factor(need(left, gpus, at), most) for at in (waited, waited + 86400))
    assert 0 <= now <= later <= most


def test_nobody_starves() -> None:
    """A month of 8 GPUs that has waited for 14 weeks goes before an hour of one GPU that has just come."""
    assert need(30 * 86400.0, 8, 82 * AGES_S) < need(3600, 1, 0)
    assert need(86400.0, 8, AGES_S) == need(86400.0, 4, 0)


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
    times = known(*[("a", "x", 1, 10.0)] * ENDED_KEPT, *[("a", "x", 1, 99.0)] * ENDED_KEPT)
    assert times.left_s("a", "x", 1, inf) == 99


def busy(sizes: list[int], *running: Held) -> FreeGpus:
    free = FreeGpus(sizes)
    for _, nodes, gpus in running:
        free.take(nodes, gpus)
    return free


def test_one_that_finds_no_room_keeps_its_place() -> None:
    """Job 2 needs both nodes at 100; job 3 would be in its way, job 4 is over by then."""
    running: Held = (100.0, [0], 4)
    queue = [Wanted(2, 2, 4, 50), Wanted(3, 1, 4, 200), Wanted(4, 1, 4, 90)]
    assert starts(0, busy([4, 4], running), [running], queue) == {4: 0, 2: 100, 3: 150}


def test_one_that_fits_beside_the_first_starts() -> None:
    """Job 2 needs four GPUs of a node at 100; on the other node two are left for job 3 even then."""
    running: Held = (100.0, [0], 4)
    free = busy([4, 4], running, (1e9, [1], 2))
    assert starts(0, free, [running], [Wanted(2, 1, 4, 50), Wanted(3, 1, 2, 900)]) == {3: 0, 2: 100}


def test_nodes_that_a_job_may_not_have_are_not_its_room() -> None:
    """A job of a partition that is full does not hold up another's; one that fits nowhere has no start."""
    running: Held = (100.0, [0], 4)
    queue = [Wanted(2, 1, 4, 50, frozenset({1})), Wanted(3, 1, 4, 900, frozenset({0})), Wanted(4, 3, 4, 9)]
    assert starts(0, busy([4, 4], running), [running], queue) == {2: 100, 3: 0}


JOBS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 50)), max_size=12)


@given(JOBS)
def test_no_gpu_is_given_twice_and_all_that_fit_start(asked: list[tuple[int, int, int]]) -> None:
    """At each start, what runs is no more than there is."""
    queue = [Wanted(number, *one) for number, one in enumerate(asked)]
    found = starts(0, FreeGpus([4, 4, 4]), [], queue)
    assert len(found) == len(queue)
    for at in found.values():
        held = sum(j.nodes * j.gpus_per_node for j in queue if found[j.job_id] <= at < found[j.job_id] + j.seconds)
        assert held <= 12
    assert not queue or min(found.values()) == found[0] == 0


def test_bounds_come_from_what_forecasts_were_worth() -> None:
    """Here jobs start after one to two times as long as was said; one that is cancelled teaches nothing."""
    bounds, now = Bounds(), 0.0
    assert bounds.around(0, 600) == (160.0, 1920.0)
    for job_id in range(2 * KNOWN):
        bounds.foretold(now, {job_id: now + 600})
        bounds.foretold(now + 1, {job_id: now + 9999})
        bounds.waits([job_id], {})
        waits = 600 * (1 + job_id / (2 * KNOWN))
        bounds.waits([], {job_id: now + waits} if job_id % 10 else {})
        now += 10_000
    low, high = bounds.around(0, 600)
    assert 600 < low < 750 and 1050 < high < 1200
