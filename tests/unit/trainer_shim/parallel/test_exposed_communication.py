"""How long gradients travel while nothing is computed: with clocks and with a GPU's events."""

from __future__ import annotations

import pytest
import torch

from slurm_elastic.trainer_shim.parallel import ddp
from slurm_elastic.trainer_shim.parallel.ddp import ExposedCommunication


def test_on_a_cpu_it_is_the_time_from_the_last_gradient_to_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing where no bucket was sent: a micro batch that is not its step's last, or one rank alone."""
    now = iter([10.0, 10.25])
    monkeypatch.setattr(ddp.time, "perf_counter", lambda: next(now))
    measure = ExposedCommunication()
    assert measure.seconds() == 0.0
    measure.ready(cuda=False)
    measure.done()
    assert measure.seconds() == 0.25
    measure.done()
    assert measure.seconds() == 0.0


class Event:
    """A GPU's event that passes when it is told to."""

    made: list[Event]

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.at, self.passed = 0.0, False
        Event.made.append(self)

    def record(self) -> None:
        self.at = 100.0 * len(Event.made)

    def query(self) -> bool:
        return self.passed

    def elapsed_time(self, other: Event) -> float:
        return other.at - self.at


def test_on_a_gpu_nothing_waits_for_the_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until they have passed the last value stands, and no second pair is begun; then it is theirs, in seconds."""
    Event.made = []
    monkeypatch.setattr(torch.cuda, "Event", Event)
    measure = ExposedCommunication()
    measure.ready(cuda=True)
    measure.done()
    assert measure.seconds() == 0.0
    measure.ready(cuda=True)
    measure.done()
    for event in Event.made[:2]:
        event.passed = True
    assert measure.seconds() == pytest.approx(0.1)
    assert measure.seconds() == pytest.approx(0.1)
