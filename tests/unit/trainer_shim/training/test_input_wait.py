"""The wait for samples counts as far as nothing was computed meanwhile; without a GPU the events are stand-ins."""

from __future__ import annotations

import pytest
import torch

from slurm_elastic.trainer_shim.training.step_meter import InputWait


class Stream:
    """A GPU's: when it has done what it was given, and the thread's time."""

    def __init__(self) -> None:
        self.now = self.idle_at = 0.0

    def give(self, seconds: float) -> None:
        """Work that takes so long, once what is before it is done."""
        self.idle_at = max(self.idle_at, self.now) + seconds


class Event:
    """Passes when all that was given before it is done."""

    stream: Stream

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = max(self.stream.now, self.stream.idle_at)

    def query(self) -> bool:
        return self.stream.now >= self.at

    def elapsed_time(self, other: Event) -> float:
        return (other.at - self.at) * 1000


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    Event.stream = Stream()
    monkeypatch.setattr(torch.cuda, "Event", Event)
    return Event.stream


@pytest.mark.parametrize(("loads", "exposed"), [(0.3, 0.0), (1.0, 0.0), (1.4, 0.4)])
def test_what_a_gpu_computes_meanwhile_is_no_wait(stream: Stream, loads: float, exposed: float) -> None:
    """Steps of a second that the thread launches in no time: it waits for each sample, the GPU only for late ones."""
    wait, found = InputWait(lambda: stream.now), []
    stream.give(1.0)
    for _ in range(6):
        wait.begin(cuda=True)
        stream.now += loads
        assert wait.end() == pytest.approx(loads)
        stream.give(1.0)
        stream.now = max(stream.now, stream.idle_at - 1.0)  # it runs one step ahead
        found.append(wait.seconds())
    assert sum(found) == pytest.approx(6 * exposed)


def test_a_wait_is_counted_once_and_when_it_is_known(stream: Stream) -> None:
    """Not before its step has begun on the GPU; samples that were there leave nothing to look at."""
    wait = InputWait(lambda: stream.now)
    stream.give(1.0)
    wait.begin(cuda=True)
    stream.now += 0.5
    wait.end()
    assert wait.seconds() == 0.0 and len(wait._passing) == 1
    stream.now = 1.5
    wait.begin(cuda=True)
    stream.now += 0.7
    wait.end()
    wait.begin(cuda=True)
    wait.end()
    assert wait.seconds() == pytest.approx(0.7) and not wait._passing
    assert wait.seconds() == 0.0


def test_without_a_gpu_all_of_a_wait_counts() -> None:
    """The thread computes itself: while it waits nothing is computed. Two micro batches of a step are one wait."""
    now = [0.0]
    wait = InputWait(lambda: now[0])
    for seconds in (0.2, 0.3):
        wait.begin(cuda=False)
        now[0] += seconds
        assert wait.end() == pytest.approx(seconds)
    assert wait.seconds() == pytest.approx(0.5) and wait.seconds() == 0.0
