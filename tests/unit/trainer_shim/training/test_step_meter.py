"""Step times, reports, and what they cost."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from slurm_elastic.protocol import codec, messages
from slurm_elastic.protocol.bottleneck import Pace
from slurm_elastic.trainer_shim.state.progress import TrainingProgress
from slurm_elastic.trainer_shim.training.reporting import Length
from slurm_elastic.trainer_shim.training.step_meter import (
    KNOWN_AFTER,
    WARM_UP_STEPS,
    Meter,
    Position,
    StepShape,
    pause,
)

SHAPE = StepShape(generation=3, batch=64, micro_batch=8, accumulation=2)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Device:
    """Events of a GPU that computes what its host has given it, one after another."""

    def __init__(self, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done = clock.now
        device = self

        class Event:
            def __init__(self, enable_timing: bool) -> None:
                self.at = 0.0

            def record(self) -> None:
                self.at = device.done = max(clock.now, device.done)

            def query(self) -> bool:
                return clock.now >= self.at

            def elapsed_time(self, later: Event) -> float:
                return 1000 * (later.at - self.at)

        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.cuda, "Event", Event)


def waits(clock: Clock, meter: Meter, seconds: float) -> None:
    meter.asks()
    clock.now += seconds
    meter.got()


def measured(clock: Clock, meter: Meter, times: list[float], wait: float = 0.0) -> None:
    for number, took in enumerate(times):
        waits(clock, meter, wait)
        clock.now += took - wait
        meter.step(64, Position(step=number, samples=64 * number, epoch=1))


def test_what_is_left_is_counted_in_samples() -> None:
    """Of epochs the passes not yet done; of a script's own iterations as many samples each as so far; else nothing."""
    progress = TrainingProgress(epoch=2, cursor=40, pass_samples=100, step=8, samples=240)
    assert Length(epochs=5).left(progress) == 260
    assert Length(steps=20).left(progress) == 360
    assert Length().left(progress) == Length(epochs=2).left(progress) == 0
    assert Length(steps=20).left(TrainingProgress()) == 0


def test_a_report_is_what_selasticd_accepts() -> None:
    """With GPUs and nodes, which the supervisor adds, it is a messages.Report with the right numbers."""
    clock = Clock()
    meter = Meter(clock, every_s=5)
    meter.enter_world(SHAPE)
    measured(clock, meter, [9.0] * WARM_UP_STEPS + [1.0] * 8 + [3.0] * 2, wait=0.35)
    report = meter.due()
    assert report is not None
    pace = report.pop("pace")
    assert pace["step_s"] == 1.0
    decoded = codec.decode(messages.Report, {**report, "gpus": 4, "nodes": 1})
    assert decoded.steps == 10 and decoded.step_time_median_s == 1.0 and decoded.step_time_p90_s == 3.0
    assert decoded.samples_per_s == pytest.approx(640 / 14)
    assert decoded.input_wait_share == pytest.approx(3.5 / 14)
    assert (decoded.generation, decoded.accumulation, decoded.epoch) == (3, 2, 1)


def test_a_rank_reports_its_pace() -> None:
    """Busy is what is left of a step without waiting, for input and for gradients."""
    clock = Clock()
    meter = Meter(clock, every_s=5)
    meter.enter_world(StepShape(3, 64, 8, 2, rank=2, rank_samples=16))
    for number in range(WARM_UP_STEPS + 4):
        waits(clock, meter, 0.25)
        clock.now += 0.75
        meter.step(64, Position(number, 64 * number, 1), exposed=0.5)
    report = meter.due()
    assert report is not None
    assert Pace(**report["pace"]) == Pace(2, 1.0, 0.25, 16, 0.25, 0.5)


def test_the_interval_can_be_changed() -> None:
    """A shorter one counts at once, the same one again changes nothing."""
    clock = Clock()
    meter = Meter(clock, every_s=5)
    meter.enter_world(SHAPE)
    measured(clock, meter, [0.25] * 8)
    assert meter.due() is not None
    meter.every(1.0)
    measured(clock, meter, [0.2] * 6)
    assert meter.due() is not None
    measured(clock, meter, [0.2] * 4)
    meter.every(1.0)
    assert meter.due() is None


def test_reports_come_at_their_interval_and_not_without_steps() -> None:
    """The first of a world soon, then at the interval; none without measured steps; each step is reported once."""
    clock = Clock()
    meter = Meter(clock, every_s=5)
    meter.enter_world(SHAPE)
    measured(clock, meter, [0.09] * 10)
    assert meter.due() is None
    clock.now += 0.2
    first = meter.due()
    assert first is not None and first["steps"] == 10 - WARM_UP_STEPS
    measured(clock, meter, [0.1] * 10)
    assert meter.due() is None
    clock.now += 5
    second = meter.due()
    assert second is not None and second["steps"] == 10
    clock.now += 6
    assert meter.due() is None


