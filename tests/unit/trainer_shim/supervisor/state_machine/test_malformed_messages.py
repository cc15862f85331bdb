"""What workers say may be anything, in every state of a job: the machine raises nothing, and can still end it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from malformed import MESSAGES
from supervisor_harness import BASE, COMPANION, SHAPE, Drive

from slurm_elastic.trainer_shim.allocation.pieces.events import CompanionGranted, JobTerminating
from slurm_elastic.trainer_shim.supervisor.state_machine.events import WorkerMessage


def starting() -> Drive:
    return Drive()


def forming() -> Drive:
    drive = Drive()
    drive.ready(drive.agents_up(BASE))
    return drive


def running() -> Drive:
    return Drive().up()


def agreeing() -> Drive:
    """Two workers are to join a world that runs."""
    drive = Drive().up()
    drive.order(1, (BASE,), (SHAPE,))
    drive(CompanionGranted(1, 0, COMPANION))
    drive.ready(drive.agents_up(COMPANION))
    return drive


def grown() -> Drive:
    return Drive().up().grown()


@pytest.mark.parametrize("state", [starting, forming, running, agreeing, grown])
@example(who=0, messages=[{"type": "running", "generation": float("inf"), "batch": 10**400}])
@example(who=0, messages=[{"type": "ready", "unit": 10**400, "micro_batch": float("inf")}])
@given(who=st.integers(0, 5), messages=st.lists(MESSAGES, max_size=6))
def test_no_message_of_a_worker_raises(state: Any, who: int, messages: list[dict[str, Any]]) -> None:
    """Of every type, with values of every kind; a job that is then told to end does."""
    drive = state()
    for message in messages:
        names = sorted(drive.context.workers) or ["nobody"]
        drive(WorkerMessage(names[who % len(names)], message))
    drive(JobTerminating(5.0, stop=True, code=143))
    drive.wait(1000.0)
    drive.die_when_killed()
    drive.wait(1000.0)
    assert len(drive.exits()) == 1
