"""What a job does for itself while selasticd stays silent, without any process."""

from __future__ import annotations

from dataclasses import replace

import pytest
from supervisor_harness import Drive

from slurm_elastic.protocol.messages import Grant, Happening, Piece, Shape
from slurm_elastic.trainer_shim.allocation.pieces.actions import DropCompanions, SubmitCompanion, Tell
from slurm_elastic.trainer_shim.allocation.pieces.alone import PAUSE_S, TRIES, next_part
from slurm_elastic.trainer_shim.allocation.pieces.events import (
    AgentLost,
    CompanionGranted,
    CompanionRefused,
    JobTerminating,
    Registered,
    Silent,
)

SMALL = Piece(10, "base", ("n1",), 1)
SCRIPT = Shape(2, 4, cpus_per_node=8, mem_mb_per_node=4000)
GRANT = Grant("t", True, script=(SCRIPT,), alone_after_s=600.0)
LONG = Silent(600.0)


def small(grant: Grant | None = GRANT) -> Drive:
    """A job that trains on one GPU of the eight that its script asks for."""
    drive = Drive(SMALL).up()
    if grant is not None:
        drive(Registered(grant))
    return drive


def joined(drive: Drive, asked: SubmitCompanion, piece: Piece) -> None:
    """Slurm grants what was asked for, and the training goes over to it."""
    drive(CompanionGranted(asked.resize_id, asked.index, piece))
    drive.ready(drive.agents_up(piece))
    drive.running(drive.context.generation)


def test_a_job_that_started_small_gets_what_its_script_asks_for() -> None:
    """The rest of a node first, then whole nodes; then no more. selasticd hears of it as of what Slurm takes: of no
    resize of its own."""
    drive = small()
    drive(LONG)
    [first] = drive.new(SubmitCompanion)
    assert first.shape == replace(SCRIPT, nodes=1, gpus_per_node=3, cpus_per_node=6, mem_mb_per_node=3000)
    drive(LONG)
    assert not drive.new(SubmitCompanion), "one at a time"
    joined(drive, first, Piece(11, "companion", ("n1",), 3))
    drive.wait(PAUSE_S)
    drive(LONG)
    [second] = drive.new(SubmitCompanion)
    assert second.shape == replace(SCRIPT, nodes=1) and second.resize_id != first.resize_id
    joined(drive, second, Piece(12, "companion", ("n2",), 4))
    drive.wait(1e6)
    drive(LONG)
    assert not drive.new(SubmitCompanion) and not drive.every(DropCompanions)
    assert sum(piece.gpus for piece in drive.context.pieces) == SCRIPT.gpus
    said = [tell.said for tell in drive.every(Tell) if isinstance(tell.said, Happening)]
    assert {one.resize for one in said} == {0}
    assert (said[-1].what, said[-1].pieces) == ("running", drive.context.pieces)


@pytest.mark.parametrize(
    ("grant", "silence"),
    [
        (None, LONG),
        (replace(GRANT, script=()), LONG),
        (replace(GRANT, script=(Shape(1, 1),)), LONG),
        (replace(GRANT, script=(Shape(8, 0),)), LONG),
        (replace(GRANT, alone_after_s=0.0), LONG),
        (GRANT, Silent(599.0)),
    ],
)
def test_nothing_is_asked_for(grant: Grant | None, silence: Silent) -> None:
    """Without a word of what the script asks for, where the job has that, and before the time that the site gives."""
    drive = small(grant)
    drive(silence)
    assert not drive.every(SubmitCompanion)


def test_a_job_that_is_about_to_end_asks_for_nothing() -> None:
    """Slurm would take back what it got."""
    drive = small()
    drive(JobTerminating(60.0, stop=False))
    drive(LONG)
    assert not drive.every(SubmitCompanion)


def test_what_slurm_refuses_is_asked_for_a_few_times() -> None:
    """After ever longer pauses; again once selasticd has been there."""
    drive = small()
    for number in range(TRIES):
        drive(LONG)
        [asked] = drive.new(SubmitCompanion)
        drive(CompanionRefused(asked.resize_id, 0, "no"))
        drive.wait(PAUSE_S * 2**number - 1.0)
        drive(LONG)
        assert not drive.new(SubmitCompanion)
        drive.wait(1.0)
    drive(LONG)
    assert not drive.new(SubmitCompanion)
    drive(Registered(GRANT))
    drive(LONG)
    assert drive.new(SubmitCompanion)


def test_a_selasticd_that_comes_back_has_its_way() -> None:
    """Its resize takes the place of the request; what was got before stays."""
    drive = small()
    drive(LONG)
    joined(drive, drive.new(SubmitCompanion)[0], Piece(11, "companion", ("n1",), 3))
    drive.wait(PAUSE_S)
    drive(LONG)
    [waits] = drive.new(SubmitCompanion)
    held = drive.context.pieces
    drive.order(7, held[:1])
    assert drive.every(DropCompanions) == [DropCompanions(waits.resize_id)]
    drive.quiesce(("11.n1.0", "11.n1.1", "11.n1.2"))
    drive.running(drive.context.generation)
    assert drive.phases(7)[-1] == "running" and drive.context.pieces == held[:1]


@pytest.mark.parametrize(
    ("script", "held", "found"),
    [
        (Shape(4, 8), 16, Shape(2, 8)),
        (Shape(1, 4), 3, Shape(1, 1)),
        (Shape(4, 8), 31, Shape(1, 1)),
        (Shape(2, 2), 5, None),
    ],
)
def test_parts_are_whole_nodes_once_they_can_be(script: Shape, held: int, found: Shape | None) -> None:
    """Never more than the script asks for in all."""
    assert next_part(script, held) == found


def test_a_node_that_was_lost_meanwhile_is_asked_for_again() -> None:
    """Nobody else would replace it."""
    drive = Drive(Piece(10, "base", ("n1", "n2"), 4)).up()
    drive(Registered(GRANT))
    drive(AgentLost((10, "n2")))
    drive.settle()
    assert sum(piece.gpus for piece in drive.context.pieces) == 4
    drive(LONG)
    assert [asked.shape for asked in drive.new(SubmitCompanion)] == [replace(SCRIPT, nodes=1)]
