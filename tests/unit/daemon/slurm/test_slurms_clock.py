"""Slurm's time beside that of a host whose clock somebody sets."""

from __future__ import annotations

import logging

import pytest
from fake_slurm import FakeSlurm

from slurm_elastic.daemon.slurm.slurms_clock import LOOK_S, SlurmsClock
from slurm_elastic.daemon.slurm.snapshot_cache import SnapshotCache
from slurm_elastic.db.clock import SteadyClock
from slurm_elastic.protocol.errors import SlurmUnreachable

HOUR, DAY = 3600.0, 86400.0


class Hosts:
    """Slurm's host and this one, each with a clock of its own."""

    def __init__(self) -> None:
        self.slurm = self.host = 1e9
        self.up, self.asked, self.reachable = 100.0, 0, True
        self.clock = SlurmsClock(self.asks, lambda: self.host, lambda: self.up)

    def asks(self) -> float:
        self.asked += 1
        if not self.reachable:
            raise SlurmUnreachable("no answer")
        return float(int(self.slurm))

    def passes(self, seconds: float, every: float = 10.0) -> None:
        for _ in range(int(seconds / every)):
            self.slurm, self.host, self.up = self.slurm + every, self.host + every, self.up + every
            self.clock.look()


@pytest.mark.parametrize("step", [240.0, HOUR, -HOUR, 500 * DAY, -500 * DAY])
def test_a_step_of_this_host_changes_nothing(step: float) -> None:
    """Set by minutes, an hour, or 500 days, and set right again: Slurm's time goes on, before anybody has asked."""
    hosts = Hosts()
    hosts.passes(30)
    for change in (step, -step):
        hosts.host += change
        assert hosts.clock() == pytest.approx(hosts.slurm, abs=1)
        hosts.passes(300)
        assert hosts.clock() == pytest.approx(hosts.slurm, abs=1)
    assert hosts.clock.ahead() == 0


def test_a_step_of_slurms_host_is_found_out() -> None:
    hosts = Hosts()
    hosts.passes(30)
    hosts.slurm -= HOUR
    hosts.passes(LOOK_S + 10)
    assert hosts.clock() == pytest.approx(hosts.slurm, abs=1)
    assert hosts.clock.ahead() == pytest.approx(HOUR, abs=1)


def test_one_host_for_both_is_set() -> None:
    """Slurm is asked at once, so nobody is told that the two differ."""
    hosts = Hosts()
    hosts.passes(30)
    hosts.slurm, hosts.host = hosts.slurm - HOUR, hosts.host - HOUR
    hosts.clock.look()
    assert (hosts.clock(), hosts.clock.ahead()) == (hosts.host, 0)


def test_slurm_is_asked_once_a_minute() -> None:
    """Also while the clocks differ, or while Slurm does not answer."""
    hosts = Hosts()
    hosts.passes(600)
    assert hosts.asked <= 11
    hosts.reachable = False
    hosts.host += HOUR
    hosts.passes(600)
    assert hosts.asked <= 23
    assert hosts.clock() == pytest.approx(hosts.slurm, abs=1)


def test_nothing_is_known_before_slurm_has_spoken() -> None:
    hosts = Hosts()
    hosts.reachable = False
    hosts.passes(30)
    assert (hosts.clock(), hosts.clock.said()) == (hosts.host, None)


def test_a_difference_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """And again after the clocks have agreed."""
    caplog.set_level(logging.INFO)
    hosts = Hosts()
    for _ in range(2):
        hosts.host += 240
        hosts.passes(900)
        hosts.host -= 240
        hosts.passes(900)
    texts = [record.getMessage() for record in caplog.records]
    assert (
        texts
        == [
            "the clock of this host is 240 s ahead of Slurm's: set one of them",
            "the clocks of this host and of Slurm agree again",
        ]
        * 2
    )


def test_what_the_daemon_stores_is_by_slurms_time() -> None:
    """It starts on a host 500 days ahead, which is set right a while later: no duration is wrong, then or after."""
    hosts = Hosts()
    hosts.host += 500 * DAY
    hosts.clock.look()
    stored = SteadyClock(lambda: hosts.host, lambda: hosts.up)
    stored.begin(newest=1e9 - 60, followed=hosts.clock)
    for _ in range(2):
        assert stored() == pytest.approx(hosts.slurm, abs=2)
        hosts.passes(HOUR)
        assert stored() == pytest.approx(hosts.slurm, abs=2)
        hosts.host = hosts.slurm


def test_a_snapshot_has_slurms_time() -> None:
    """By which it is told how long a job has waited, and whether it may begin."""
    slurm = FakeSlurm(nodes=1)
    slurm.behind = 240.0
    cache = SnapshotCache(slurm.client())
    assert cache.snapshot().at == pytest.approx(slurm.now - 240, abs=2)
    assert cache.site().at == pytest.approx(slurm.now - 240, abs=2)
