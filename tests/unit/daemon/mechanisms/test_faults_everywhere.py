"""One thing going wrong at every single point of a resize, all of them enumerated: it ends in bounded time, both ways.

Every test run takes a third of the points with each event, `make soak-cluster` all of them. Several things at once: at
random in ../rounds/test_any_order.py, and on a real Slurm.
"""

from __future__ import annotations

import os

import campaign
import pytest
from daemon_ground import OneResize

EVERY = "SELASTIC_EVERYWHERE" in os.environ


@pytest.mark.parametrize("event", OneResize.kinds)
@pytest.mark.parametrize("direction", ["grow", "shrink"])
def test_whatever_goes_wrong_wherever(direction: str, event: str) -> None:
    """At every half step of a grow and of a shrink: the resize that was under way ends within the sum of its bounds,
    nothing that nobody trains on is held, and the daemon still acts."""
    first, every = (0, 1) if EVERY else (OneResize.kinds.index(event) % 3, 3)
    for point in range(first, OneResize.half_steps, every):
        campaign.run(OneResize(direction, point), rounds=1, most=1, kinds=(event,))


def test_the_half_steps_reach_every_state() -> None:
    """The enumeration is one: without anything going wrong, a grow has passed through all its states and is over."""
    ground = OneResize("grow", 0)
    ground.begin()
    seen = set()
    for number in range(ground.half_steps):
        seen.add(ground.state())
        ground.half_step(number)
    # The in-memory supervisor takes an order and asks for the companion in one step.
    assert seen == {"issued", "submitted", "granted", "ready", "running", "done"}
    assert ground.job.gpus == 12
    ground.close()
