"""A job is charged for what Slurm says it holds, whatever its supervisor names."""

from __future__ import annotations

from dataclasses import replace

import pytest
from daemon_harness import REQUEST, World
from fake_slurm import Component

from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.daemon.reports.history import acct
from slurm_elastic.daemon.rounds.job_registry import held_pieces
from slurm_elastic.daemon.slurm.model import Job
from slurm_elastic.protocol.codec import VERSION
from slurm_elastic.protocol.messages import Happening, Piece, Registration

BASE = Job(7, "RUNNING", "ada", 1000, nodes=("n1", "n2"), gpus=8, gpus_per_node=4)
COMPANION = replace(
    BASE, job_id=8, name="selastic-7", comment="selastic:companion-of=7;resize=3", nodes=("n3",), gpus=2
)
JOBS = {
    7: BASE,
    8: COMPANION,
    9: replace(BASE, job_id=9, nodes=("n4",), gpus=4),
    10: replace(COMPANION, job_id=10, uid=2000),
    11: replace(COMPANION, job_id=11, state="PENDING", nodes=()),
    12: replace(BASE, job_id=12, het_job_id=7, het_offset=1, nodes=("n5",), gpus=1),
}
WHOLE = Piece(7, "base", ("n1", "n2"), 4)


@pytest.mark.parametrize(
    ("named", "gpus"),
    [
        ((WHOLE,), 8),
        ((WHOLE, Piece(8, "companion", ("n3",), 2)), 10),
        ((Piece(7, "base", ("n2",), 3),), 3),
        ((Piece(7, "base", ("n1", "n2"), 80_000),), 8),
        ((Piece(7, "base", ("n1",) * 4000, 4),), 4),
        ((Piece(7, "base", tuple(f"n{i}" for i in range(4000)), 4),), 8),
        ((WHOLE,) * 50, 8),
        ((WHOLE, Piece(9, "companion", ("n4",), 4)), 8),
        ((WHOLE, Piece(10, "companion", ("n3",), 2), Piece(11, "companion", ("n3",), 2)), 8),
        ((WHOLE, Piece(999, "companion", ("n9",), 4)), 8),
        ((), 0),
    ],
)
def test_no_more_is_held_than_slurm_gave(named: tuple[Piece, ...], gpus: int) -> None:
    """More GPUs, nodes or pieces, twice the same, another job, another user's companion, one that waits or is not."""
    assert sum(piece.gpus for piece in held_pieces(BASE, named, JOBS)) == gpus


def test_components_are_held() -> None:
    """Those of the job's own heterogeneous job."""
    base = replace(BASE, het_job_id=7)
    pieces = (WHOLE, Piece(12, "component", ("n5",), 1))
    assert held_pieces(base, pieces, {**JOBS, 7: base}) == pieces


def charged(world: World) -> list[tuple[int, float | None]]:
    """GPUs and GPU-hours of each row."""
    return [(row.gpus, row.gpu_hours) for row in acct(world.store, Viewer(0, admin=True), world.slurm.now)]


@pytest.mark.parametrize("phase", [False, True])
def test_a_supervisor_is_charged_for_what_its_job_holds(world: World, phase: bool) -> None:
    """One whose job has 4 GPUs and who registers 160,000, or says that so many train, is charged for 4."""
    job = world.slurm.submit(Component(1, 4), user="games", comment=REQUEST)
    world.rounds.run()
    claim = (Piece(job, "base", tuple(f"n{i}" for i in range(1, 4001)), 40),)
    if phase:
        world.controller.happened(job, Happening(0, "running", 1, claim, 240, world.slurm.now))
    else:
        world.jobs.snapshot()
        world.controller.registered(job, Registration(VERSION, 0, claim, 240, "train.py"))
    world.slurm.now += 3600
    assert charged(world) == [(4, 4.0)]
    assert world.store.allocations.rows(job)[0].node_list == "n1"


def test_what_has_just_begun_counts(world: World) -> None:
    """A companion that started after the last look counts from the beginning of the world on it, once a round has seen
    it; what is never seen counts for nothing."""
    job = world.slurm.submit(Component(1, 4), user="games", comment=REQUEST)
    world.rounds.run()
    world.jobs.snapshot()
    tag = f"selastic:companion-of={job};resize=1"
    more = world.slurm.submit(Component(1, 4), user="games", batch=False, name=f"selastic-{job}", comment=tag)
    node = world.snapshot().jobs[more].nodes
    pieces = (Piece(job, "base", ("n1",), 4), Piece(more, "companion", node, 4), Piece(999, "companion", ("n8",), 4))
    world.controller.happened(job, Happening(0, "running", 1, pieces, 240, world.slurm.now))
    assert charged(world) == [(4, 0.0)]
    world.slurm.now += 5
    world.rounds.run()
    world.slurm.now += 3595
    assert charged(world) == [(8, 8.0)]
    assert [row.node_list for row in world.store.allocations.rows(job)] == [",".join(("n1", *node))]
