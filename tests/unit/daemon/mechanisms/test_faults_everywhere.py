"""One thing going wrong at every single point of a resize, all of them enumerated: it ends in bounded time, both ways.

The real rounds, store and rules against an in-memory Slurm. Half steps: a round of the daemon, or a step of the
supervisor, so that what goes wrong falls between any two of them. Every test run takes a third of the points with each
event, `make soak` all of them. Several things at once: at random in test_service_machine.py, and on a real Slurm.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from daemon_harness import Supervisor, World

from slurm_elastic.daemon.capacity.roster import sort_jobs
from slurm_elastic.daemon.mechanisms.reconcile import Bounds

HALF_STEPS = 9
"""A resize has run through all its states in fewer; asserted below."""
ROUND_S = 5.0
EVERY = "SELASTIC_EVERYWHERE" in os.environ


@contextmanager
def world() -> Iterator[World]:
    shm = "/dev/shm" if Path("/dev/shm").is_dir() else None  # thousands of commits, none of which has to last
    folder = Path(tempfile.mkdtemp(prefix="selastic-everywhere-", dir=shm))
    made = World(folder, nodes=4)
    try:
        yield made
    finally:
        made.store.close()
        shutil.rmtree(folder)


def begin_grow(at: World) -> Supervisor:
    """A job that has reported, with idle nodes beside it, just before the round that orders its grow."""
    job = at.elastic(1, 4, "elastic:gpus=4-12,step=4,batch=240-3840")
    for _ in range(20):
        before = at.store.resizes.under_way()
        at.slurm.now += ROUND_S
        job.step()
        if job.registered and not before:
            at.rounds.run()
        if at.store.resizes.under_way():
            return job
    raise AssertionError("no grow was ordered")


def begin_shrink(at: World) -> Supervisor:
    """A grown job, and an ordinary one that waits for what it has."""
    job = begin_grow(at)
    at.settle()
    assert job.gpus == 12
    at.rigid(3)
    for _ in range(20):
        at.slurm.now += ROUND_S
        at.rounds.run()
        if at.store.resizes.under_way():
            return job
    raise AssertionError("no shrink was ordered")


def daemon_dies(at: World, job: Supervisor) -> None:
    at.boot()


def daemon_dies_twice(at: World, job: Supervisor) -> None:
    at.boot()
    at.rounds.run()
    at.boot()


def supervisor_hangs_for_ever(at: World, job: Supervisor) -> None:
    job.silent = True


def slurmctld_is_away(at: World, job: Supervisor) -> None:
    at.slurm.reachable = False
    for _ in range(3):
        at.round(ROUND_S)
    at.slurm.reachable = True


def slurmctld_and_daemon_die(at: World, job: Supervisor) -> None:
    at.slurm.reachable = False
    at.boot()
    at.round(ROUND_S)
    at.slurm.reachable = True


def companions_die(at: World, job: Supervisor) -> None:
    for companion in at.companions():
        at.slurm.finish(companion)


def training_ends(at: World, job: Supervisor) -> None:
    job.end()


def base_dies(at: World, job: Supervisor) -> None:
    job.crash()


def rigid_job_comes(at: World, job: Supervisor) -> None:
    at.rigid(2)


def clock_goes_back(at: World, job: Supervisor) -> None:
    at.slurm.now -= 3600.0


EVENTS = (
    daemon_dies,
    daemon_dies_twice,
    supervisor_hangs_for_ever,
    slurmctld_is_away,
    slurmctld_and_daemon_die,
    companions_die,
    training_ends,
    base_dies,
    rigid_job_comes,
    clock_goes_back,
)
Event = Callable[[World, Supervisor], None]


def half_step(at: World, number: int) -> None:
    """The daemon's half or the supervisors'."""
    at.slurm.now += 0.5
    if number % 2:
        at.rounds.run()
        return
    for supervisor in at.supervisors.values():
        supervisor.step()


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.__name__)
@pytest.mark.parametrize("begin", [begin_grow, begin_shrink], ids=["grow", "shrink"])
def test_whatever_goes_wrong_wherever(begin: Callable[[World], Supervisor], event: Event) -> None:
    """At every half step of a grow and of a shrink: the resize that was under way ends within the sum of its bounds,
    nothing that nobody trains on is held, and the daemon still acts."""
    for point in range(0 if EVERY else EVENTS.index(event) % 3, HALF_STEPS, 1 if EVERY else 3):
        with world() as at:
            job = begin(at)
            [resize] = at.store.resizes.under_way()
            for number in range(point):
                half_step(at, number)
            event(at, job)
            bounds = Bounds()
            longest = bounds.issued_s + 2 * (60.0 + bounds.margin_s) + bounds.switch_s + bounds.release_s
            # A clock that was set back is waited for: times of the future are no times to count from.
            for _ in range(int((longest + (3600.0 if event is clock_goes_back else 0.0)) / ROUND_S) + 2):
                if not at.store.resizes.get(resize.id).open:
                    break
                at.round(ROUND_S)
            ended = at.store.resizes.get(resize.id)
            assert not ended.open, f"{event.__name__} at half step {point}: still {ended.state}"
            came_to_rest(at, job, f"{event.__name__} at half step {point}")


def came_to_rest(at: World, job: Supervisor, where: str) -> None:
    """Left alone, everything comes to rest with what Slurm holds being what is trained on."""
    at.settle(400) if not job.silent else [at.round(ROUND_S) for _ in range(60)]
    assert at.rounds.mode == "act", where
    snapshot = at.snapshot()
    if job.alive:
        held = sort_jobs(snapshot, accepted={job.job_id}).elastic[job.job_id]
        holds = {piece.slurm_job_id: set(piece.nodes) for piece in held.pieces}
        assert holds == {piece.slurm_job_id: set(piece.nodes) for piece in job.pieces}, where
        assert job.gpus >= 4, where
    else:
        assert at.companions() == [], where


def test_the_half_steps_reach_every_state() -> None:
    """The enumeration is one: without anything going wrong, a grow has passed through all its states and is over."""
    with world() as at:
        job = begin_grow(at)
        [resize] = at.store.resizes.under_way()
        seen = set()
        for number in range(HALF_STEPS):
            seen.add(at.store.resizes.get(resize.id).state)
            half_step(at, number)
        # The in-memory supervisor takes an order and asks for the companion in one step.
        assert seen == {"issued", "submitted", "granted", "ready", "running", "done"}
        assert job.gpus == 12
