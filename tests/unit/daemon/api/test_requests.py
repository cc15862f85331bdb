"""Turns of callers: each has as many as are allowed, and many callers cost no more each than few."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from slurm_elastic.daemon.api import requests
from slurm_elastic.daemon.api.requests import RateLimit, Refused


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(now=100.0)
    monkeypatch.setattr(requests, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def test_a_caller_has_the_turns_that_are_allowed(clock: SimpleNamespace) -> None:
    """As many at once as the bucket holds, then as many as time brings; another caller has turns of their own."""
    limit = RateLimit(2.0, 4)
    for _ in range(4):
        limit.take("ada")
    with pytest.raises(Refused, match="accepted: 2 per second"):
        limit.take("ada")
    limit.take("bob", 4)
    clock.now += 0.5
    limit.take("ada")
    with pytest.raises(Refused):
        limit.take("ada")


def test_many_callers_are_not_looked_through_at_every_turn(
    clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more jobs than are remembered without a look, reports of all of them cost a look now and then, not one
    each; who has turns left to win back is remembered, and who has gone is not."""
    monkeypatch.setattr(requests, "MOST_CALLERS", 10)
    limit, looks = RateLimit(1.0, 5), list[float]()
    forget = limit._forget
    monkeypatch.setattr(limit, "_forget", lambda now: (looks.append(now), forget(now)))
    for _ in range(4):
        for caller in range(100):
            limit.take(caller)
    assert 0 < len(looks) <= 5
    with pytest.raises(Refused):
        limit.take(99, 2)
    clock.now += 5.0
    for caller in range(1000, 1400):
        limit.take(caller)
    assert 99 not in limit._buckets and len(looks) <= 10
