"""The store and its lease on a database server, as two hosts share one: the MariaDB of the private Slurm."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from past_resizes import DAY, count, lives, sums

from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.db.engine import Database
from slurm_elastic.db.lease import Lease
from slurm_elastic.db.rows import DecisionRow, JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.errors import LeaseLost
from slurm_elastic.protocol.messages import Piece, Report, Resize

JOB = JobRow(7, "ada", 1000, "t", "lab", "gpu", "", True, "", "", 1.0, 2.0, None, "RUNNING")
PIECE = Piece(7, "base", ("n1",), 4, "a100")


@pytest.fixture
def url(sandbox: Sandbox) -> Iterator[str]:
    """A database of its own on the server, gone afterwards."""
    client = ["mariadb", f"--socket={sandbox.dir}/db/mysql.sock", "--execute"]
    made = sandbox.run([*client, "create database selastic"])
    assert made.returncode == 0, made.stderr
    yield f"mysql+pymysql://root@localhost/selastic?unix_socket={sandbox.dir}/db/mysql.sock"
    sandbox.run([*client, "drop database selastic"])


def test_the_store_keeps_on_a_server_what_it_keeps_in_a_file(url: str) -> None:
    """Job, allocation, pause, report, decision and resize come back from MariaDB as they were stored."""
    with Store.open(url) as store:
        store.jobs.upsert(JOB)
        store.allocations.note(7, 1, (PIECE,), 64, 1.0, pause_s=0.5)
        store.reports.submit(7, [Report(1, 1.0, 4, 1, 64, 16, 1, 1, 0.1, 0.1, 640.0, 8, 512, 0)], 2.0).result()
        store.decisions.save(1.0, [DecisionRow(7, 1.0, 4, 8, 64, 64, "grow_idle", None, None)])
        ordered = store.resizes.begin(Resize(0, 7, (PIECE,), (), 4, 64, "grow_idle", 60.0), 1.0)
        store.resizes.advance(ordered.id, ResizeState.DONE, at=3.0)
    with Store(url) as store:
        used = store.allocations.in_use(7)
        assert store.jobs.get(7) == JOB and used is not None and used.pieces == (PIECE,)
        assert (store.allocations.mean_pause(7), store.allocations.first_sizes()) == (0.5, {7: (4, 64)})
        assert [(row.step_time, row.count) for row in store.reports.observations(7)] == [(0.1, 1)]
        decision, last = store.decisions.last(7), store.resizes.last_closed(7)
        assert decision is not None and decision.gpus_to == 8
        assert last is not None and (last.state, last.message) == ("done", ordered.message)
        assert store.retention.roll_up(1e9) == 1


def test_what_is_old_is_thinned_on_a_server_as_in_a_file(url: str) -> None:
    """Of resizes that are long over the sums stay, the steps go; advice, single reports and jobs go by their age."""
    with Store.open(url) as store:
        lives(store, [7, 8], days=2, resizes=24)
        store.jobs.end(7, "COMPLETED", 2 * DAY)
        before, running = sums(store, 7), sums(store, 8)
        assert store.thinning.thin(2 * DAY + 1)
        assert (sums(store, 7), sums(store, 8)) == (before, running)
        assert (len(store.allocations.rows(7)), len(store.allocations.rows(8))) == (6, 48)
        assert (count(store, "resizes"), count(store, "rollups")) == (2, 2 * 2 + 2 * 48)
        assert store.retention.prune_decisions(2 * DAY) == 2 * 46
        assert store.retention.prune(2 * DAY + 1) == 1 and count(store, "allocations") == 48
        assert store.thinning.thin(2 * DAY + 1) and sums(store, 8) == running


def test_hosts_that_share_a_server_take_turns(url: str) -> None:
    """Of many contenders for a silent holder's lease one gets it; the silent one's next transaction is refused, though
    it began to write from the same rows."""
    Store.open(url).close()
    seconds = 0.0
    first = Lease(Database(url), "a", "host a", 10.0, lambda: seconds)
    assert first.try_take() is None
    others = [Lease(Database(url), name, name, 10.0, lambda: seconds) for name in "bcdef"]
    assert all(other.try_take() is not None for other in others)
    with Store(url, first.fence) as stale:
        stale.jobs.upsert(JOB)
        seconds = 100.0
        threads = [threading.Thread(target=other.try_take) for other in others]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert sorted(other.fence for other in others) == [0, 0, 0, 0, 2]
        with pytest.raises(LeaseLost, match="number 2, this one 1"):
            stale.jobs.pin(7, 4)
        assert stale.jobs.pinned(7) is None
    for lease in (first, *others):
        lease._db.close()
