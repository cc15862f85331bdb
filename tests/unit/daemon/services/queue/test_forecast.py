"""When waiting jobs start, and how far from that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurm_elastic.daemon.capacity.free_gpus import FreeGpus
from slurm_elastic.daemon.services.queue.forecast import KNOWN, Bounds, Held, Wanted, starts


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
