"""What supervisors say of their jobs' steps and ends, and what Slurm says of those that say nothing."""

from __future__ import annotations

from dataclasses import replace

import pytest
from daemon_harness import REQUEST, World
from fake_slurm import Component

from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.messages import Happening, Piece, Registration


def registration(*pieces: Piece) -> Registration:
    return Registration(VERSION, 0, pieces, 240, "train.py")


def test_a_phase_told_twice_changes_nothing(world: World) -> None:
    """Phases are sent again until they are acknowledged."""
    job = world.elastic()
    world.settle()
    rows = len(world.store.allocations.rows(job.job_id))
    last = world.store.resizes.last_closed(job.job_id)
    assert last is not None
    again = Happening(last.id, "running", job.generation, job.pieces, job.batch, world.slurm.now)
    world.controller.happened(job.job_id, again)
    late = Happening(last.id, "granted", job.generation, job.pieces, job.batch, world.slurm.now)
    world.controller.happened(job.job_id, late)
    assert len(world.store.allocations.rows(job.job_id)) == rows
    assert world.store.resizes.get(last.id).state == "done"


def test_every_step_is_counted_at_the_size_that_did_it(world: World) -> None:
    """A world says that it runs after its first step: that step, however short, is the new size's."""
    job = world.slurm.submit(Component(1, 4), user="games", comment=REQUEST)
    pieces = (Piece(job, "base", ("n1",), 4),)
    small, large = 240, 480
    world.register(job, replace(registration(*pieces), generation=1))
    told = [
        ("running", 1, small, 1, 0),
        ("running", 2, large, 50, 49 * small),
        ("finished", 2, large, 60, 49 * small + 5 + 10 * large),
    ]
    for phase, generation, batch, step, samples in told:
        now = world.slurm.now
        world.controller.happened(job, Happening(0, phase, generation, pieces, batch, now, step=step, samples=samples))
    rows = [(row.steps, row.samples) for row in world.store.allocations.rows(job)]
    assert rows == [(49, 49 * small), (11, 5 + 10 * large)]


@pytest.mark.parametrize(
    ("exit_code", "state"), [(0, "COMPLETED"), (143, "CANCELLED"), (130, "CANCELLED"), (1, "FAILED"), (137, "FAILED")]
)
def test_a_job_ends_as_its_supervisor_says(world: World, exit_code: int, state: str) -> None:
    """Only exit code 0 is recorded as completed; the code stands in the events."""
    job = world.elastic()
    world.settle()
    over = Happening(0, "finished", job.generation, job.pieces, job.batch, world.slurm.now, exit_code=exit_code)
    world.controller.happened(job.job_id, over)
    job.crash()
    world.settle()
    row = world.store.jobs.get(job.job_id)
    assert row is not None and row.state == state
    told = {event.kind: event.detail for event in world.store.events.of(job.job_id)}
    assert told["finished"]["exit_code"] == exit_code
    assert told["ended"] == {"state": state, "exit_code": exit_code}


def test_a_job_that_ends_while_nobody_listens_ends_as_slurm_says(world: World) -> None:
    """Near a restart of selasticd, for instance."""
    job = world.elastic()
    world.settle()
    world.slurm.ended_as[job.job_id] = "TIMEOUT"
    job.crash()
    world.settle()
    row = world.store.jobs.get(job.job_id)
    assert row is not None and row.state == "TIMEOUT"


def test_a_job_that_ends_without_a_word_just_ended(world: World) -> None:
    """Neither completed nor failed is made up."""
    job = world.elastic()
    world.settle()
    job.crash()
    world.settle()
    row = world.store.jobs.get(job.job_id)
    assert row is not None and row.state == "ENDED"
    assert [event.detail for event in world.store.events.of(job.job_id) if event.kind == "ended"] == [
        {"state": "ENDED"}
    ]


def test_a_requeued_job_is_decided_about_again(world: World) -> None:
    """It keeps its id: what its first run said of its end holds no longer once the next one registers."""
    job = world.elastic()
    world.settle()
    over = Happening(0, "finished", job.generation, job.pieces, job.batch, world.slurm.now, exit_code=143)
    world.controller.happened(job.job_id, over)
    world.round()
    before = len(world.store.decisions.of(job.job_id, 100))
    base, *companions = job.pieces
    for piece in companions:
        world.slurm.client("games").cancel(piece.slurm_job_id)
    job.pieces, job.generation = (base,), job.generation + 1
    job.register()
    world.settle()
    assert len(world.store.decisions.of(job.job_id, 100)) > before
    assert job.gpus == 24
    job.crash()
    world.settle()
    row = world.store.jobs.get(job.job_id)
    assert row is not None and row.state == "ENDED"


def test_the_first_world_of_an_unmanaged_job_is_no_restart(world: World) -> None:
    """Its registration opens no allocation, its first world does; the next world is a restart."""
    job = world.slurm.submit(Component(1, 4), user="games", comment="elastic:gpus=8-16,batch=256")
    pieces = (Piece(job, "base", ("n1",), 4),)
    world.register(job, registration(*pieces))
    world.rounds.run()
    for generation in (1, 2):
        world.slurm.now += 1
        world.controller.happened(job, Happening(0, "running", generation, pieces, 256, world.slurm.now))
    assert [row.reason for row in world.store.allocations.rows(job)] == ["registered", "restart"]


@pytest.mark.parametrize("ahead", [90, 1e6])
def test_a_clock_that_is_wrong_is_not_believed(world: World, ahead: float) -> None:
    """A node whose clock is ahead does not write history."""
    job = world.elastic()
    job.step()
    phase = Happening(0, "running", 1, job.pieces, 480, world.slurm.now + ahead)
    world.controller.happened(job.job_id, phase)
    assert world.store.allocations.rows(job.job_id)[-1].start <= world.slurm.now