@pytest.mark.parametrize(("every_s", "known_s"), [(5.0, 30.0), (2.0, 12.0), (10.0, 30.0), (60.0, 60.0)])
def test_what_is_known_is_reported_more_rarely(every_s: float, known_s: float) -> None:
    """After a dozen reports of one world and batch; another one is reported as often as the first."""
    clock = Clock()
    meter = Meter(clock, every_s)
    for world in range(2):
        meter.enter_world(StepShape(world, 64, 8, 4))
        measured(clock, meter, [1.0] * WARM_UP_STEPS)
        at = list[float]()
        while len(at) < KNOWN_AFTER + 3:
            measured(clock, meter, [0.5])
            if meter.due() is not None:
                at.append(clock.now)
        between = [later - before for before, later in pairwise(at)]
        assert between == pytest.approx([every_s] * (KNOWN_AFTER - 1) + [known_s] * 3)


def test_a_short_world_is_reported_at_its_end() -> None:
    """What was measured before a resize comes in time is reported then, unless it is too little to say anything."""
    clock = Clock()
    meter = Meter(clock, every_s=5)
    meter.enter_world(SHAPE)
    measured(clock, meter, [0.05] * (WARM_UP_STEPS + 4))
    rest = meter.rest()
    assert rest is not None and rest["steps"] == 4
    measured(clock, meter, [0.05] * 2)
    assert meter.rest() is None


def test_another_world_or_batch_starts_again() -> None:
    """Steps of different worlds or batches are never mixed, and a new world's first steps are left out."""
    clock = Clock()
    meter = Meter(clock, every_s=5)
    meter.enter_world(SHAPE)
    measured(clock, meter, [1.0] * 6)
    assert meter.median_step() == 1.0
    meter.enter_world(SHAPE)
    assert meter.median_step() == 0.0
    measured(clock, meter, [7.0] * WARM_UP_STEPS + [2.0] * 3)
    report = meter.due()
    assert report is not None and report["steps"] == 3 and report["step_time_median_s"] == 2.0
    measured(clock, meter, [1.0] * 3)
    meter.enter_world(StepShape(3, 128, 8, 4))
    measured(clock, meter, [7.0] * WARM_UP_STEPS + [2.0] * 4)
    report = meter.due()
    assert report is not None and report["steps"] == 4 and report["batch"] == 128


def test_short_steps_are_not_measured() -> None:
    """The last step of a pass, with fewer samples, is in no median and does not throw away the others."""
    clock = Clock()
    meter = Meter(clock, every_s=5)
    meter.enter_world(SHAPE)
    measured(clock, meter, [1.0] * 7)
    clock.now += 0.1
    meter.step(3, Position(8, 500, 1), typical=False)
    report = meter.due()
    assert report is not None and report["steps"] == 5 and report["step_time_median_s"] == 1.0 and report["step"] == 8


def test_an_evaluation_is_not_a_step() -> None:
    """Time between two passes over the data is no step's time."""
    clock = Clock()
    meter = Meter(clock)
    meter.enter_world(SHAPE)
    measured(clock, meter, [1.0] * 5)
    clock.now += 500
    meter.resume()
    measured(clock, meter, [1.0] * 2)
    report = meter.due()
    assert report is not None and report["step_time_p90_s"] == 1.0


def test_the_pause_is_less_one_step_of_the_new_size() -> None:
    """A step over fewer samples per rank is shorter, so growing costs what it costs, and never less than the gap."""
    assert pause(1.0, 0.2, 0.8, (64, 32)) == pytest.approx(0.6)
    assert pause(1.0, 0.2, 0.8, (32, 64)) == 0.2
    assert pause(1.0, 0.2, 0.8, (32, 32)) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("device_s", "wait_s", "step_s", "busy_s"),
    [(0.05, 0.0, 0.05, 0.05), (0.05, 0.03, 0.05, 0.05), (0.0, 0.0, 0.002, 0.002)],
)
def test_a_report_is_of_the_devices_time(
    monkeypatch: pytest.MonkeyPatch, device_s: float, wait_s: float, step_s: float, busy_s: float
) -> None:
    """The first one too, when the host is many steps ahead; and the host's where that is the slower one."""
    clock = Clock()
    device = Device(clock, monkeypatch)
    meter = Meter(clock, every_s=5)
    meter.enter_world(SHAPE)
    number, report = 0, None
    while report is None and number < 1000:
        meter.asks(cuda=True)
        clock.now += wait_s
        meter.got()
        clock.now += 0.002
        device.done = max(clock.now - 0.002, device.done) + device_s
        meter.step(64, Position(number, 64 * number, 1))
        number, report = number + 1, meter.due()
    assert report is not None and clock.now < 101.2
    assert report["step_time_median_s"] == pytest.approx(step_s) == meter.median_step()
    assert report["pace"]["busy_s"] == pytest.approx(busy_s)
    assert report["steps"] <= (clock.now - 100) / step_s
