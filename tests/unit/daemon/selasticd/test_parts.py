"""The parts of the running daemon: who waits for news, when rounds come, what is kept."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from dataclasses import replace
from datetime import datetime, tzinfo

import apscheduler.schedulers.base
import apscheduler.triggers.interval
import pytest
from daemon_harness import REQUEST, World
from store_records import kept_reports
from waiting import wait_until

from slurm_elastic.daemon.rounds.waiters import Waiters
from slurm_elastic.daemon.selasticd import daemon as selasticd_daemon
from slurm_elastic.daemon.selasticd import daemon as ticker_module
from slurm_elastic.daemon.selasticd import listeners
from slurm_elastic.daemon.selasticd.daemon import Daemon, Scheduler, expected_mb
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.clock import steady_now
from slurm_elastic.db.rows import DecisionRow, JobRow
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.errors import NotFound
from slurm_elastic.protocol.messages import Piece, Report, Resize

# --- waiting for news ---------------------------------------------------------------------------------------------


def test_a_ring_from_another_thread_wakes_who_waits() -> None:
    """Rounds run on a thread of their own; those who wait are on the API's event loop."""
    waiters = Waiters()

    async def wait() -> bool:
        waiter = waiters.add(7)
        threading.Thread(target=waiters.notify, args=(7,)).start()
        await asyncio.wait_for(waiter[1].wait(), 10)
        waiters.remove(7, waiter)
        return waiters._waiting == {}

    assert asyncio.run(wait())


def test_a_ring_wakes_only_its_job_and_closing_wakes_all() -> None:
    """News of one job is not everybody's."""
    waiters = Waiters()

    async def wait() -> tuple[bool, bool]:
        waiter = waiters.add(7)
        waiters.notify(8)
        await asyncio.sleep(0)
        early = waiter[1].is_set()
        waiters.close()
        await asyncio.wait_for(waiter[1].wait(), 10)
        return early, waiters.closed

    assert asyncio.run(wait()) == (False, True)


# --- when rounds come ---------------------------------------------------------------------------------------------


class Count:
    """Work that is counted, and can be held up."""

    def __init__(self) -> None:
        self.done = 0
        self.go = threading.Event()
        self.go.set()

    def __call__(self) -> None:
        self.done += 1
        assert self.go.wait(20)


def test_rounds_come_by_themselves_and_sooner_when_woken() -> None:
    """The first at once, and the next as soon as something happened."""
    work = Count()
    scheduler = Scheduler(work, interval_s=3600, gap_s=0.01)
    scheduler.start()
    try:
        wait_until(lambda: work.done == 1, 20)
        scheduler.wake()
        wait_until(lambda: work.done == 2, 20)
    finally:
        scheduler.stop()


def test_an_event_during_a_round_makes_one_more_follow() -> None:
    """What happened while a round was under way may have been missed by it."""
    work = Count()
    work.go.clear()
    scheduler = Scheduler(work, interval_s=3600, gap_s=0.01)
    scheduler.start()
    try:
        wait_until(lambda: work.done == 1, 20)
        scheduler.wake()
        scheduler.wake()
        assert work.done == 1
        work.go.set()
        wait_until(lambda: work.done == 2, 20)
    finally:
        scheduler.stop()
    assert work.done == 2


def test_other_work_comes_again_and_again_beside_a_round() -> None:
    """A long round holds it up no more than it holds up a round."""
    work, other = Count(), Count()
    work.go.clear()
    scheduler = Scheduler(work, interval_s=3600, gap_s=0.01)
    scheduler.every(other, 0.01)
    scheduler.start()
    try:
        wait_until(lambda: work.done == 1 and other.done >= 3, 20)
    finally:
        work.go.set()
        scheduler.stop()
    assert work.done == 1


