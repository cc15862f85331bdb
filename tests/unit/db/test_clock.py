"""The daemon's clock while the host's is set: durations stay right, and nothing stored is in the future."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest
from store_records import JOB

from slurm_elastic.db.clock import SteadyClock, steady_now
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.messages import Piece

HOUR, DAY = 3600.0, 86400.0


class Host:
    """A host whose clock somebody sets."""

    def __init__(self) -> None:
        self.wall, self.up = 1e9, 100.0
        self.clock = SteadyClock(lambda: self.wall, lambda: self.up)

    def passes(self, seconds: float, every: float = 10.0) -> list[float]:
        """The clock's times while this much time passes."""
        seen = []
        for _ in range(int(seconds / every)):
            self.wall, self.up = self.wall + every, self.up + every
            seen.append(self.clock())
        return seen


def test_it_shows_the_hosts_time() -> None:
    """Also where that is corrected by a little, again and again."""
    host = Host()
    for drift in (0.5, -0.5, 0.01):
        host.wall += drift
        host.passes(60)
        assert host.clock() == pytest.approx(host.wall, abs=1e-6)


@pytest.mark.parametrize("step", [500 * DAY, HOUR, -HOUR, -500 * DAY])
def test_no_duration_is_wrong_by_more_than_twice(step: float) -> None:
    """Set forwards or backwards, by an hour or by 500 days: it goes on, at no more than twice and no less than half the
    speed of time; set right again after a while, it shows the host's time again."""
    host = Host()
    host.wall += step
    seen = host.passes(HOUR)
    speeds = [(later - earlier) / 10.0 for earlier, later in itertools.pairwise(seen)]
    assert min(speeds) > 0.499 and max(speeds) < 2.001
    assert abs(seen[-1] - (1e9 + HOUR)) <= HOUR
    host.wall -= step
    host.passes(2 * HOUR)
    assert host.clock() == pytest.approx(host.wall, abs=1e-3)


def test_an_hour_is_made_up_for() -> None:
    """A clock that was set and stays there is followed."""
    for step, takes in ((HOUR, HOUR), (-HOUR, 2 * HOUR)):
        host = Host()
        host.wall += step
        host.passes(takes + 60)
        assert host.clock() == pytest.approx(host.wall, abs=1e-3)


def test_it_begins_where_the_database_ends(tmp_path: Path) -> None:
    """Started after the clock was set back by an hour: what is stored is not in the future; what is days away was
    stored by a wrong clock."""
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as store:
        assert store.newest() == 0.0
        store.jobs.upsert(JOB)
        host = Host()
        store.events.add(7, "test", "selasticd", {}, host.wall + HOUR)
        host.clock.begin(store.newest())
        assert host.passes(10)[0] == pytest.approx(host.wall + HOUR, abs=10)
        store.events.add(7, "test", "selasticd", {}, host.wall + 500 * DAY)
        host.clock.begin(store.newest())
        assert host.passes(10)[0] == pytest.approx(host.wall, abs=1e-3)


def test_an_end_in_the_future_is_now(tmp_path: Path) -> None:
    """Slurm's host has its clock set 500 days ahead, and a job ends: no GPU is booked for more than it ran."""
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as store:
        store.jobs.upsert(JOB)
        began = steady_now() - HOUR
        store.allocations.note(7, 1, (Piece(7, "base", ("n1",), 4),), 64, began)
        store.jobs.upsert(replace(JOB, state="COMPLETED", end_time=began + 500 * DAY))
        store.jobs.end(7, "COMPLETED", began + 500 * DAY)
        [row] = store.allocations.rows(7)
        assert row.end is not None and HOUR <= row.end - row.start < DAY
