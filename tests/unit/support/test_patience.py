"""Bounds that follow the machine."""

from __future__ import annotations

import time
from functools import partial

import patience
import pytest
from patience import MOST, Patience, slowness
from waiting import wait_until


def test_work_takes_longer_where_more_wants_to_run_than_there_are_cpus() -> None:
    """A machine with a CPU for each is as fast as a quiet one; who is nice waits longer, and nobody without end."""
    assert slowness(running=1, cpus=2, nice=0) == slowness(running=2, cpus=2, nice=19) == 1
    assert slowness(running=6, cpus=2, nice=0) == 3
    assert slowness(running=3, cpus=2, nice=0) < slowness(running=3, cpus=2, nice=5) < MOST
    assert slowness(running=400, cpus=2, nice=0) == slowness(running=3, cpus=1, nice=19) == MOST


def test_a_bound_lasts_longer_on_a_busy_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same ten seconds are over after ten on a quiet machine and after forty where everything takes four times as
    long; one that was busy for a while has waited for that while alone."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def lasts(*slow: float) -> int:
        """Seconds, in which the machine is so slow; from the last of these on it stays so."""
        bound, factors = Patience(10), [*slow, *[slow[-1]] * 100]
        for second, factor in enumerate(factors, 1):
            now[0] += 1
            monkeypatch.setattr(patience, "slowness_now", partial(float, factor))
            if bound.over():
                return second
        raise AssertionError

    assert lasts(1.0) == 10
    assert lasts(4.0) == 40
    assert lasts(*[4.0] * 20, 1.0) == 25


def test_who_waited_in_vain_is_told_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound, and on a busy machine what it came to."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.append(now.pop() + seconds))
    monkeypatch.setattr(patience, "slowness_now", lambda: 1.0)
    with pytest.raises(AssertionError, match=r"not within 2 s: 'a wonder'"):
        wait_until(lambda: False, 2, "a wonder")
    monkeypatch.setattr(patience, "slowness_now", lambda: 5.0)
    with pytest.raises(AssertionError, match=r"2 s of a quiet machine, 10 s of this busy one: 'a wonder'"):
        wait_until(lambda: False, 2, "a wonder")
