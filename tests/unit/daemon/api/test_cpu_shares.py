"""The CPU time that one user's requests may take: refused beyond the share, and nobody else's."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest

from slurm_elastic.daemon.api import callers
from slurm_elastic.daemon.api.callers import AT_A_TIME, AT_ONCE_S, SHARE, CpuShares
from slurm_elastic.daemon.api.requests import Refused
from slurm_elastic.daemon.reports.common import Viewer

ADA, BOB, ROOT = Viewer(1000), Viewer(1001), Viewer(0, admin=True)


class Machine:
    """Clocks that work moves on."""

    def __init__(self) -> None:
        self.now, self._cpu = 0.0, threading.local()
        self.shares = CpuShares(lambda: self.now, lambda: getattr(self._cpu, "s", 0.0))

    def spend(self, viewer: Viewer, cpu_s: float) -> None:
        asyncio.run(self.shares.run(viewer, partial(self._work, cpu_s)))

    def _work(self, cpu_s: float) -> None:
        self._cpu.s = getattr(self._cpu, "s", 0.0) + cpu_s


def test_beyond_the_share_a_user_waits_and_nobody_else_does() -> None:
    """What was begun ends; then the time that the sentence names has to pass."""
    machine = Machine()
    machine.spend(ADA, AT_ONCE_S - 1.0)
    machine.spend(ADA, 4.0)
    with pytest.raises(Refused, match=r"more than 10% of a core; ask again in 31 s") as refused:
        machine.spend(ADA, 0.0)
    assert refused.value.status == 429
    machine.spend(BOB, 1.0)
    machine.now += 31
    machine.spend(ADA, 0.0)


def test_an_admin_is_never_refused() -> None:
    """Who looks after the cluster is answered also while it is in trouble."""
    machine = Machine()
    for _ in range(5):
        machine.spend(ROOT, AT_ONCE_S)


def test_no_more_than_the_first_seconds_are_saved_up() -> None:
    """A user who has been away for a year may not stop the daemon for a month."""
    machine = Machine()
    machine.spend(ADA, 0.1)
    machine.now += 1e7
    machine.spend(ADA, AT_ONCE_S + 0.1)
    with pytest.raises(Refused):
        machine.spend(ADA, 0.0)


def test_work_that_fails_counts() -> None:
    """Or refusals that are expensive to find would be free."""
    machine = Machine()

    def fail() -> None:
        machine._work(AT_ONCE_S)
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        asyncio.run(machine.shares.run(ADA, fail))
    with pytest.raises(Refused):
        machine.spend(ADA, 0.0)


def test_one_user_takes_no_more_than_some_of_the_threads() -> None:
    """What is slow without using the CPU, as a locked database, holds a thread; others' work is done beside it."""
    shares, begun, go_on = CpuShares(), threading.Semaphore(0), threading.Event()

    def slow() -> None:
        begun.release()
        assert go_on.wait(30)

    async def all_at_once() -> int:
        adas = [asyncio.ensure_future(shares.run(ADA, slow)) for _ in range(5 * AT_A_TIME)]
        for _ in range(AT_A_TIME):
            assert await asyncio.to_thread(begun.acquire, timeout=30)
        await shares.run(BOB, lambda: None)
        more = begun.acquire(blocking=False)
        go_on.set()
        await asyncio.gather(*adas)
        return int(more)

    assert asyncio.run(all_at_once()) == 0


def test_users_with_all_of_their_share_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is remembered is bounded by who asks, not by who has ever asked."""
    monkeypatch.setattr(callers, "MOST_USERS", 3)
    machine = Machine()
    machine.spend(ADA, 3.0)
    for uid in range(10):
        machine.now += 1.0 / SHARE
        machine.spend(Viewer(2000 + uid), 0.5)
    assert len(machine.shares._left) <= 4