@pytest.mark.parametrize("by_s", [-3600.0, 3600.0])
def test_a_clock_that_is_set_holds_up_no_round(
    by_s: float, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Set back by an hour, by hand or by a host that finds its time server: rounds do not wait for that hour."""
    shift = [0.0]

    class Shifted(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> datetime:
            return datetime.fromtimestamp(actual() + shift[0], tz)

    actual = time.time
    monkeypatch.setattr(time, "time", lambda: actual() + shift[0])
    for module in (ticker_module, apscheduler.schedulers.base, apscheduler.triggers.interval):
        monkeypatch.setattr(module, "datetime", Shifted)
    work, other = Count(), Count()
    scheduler = Scheduler(work, interval_s=0.05, gap_s=0.01)
    scheduler.every(other, 0.05)
    scheduler.start()
    try:
        wait_until(lambda: work.done >= 2 and other.done >= 2, 20)
        shift[0] = by_s
        scheduler.check_clock()
        before, others = work.done, other.done
        wait_until(lambda: work.done >= before + 2 and other.done >= others + 2, 20)
        scheduler.check_clock()
    finally:
        scheduler.stop()
    assert [record.getMessage() for record in caplog.records if "clock" in record.getMessage()] == [
        f"the clock of this host was set by {by_s:+.0f} s"
    ]


def test_stopping_waits_for_the_round_under_way() -> None:
    """The store is closed after it, never under it."""
    work = Count()
    work.go.clear()
    scheduler = Scheduler(work, interval_s=3600, gap_s=0.01)
    scheduler.start()
    wait_until(lambda: work.done == 1, 20)
    stopper = threading.Thread(target=scheduler.stop)
    stopper.start()
    assert stopper.is_alive()
    work.go.set()
    stopper.join(20)
    assert not stopper.is_alive()
    scheduler.wake()
    assert work.done == 1


def test_a_flood_of_datagrams_is_few_wake_ups_and_the_last_is_heard() -> None:
    """Whatever hooks, or whoever else, send: the loop is not kept busy by it, and no news is left unheard."""
    woken: list[bool] = []

    async def flooded() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, listeners.hook_listener(listener) as hooks:
            assert hooks is not None
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.connect(listener.getsockname())
                listeners.on_datagram(hooks, lambda: woken.append(False))
                for _ in range(1000):
                    sender.send(b"x")
                await asyncio.sleep(0)  # the first are taken, and the next not before the pause is over
                while not woken:
                    await asyncio.sleep(0.001)
                woken.clear()
                sender.send(b"the last")
                while not woken:
                    await asyncio.sleep(0.001)
                assert len(woken) == 1

    asyncio.run(asyncio.wait_for(flooded(), 60))


def test_a_port_that_hooks_cannot_have_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Another program has the UDP port: it is said, and the daemon does its work without being woken."""
    with socket.create_server(("127.0.0.1", 0)) as listener, listeners.hook_listener(listener) as first:
        assert first is not None
        with listeners.hook_listener(listener) as second:
            assert second is None
    assert "hooks cannot wake selasticd: UDP port" in caplog.text


# --- what is kept -------------------------------------------------------------------------------------------------


def test_resizes_are_thinned_after_a_week_and_a_year_is_foretold(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The steps of an old resize go and a young one's stay; once a day the log says how large the database will be."""
    caplog.set_level(logging.INFO)
    daemon = Daemon(Settings(), world.slurm.client(), world.store)
    now, base = 100 * 86400.0, Piece(7, "base", ("n1",), 4)
    world.store.jobs.upsert(JobRow(7, "ada", 1, "t", "l", "m", REQUEST, True, "", "", 1.0, 2.0, None, "RUNNING"))
    for days in (9, 8, 6, 0):
        at = now - 86400 * days
        world.store.decisions.save(at, [DecisionRow(7, at, 4, days, 64, 64, "grow_idle", None, None, mode="act")])
        order = world.store.resizes.begin(Resize(0, 7, (base,), (), 4, 64, "grow_idle", 60.0), at)
        world.store.resizes.advance(order.id, ResizeState.DONE, at=at)
        world.store.events.add(7, EventKind.RESIZE_DONE, "supervisor", {}, at)
        world.store.allocations.note(7, days, (base,), 64, at, 0.5, "grow_idle", order.id)
    for _ in range(2):
        daemon.clean_up(now)
    assert [now - event.at for event in world.store.events.of(7)] == [6 * 86400, 0.0]
    assert [now - row.at for row in world.store.decisions.of(7)] == [0.0, 6 * 86400, 9 * 86400]
    assert [row.resize for row in world.store.allocations.rows(7)] == [1, 2, 3, 4]
    with pytest.raises(NotFound):
        world.store.resizes.get(2)
    assert caplog.text.count("a year at the pace of the last day (1 resizes, 0 jobs that ended) comes to 0 MB") == 1


def test_a_year_of_2000_jobs_at_144_resizes_a_day_stays_below_10_gb() -> None:
    """As many as the shipped cooldown allows; the figures are those of `make bench-history`."""
    assert 1_000 < expected_mb(2000 * 144, 2000, 7, 400) < 10_000


def test_old_reports_are_rolled_up_and_ended_jobs_forgotten(world: World) -> None:
    """The daemon tidies its database by itself, to the settings' ages; what is young stays."""
    daemon = Daemon(Settings(reports_keep_h=1.0, history_keep_days=30.0), world.slurm.client(), world.store)
    now = 100 * 86400.0
    job = JobRow(7, "ada", 1000, "t", "lab", "main", REQUEST, True, "", "", 1.0, 2.0, None, "RUNNING")
    world.store.jobs.upsert_all([job, replace(job, job_id=8), replace(job, job_id=9)])
    for age in (3 * 3600.0, 60.0):
        step = int(now - age)
        report = Report(1, now - age, 4, 1, 64, 16, 1, 1, 0.1, 0.1, 640.0, step, 64 * step, 0)
        world.store.reports.submit(7, [report], now - age).result()
    world.store.jobs.end(8, "COMPLETED", now - 31 * 86400)
    world.store.jobs.end(9, "COMPLETED", now - 86400)
    daemon._work()
    assert world.store.jobs.get(8) is not None, "not at the start: the host's clock may be wrong then"
    assert daemon.rounds.clock is daemon.controller.clock is daemon.registry.clock is steady_now
    daemon.clean_up(now)
    assert [report.at for report in kept_reports(world.store, 7)] == [now - 60.0]
    assert sum(seen.count for seen in world.store.reports.observations(7)) == 2
    assert (world.store.jobs.get(8) is None, world.store.jobs.get(9) is None) == (True, False)


@pytest.mark.parametrize("which", ["its own", "Slurm's", "Slurm says none"])
def test_nothing_is_deleted_by_a_clock_that_is_wrong(world: World, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    """What one of both clocks, 500 days ahead, takes for old stays, and all of it while Slurm has not said its time."""
    now, wrong = time.time(), 500 * 86400.0
    monkeypatch.setattr(selasticd_daemon, "FIRST_CLEAN_UP_S", 0.0)
    monkeypatch.setattr(selasticd_daemon, "steady_now", lambda: now + (wrong if which == "its own" else 0))
    world.slurm.behind = -wrong if which == "Slurm's" else 0.0
    world.slurm.reachable = which != "Slurm says none"
    job = JobRow(7, "ada", 1000, "t", "lab", "main", REQUEST, True, "", "", 1.0, 2.0, None, "RUNNING")
    world.store.jobs.upsert_all([job, replace(job, job_id=8)])
    world.store.jobs.end(7, "COMPLETED", now - 500 * 86400)
    world.store.jobs.end(8, "COMPLETED", now - 86400)
    Daemon(Settings(history_keep_days=30.0), world.slurm.client(), world.store)._work()
    assert (world.store.jobs.get(7) is None) == (which != "Slurm says none")
    assert world.store.jobs.get(8) is not None
