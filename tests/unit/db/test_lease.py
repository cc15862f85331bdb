"""Who may act on a database: never two at once, whatever dies, is stopped, or happens to the clocks."""

from __future__ import annotations

import inspect
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_slurm import Component, FakeSlurm
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_until

from slurm_elastic.daemon.selasticd.leader import Leader, leading
from slurm_elastic.daemon.slurm.model import SlurmClient
from slurm_elastic.daemon.slurm.snapshot_cache import SnapshotCache
from slurm_elastic.db import schema
from slurm_elastic.db.engine import Database
from slurm_elastic.db.lease import MARGIN, Held, Lease
from slurm_elastic.db.rows import JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.errors import LeaseLost, StoreError

LEASE_S = 10.0
JOB = JobRow(7, "ada", 1000, "t", "lab", "gpu", "", True, "", "", 1.0, 2.0, None, "RUNNING")


class Clock:
    """One host's count of seconds, moved by the test."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def url(tmp_path: Path) -> str:
    address = f"sqlite:///{tmp_path / 'a.db'}"
    Store.open(address).close()
    return address


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    opened = Database(url)
    yield opened
    opened.close()


def lease(database: Database, place: str, clock: Clock) -> Lease:
    return Lease(database, place, f"daemon at {place}", LEASE_S, clock)


def test_the_second_waits_and_takes_over_only_after_silence(database: Database) -> None:
    """A renewed lease is never taken; one that stays unrenewed for its time and a margin is, with a higher number."""
    clock, other = Clock(), Clock(1e6)
    first, second = lease(database, "a", clock), lease(database, "b", other)
    assert first.try_take() is None
    assert first.fence == 1
    for _ in range(20):
        clock.now, other.now = clock.now + LEASE_S / 2, other.now + LEASE_S / 2
        first.renew()
        held = second.try_take()
        assert held is not None and held.who == "daemon at a"
    other.now += LEASE_S * MARGIN - 0.1
    assert second.try_take() is not None
    other.now += 0.2
    assert second.try_take() is None
    assert second.fence == 2
    with pytest.raises(LeaseLost, match="another selasticd has taken the lease"):
        first.renew()
    assert first.lost


def test_a_holder_that_slept_does_not_act_before_it_has_asked(database: Database) -> None:
    """Past its time the holder may not act, though nobody has taken over; a renewal that succeeds lets it go on."""
    clock = Clock()
    first = lease(database, "a", clock)
    first.try_take()
    first.check()
    clock.now = LEASE_S + 1
    with pytest.raises(LeaseLost, match=r"not renewed for 11 s"):
        first.check()
    first.renew()
    first.check()


def test_the_same_place_and_a_released_lease_are_taken_at_once(database: Database) -> None:
    """Started again after kill -9 with the same lock file, a daemon does not wait; nor after a clean stop elsewhere."""
    clock = Clock()
    lease(database, "a", clock).try_take()
    again = lease(database, "a", clock)
    assert again.try_take() is None and again.fence == 2
    again.release()
    with pytest.raises(LeaseLost):
        again.check()
    other = lease(database, "b", clock)
    assert other.try_take() is None and other.fence == 3


def test_of_two_that_find_it_free_one_gets_it(url: str) -> None:
    """Many contenders at the same moment: exactly one takes the lease of a dead holder, each number is given once."""
    dead = Database(url)
    lease(dead, "dead", Clock()).try_take()
    clocks = [Clock() for _ in range(8)]
    databases = [Database(url) for _ in clocks]
    leases = [lease(base, str(n), clock) for n, (base, clock) in enumerate(zip(databases, clocks, strict=True))]
    assert all(one.try_take() is not None for one in leases)
    barrier = threading.Barrier(len(leases))

    def contend(one: Lease, clock: Clock) -> None:
        clock.now = LEASE_S * MARGIN + 1
        barrier.wait(20)
        one.try_take()

    threads = [threading.Thread(target=contend, args=pair) for pair in zip(leases, clocks, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(one.fence for one in leases) == [0] * 7 + [2]
    for base in (dead, *databases):
        base.close()


Move = st.tuples(st.sampled_from(["take", "renew", "pass", "stop"]), st.integers(0, 1), st.floats(0, 3 * LEASE_S))


@settings(max_examples=60)
@given(st.lists(Move, max_size=30))
def test_two_never_believe_in_it_at_once(moves: list[tuple[str, int, float]]) -> None:
    """Whatever order takes, renewals, sleeps and passing time come in, at most one `check` passes at any moment.

    Time passes alike on both hosts; what their clocks show has nothing in common.
    """
    with quick_database() as database:
        play(database, moves)


def play(database: Database, moves: list[tuple[str, int, float]]) -> None:
    """Make the moves; after each, at most one of the two may act."""
    clocks = [Clock(), Clock(1e9)]
    leases = [lease(database, name, clock) for name, clock in zip("ab", clocks, strict=True)]
    for kind, who, seconds in moves:
        one = leases[who]
        if kind == "take" and not one.fence:
            one.try_take()
        elif kind == "renew" and one.fence and not one.lost:
            with_suppressed(one.renew)
        elif kind == "pass":
            for clock in clocks:
                clock.now += seconds
        elif kind == "stop" and one.fence and not one.lost:
            one.release()
            leases[who] = lease(database, "ab"[who], clocks[who])
        assert sum(valid(each) for each in leases) <= 1


@contextmanager
def quick_database() -> Iterator[Database]:
    """One with nothing but the lease, in memory: many histories need no disk."""
    shm = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=shm) as folder:
        database = Database(f"sqlite:///{folder}/a.db")
        schema.lease.create(database.engine)
        yield database
        database.close()


def with_suppressed(call: Callable[[], object]) -> None:
    try:
        call()
    except LeaseLost:
        return


def valid(one: Lease) -> bool:
    try:
        one.check()
    except LeaseLost:
        return False
    return True


def test_a_stale_daemon_writes_nothing_more(url: str, database: Database) -> None:
    """Every transaction carries the number: once a higher one is given, the older store is refused whatever it says,
    the reports of its jobs too, and reads go on."""
    first = lease(database, "a", Clock())
    first.try_take()
    with Store(url, first.fence) as stale:
        stale.jobs.upsert(JOB)
        lease(database, "a", Clock()).try_take()
        for write in (
            lambda: stale.events.add(7, "shrink", "selasticd", {}, 1.0),
            lambda: stale.jobs.pin(7, 4),
            lambda: stale.tokens.mint(7, 1000),
            lambda: stale.jobs.end(7, "COMPLETED", 2.0),
            stale.confirm,
        ):
            with pytest.raises(LeaseLost, match=r"number 2, this one 1"):
                write()
        assert stale.events.of(7) == [] and stale.jobs.pinned(7) is None
        assert stale.jobs.get(7) == JOB


def test_every_act_on_slurm_asks_first() -> None:
    """Whatever the client can do to Slurm, the daemon's way to it refuses when the lease is not held: Slurm is not
    asked. A new act in the protocol without the question fails here."""
    slurm = FakeSlurm()
    job = slurm.submit(Component(1, 4))
    before = slurm.client("root").snapshot()

    def refuse() -> None:
        raise LeaseLost("no")

    jobs = SnapshotCache(slurm.client("root"), confirm=refuse)
    acts = [name for name, member in inspect.getmembers(SlurmClient, inspect.isfunction) if not name.startswith("_")]
    others = ("qos_over_partition", "qos_users", "shares", "end_states", "last_runs", "asked_size", "ended_jobs")
    for question in ("snapshot", "site", "partitions", "excluded_nodes", "slurms_time", *others):
        acts.remove(question)
    assert len(acts) >= 7
    for name in acts:
        count = len(inspect.signature(getattr(SlurmClient, name)).parameters) - 2
        with pytest.raises(LeaseLost):
            getattr(jobs, name)(job, *[("n1",)] * count)
    assert slurm.client("root").snapshot() == before


def test_a_leader_renews_and_hands_over(tmp_path: Path) -> None:
    """With real clocks and threads: the lease is kept as long as the block lasts, and is free right after it."""
    url, lock = f"sqlite:///{tmp_path / 'new.db'}", tmp_path / "lock"
    lock.touch()
    with leading(url, lock, 1.0) as leader:
        database = Database(url)
        seen = Lease(database, "elsewhere", "", 1.0).look()
        assert seen.fence == leader.lease.fence == 1
        wait_until(lambda: Lease(database, "elsewhere", "", 1.0).look().beat >= seen.beat + 4, 60)
        leader.lease.check()
    assert Lease(database, "elsewhere", "", 1.0).try_take() is None
    database.close()


def test_who_has_lost_it_neither_renews_nor_frees_it(database: Database) -> None:
    """A leader stops renewing when its lease is another's, and does not free that one when it is stopped."""
    first = lease(database, "a", Clock())
    first.try_take()
    taken = lease(database, "a", Clock())
    taken.try_take()
    leader = Leader(first, 0.05)
    leader.start()
    leader._thread.join(20)
    assert first.lost and not leader._thread.is_alive()
    leader.stop()
    taken.renew()


def test_no_database_no_lease(tmp_path: Path) -> None:
    """A place where no database can be is one sentence, before anything is waited for."""
    lock = tmp_path / "lock"
    lock.touch()
    with pytest.raises(StoreError, match="does not exist"), leading(f"sqlite:///{tmp_path}/no/a.db", lock, 1.0):
        pass


def test_a_standby_outlasts_a_database_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who stands by goes on doing so while the database is locked; who cannot even ask once is told so."""
    lock = tmp_path / "lock"
    lock.touch()
    answers: list[Held | StoreError | None] = [Held(1, 1, "there", "b", 0.1), StoreError("held by another"), None]

    def answer(_: Lease) -> Held | None:
        now = answers.pop(0)
        if isinstance(now, StoreError):
            raise now
        return now

    monkeypatch.setattr(Lease, "try_take", answer)
    seen: list[str] = []
    with leading(f"sqlite:///{tmp_path}/a.db", lock, 0.1, seen.append):
        assert seen == ["b"] and not answers
    answers = [StoreError("held by another")]
    with pytest.raises(StoreError, match="held by another"), leading(f"sqlite:///{tmp_path}/a.db", lock, 0.1):
        pass
