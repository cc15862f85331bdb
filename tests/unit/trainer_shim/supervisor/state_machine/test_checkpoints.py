"""How often the supervisor asks for a checkpoint where nobody says, and that selasticd hears of it."""

from __future__ import annotations

import pytest
from supervisor_harness import BASE, Drive

from slurm_elastic.protocol.messages import Grant, Rate
from slurm_elastic.trainer_shim.allocation.pieces.actions import Tell
from slurm_elastic.trainer_shim.allocation.pieces.events import Registered
from slurm_elastic.trainer_shim.supervisor.state_machine.actions import Send
from slurm_elastic.trainer_shim.supervisor.state_machine.context import RunLimits


def saved(drive: Drive, **cost: float) -> None:
    """Rank 0 has a checkpoint on disk."""
    drive.say("10.n1.0", "saved", step=7, samples=70, path="p", **cost)


def told(drive: Drive) -> list[float]:
    """The intervals that selasticd was told."""
    return [action.said.every_s for action in drive.every(Tell) if isinstance(action.said, Rate)]


def test_checkpoints_come_as_often_as_failures_and_their_cost_say() -> None:
    """A cheap one where nodes are lost often comes soon; what a longer one costs makes it rarer; selasticd hears of it
    once, and again when it is another."""
    drive = Drive().up()
    drive(Registered(Grant("t", managed=True, report_interval_s=5.0, node_failure_s=80_000.0)))  # two nodes
    saved(drive, pause_s=0.5, write_s=2.0, megabytes=100.0)
    assert told(drive) == [pytest.approx(200.0, rel=0.01)]
    assert not drive.wait(190.0)
    assert drive.wait(15.0) == [Send("10.n1.0", {"type": "checkpoint"})]
    saved(drive, pause_s=0.52, write_s=2.0, megabytes=100.0)
    assert len(told(drive)) == 1
    saved(drive, pause_s=8.0, write_s=2.0, megabytes=1600.0)
    assert told(drive)[1:] == [pytest.approx(797.0, rel=0.02)]


@pytest.mark.parametrize(
    ("limits", "script_s"), [(RunLimits(checkpoint_s=50.0, checkpoint_given=True), 0.0), (None, 50.0)]
)
def test_what_the_user_says_is_what_is_done(limits: RunLimits | None, script_s: int) -> None:
    """--checkpoint-every, or checkpoint_every_s of the script, whatever would be best."""
    drive = Drive(limits=limits).up(checkpoint_s=script_s)
    drive(Registered(Grant("t", managed=True, report_interval_s=5.0, node_failure_s=40_000.0)))
    saved(drive, pause_s=0.5, write_s=2.0, megabytes=100.0)
    assert told(drive) == [50.0]


def test_without_failures_the_default_stands() -> None:
    """No failure was observed, or no cost measured: 600 s; of a cost that was not measured selasticd hears nothing."""
    drive = Drive().up()
    saved(drive, pause_s=0.5, write_s=2.0, megabytes=100.0)
    assert told(drive) == [600.0]
    drive = Drive().up()
    drive(Registered(Grant("t", managed=True, report_interval_s=5.0, node_failure_s=40_000.0)))
    saved(drive)
    assert told(drive) == []


def test_a_change_of_batch_puts_no_checkpoint_off() -> None:
    """Nothing is saved where the batch alone changes: the next checkpoint comes when it would have come."""
    drive = Drive().up(takes_batches=True)
    drive.wait(590.0)
    drive.order(1, (BASE,), batch=128)
    drive.running(2)
    assert drive.context.batch == 128
    assert drive.wait(15.0) == [Send("10.n1.0", {"type": "checkpoint"})]
