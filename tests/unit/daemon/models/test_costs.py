"""What a resize is expected to cost a job that was not resized yet, and how often nodes are lost, over a real store."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from fresh_store import fresh_store
from store_records import JOB

from slurm_elastic.daemon.models.costs import REFRESH_S, Costs
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.rows import REQUEUE, CheckpointRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.messages import Piece

SETTINGS = Settings(assumed_pause_s=5.0, assumed_requeue_s=120.0)


class World:
    """A store, a clock, and the costs of both."""

    def __init__(self, store: Store) -> None:
        self.store, self.now = store, 100_000.0
        self.costs = Costs(store, SETTINGS, lambda: self.now)

    def job(self, job_id: int, *pauses: float, mb: float = 0.0, program: str = "", reason: str = "grow_idle") -> None:
        """A job that ran on two nodes for 1,000 s before each of its resizes."""
        self.store.jobs.upsert(dataclasses.replace(JOB, job_id=job_id))
        piece = Piece(job_id, "base", ("n1", "n2"), 4, "a100")
        for number, pause_s in enumerate((0.0, *pauses)):
            why = reason if number else "registered"
            self.store.allocations.note(job_id, number, (piece,), 64, self.now + 1000.0 * number, pause_s, why, number)
        if mb:
            self.store.outcomes.note_checkpoint(CheckpointRow(job_id, self.now, mb, 0.1, 1.0, 600.0, 0.0))
        if program:
            self.store.programs.note(job_id, program, "a100")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with fresh_store(f"sqlite:///{tmp_path}/a.db") as store:
        yield World(store)


def test_nothing_is_said_before_anything_was_measured(world: World) -> None:
    """The settings' assumptions stand."""
    world.job(1)
    assert (
        world.costs.likely_s([1], False).get(1),
        world.costs.likely_s([1], True).get(1),
        world.costs.estimate(1, False),
    ) == (None,) * 3


def test_others_pauses_and_the_size_of_the_state_say_it(world: World) -> None:
    """A second for 1 GB, eleven for 10 GB: a job of 5 GB needs about six; its size is known by its program's last
    run; of a job of which nothing is known it is the median."""
    for job_id in range(1, 11):
        mb = 1000.0 * (1 + 9 * (job_id % 2))
        world.job(job_id, *[0.2 + mb / 1000] * 3, mb=mb, program="alice:other.py")
    world.job(20, mb=5000.0, program="alice:train.py")
    world.job(21, program="alice:train.py")
    world.job(22)
    for job_id in (20, 21):
        assert world.costs.likely_s([job_id], False).get(job_id) == pytest.approx(5.2, rel=0.1)
    assert world.costs.likely_s([22], False).get(22) == pytest.approx(5.2, rel=0.1)
    assert world.costs.likely_s([20], True).get(20) is None
    found = world.costs.estimate(20, False)
    assert found is not None and found.low < 5.2 < found.high < 9.0


def test_a_jobs_own_resizes_count_most(world: World) -> None:
    """With its own resizes the estimate goes to them, and becomes narrower."""
    for job_id in range(1, 6):
        world.job(job_id, 1.0, 1.1)
    world.job(9, 3.0, 3.1, 2.9, 3.0)
    found = world.costs.estimate(9, False)
    assert found is not None and found.seconds == pytest.approx(3.0, rel=0.15)
    assert found.low > 1.5


def test_its_own_first_resize_is_enough(world: World) -> None:
    """Though the others' are not read again yet."""
    world.job(1)
    assert world.costs.estimate(1, False) is None
    world.job(2, 0.5)
    found = world.costs.estimate(2, False)
    assert found is not None and found.low < 0.5 < found.high < 2.0


def test_requeues_are_another_kind(world: World) -> None:
    """A minute of restarting says nothing of a pause of a second."""
    world.job(1, 60.0, 62.0, reason=REQUEUE)
    world.job(2, 1.0)
    world.job(3)
    assert world.costs.likely_s([3], True).get(3) == pytest.approx(61.0, rel=0.15)
    assert world.costs.likely_s([3], False).get(3) == pytest.approx(1.0, rel=0.3)


def test_it_is_read_again_after_a_while(world: World) -> None:
    """Not in every round: a job stays the same from one to the next."""
    world.job(1)
    assert world.costs.likely_s([1], False).get(1) is None
    world.job(2, 1.0)
    assert world.costs.likely_s([1], False).get(1) is None
    world.now += REFRESH_S
    assert world.costs.likely_s([1], False).get(1) == pytest.approx(1.0, rel=0.3)


def test_lost_nodes_are_counted_over_the_time_that_nodes_trained(world: World) -> None:
    """A job's first start and its resizes are none, a script that fails again and again counts once; other partitions
    have their own."""
    world.job(1, 0.0, reason="grow_idle")
    world.now += 2000.0
    assert world.costs.node_failure_s("gpu") == 0.0
    world.job(2, 0.0, 0.0, reason="restart")  # a thousand seconds apart, within an hour
    world.now += 2000.0
    trained = 2 * (4000.0 + 2000.0)
    assert world.costs.node_failure_s(JOB.partition) == pytest.approx(trained)
    assert world.costs.node_failure_s("cpu") == 0.0
