"""The status of all jobs: fresh where that is cheap, at once where it is not."""

from __future__ import annotations

import dataclasses
import json
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from api_harness import ADA, BASE, BOB, REPORT, ROOT
from fresh_store import fresh_store
from sqlalchemy import event, text
from waiting import wait_until

from slurm_elastic.daemon import reports
from slurm_elastic.daemon.api import status_cache
from slurm_elastic.daemon.api.status_cache import REFRESH_S, STALE_S, WATCHED_S, StatusCache
from slurm_elastic.daemon.reports.common import Viewer
from slurm_elastic.db.rows import DecisionRow, JobRow
from slurm_elastic.db.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as made:
        made.jobs.upsert_all([running(number) for number in (7, 8)])
        yield made


def running(number: int) -> JobRow:
    text = "elastic:gpus=1-8,batch=64-512"
    return JobRow(number, "ada", ADA, "n", "a", "p", text, True, "keep_best", "", 1.0, 2.0, None, "RUNNING")


def shown(made: StatusCache) -> list[int]:
    return [row["job_id"] for row in json.loads(made.json(Viewer(ADA)))["jobs"]]


def test_a_small_board_shows_every_change_at_once(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster of a few jobs whoever asks after a change sees it."""
    monkeypatch.setattr(
        status_cache, "CHEAP_S", 60.0
    )  # the first one compiles its queries: a busy machine may call it large
    made = StatusCache(store)
    assert shown(made) == [7, 8]
    store.jobs.upsert(running(9))
    assert shown(made) == [7, 8, 9]
    store.jobs.end(7, "COMPLETED", 5.0)
    assert shown(made) == [8, 9]


def test_a_large_board_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the next one is being made the last one is shown, until it is too old; then the next one is."""
    monkeypatch.setattr(status_cache, "CHEAP_S", -1.0)
    go, actual, now = threading.Event(), status_cache.whole, [100.0]
    made = StatusCache(store, lambda: now[0])
    assert shown(made) == [7, 8], "the first one is waited for"
    monkeypatch.setattr(status_cache, "whole", lambda *given: go.wait(60) and actual(*given))
    store.jobs.upsert(running(9))
    assert shown(made) == [7, 8], "a moment after it was made it is not made anew"
    now[0] += STALE_S / 2
    assert shown(made) == [7, 8] and shown(made) == [7, 8]
    go.set()
    wait_until(lambda: shown(made) == [7, 8, 9], 60, "the next board")
    store.jobs.end(7, "COMPLETED", 5.0)
    now[0] += STALE_S
    assert shown(made) == [8, 9], "one that is too old is waited for"


def test_whoever_asks_once_waits_for_what_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that asks once a minute, or first of all, gets no answer that was made ahead and is out of date."""
    monkeypatch.setattr(status_cache, "CHEAP_S", -1.0)
    now = [100.0]
    made = StatusCache(store, lambda: now[0])
    for job in (9, 10):
        made._made()  # as it is made ahead
        store.jobs.upsert(running(job))
        now[0] += STALE_S / 2
        assert job in shown(made)
        now[0] += STALE_S


@pytest.mark.parametrize("asked", [Viewer(ADA), Viewer(ROOT, admin=True)])
def test_an_answer_that_is_there_is_given_without_a_thread(
    store: Store, monkeypatch: pytest.MonkeyPatch, asked: Viewer
) -> None:
    """From the second request on, and of the next status, too, for those who have asked for the one before. What must
    be made first is left to `json`, to which whoever asks once is still somebody who asks once."""
    monkeypatch.setattr(status_cache, "CHEAP_S", -1.0)
    now = [100.0]
    made = StatusCache(store, lambda: now[0])
    assert made.ready(asked) is None, "nothing is made"
    first = made.json(asked)
    assert made.ready(asked) is made.ready(asked) is first
    assert made.ready(Viewer(BOB)) is None, "nobody who sees this has asked"
    assert b'"own":true' not in made.json(Viewer(BOB)) and made.ready(asked) is first
    store.jobs.upsert(running(9))
    now[0] += STALE_S / 2
    made._made()
    renewed = made.ready(asked)
    assert renewed is not None and [row["job_id"] for row in json.loads(renewed)["jobs"]] == [7, 8, 9]
    now[0] += STALE_S - 0.1
    store.jobs.upsert(running(10))
    made._made()
    store.jobs.upsert(running(11))
    now[0] += STALE_S / 2
    assert made.ready(asked) is None
    assert 11 in [row["job_id"] for row in json.loads(made.json(asked))["jobs"]]


def test_whoever_asks_meanwhile_orders_no_second_board(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Before the maker has begun, too. One that could not be made is told in the log, and ordered again."""
    monkeypatch.setattr(status_cache, "CHEAP_S", -1.0)
    now, orders = [100.0], list[Callable[[], None]]()
    made = StatusCache(store, lambda: now[0])
    assert shown(made) == [7, 8]
    monkeypatch.setattr(made, "_thread", SimpleNamespace(submit=orders.append))
    store.jobs.upsert(running(9))
    now[0] += STALE_S / 2
    assert [shown(made) for _ in range(5)] == [[7, 8]] * 5 and len(orders) == 1
    with monkeypatch.context() as broken:
        broken.setattr(status_cache, "whole", lambda *given: 1 / 0)
        orders.pop()()
    assert "could not be made" in caplog.text
    assert shown(made) == [7, 8] and len(orders) == 1
    orders.pop()()
    assert shown(made) == [7, 8, 9]


def test_a_large_board_is_kept_ready_while_people_ask(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one too, and until nobody has asked for a while; a small one is made when it is asked for."""
    now, orders = [100.0], list[Callable[[], None]]()
    made = StatusCache(store, lambda: now[0])
    monkeypatch.setattr(made, "_thread", SimpleNamespace(submit=orders.append))

    def kept() -> bool:
        """Whether this call has made a board."""
        made.refresh_ahead()
        if orders:
            orders.pop()()
        return made._cached[1] == now[0]

    monkeypatch.setattr(status_cache, "CHEAP_S", -1.0)
    assert kept(), "there is one before anybody asks"
    now[0] += REFRESH_S / 2
    assert not kept(), "one that is new"
    now[0] += REFRESH_S / 2
    assert kept()
    now[0] += WATCHED_S
    assert not kept() and shown(made) == [7, 8], "who asks first after that waits for it"
    now[0] += REFRESH_S
    assert kept(), "and is not alone, perhaps"
    monkeypatch.setattr(status_cache, "CHEAP_S", 60.0)
    now[0] += REFRESH_S
    assert not kept(), "a small one"


@pytest.mark.parametrize(
    "viewer", [Viewer(ADA), Viewer(BOB), Viewer(BOB, private=True), Viewer(ROOT, admin=True), Viewer(5, private=True)]
)
def test_everyone_sees_what_they_may(store: Store, viewer: Viewer) -> None:
    """The board's answer is the rows that the reports give this viewer, whoever asked before."""
    store.jobs.upsert(dataclasses.replace(running(9), uid=BOB, user="bob"))
    made = StatusCache(store, lambda: 100.0)
    for asking in (Viewer(ROOT, admin=True), Viewer(5), viewer, viewer):
        said = json.loads(made.json(asking))["jobs"]
        shown = [dataclasses.asdict(row) for row in reports.status(store, asking, 100.0)]
        assert said == json.loads(json.dumps(shown))


def test_rows_that_are_kept_are_the_rows_made_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever happens to jobs between two answers, each answer is what the reports give at that moment."""
    monkeypatch.setattr(status_cache, "CHEAP_S", 60.0)  # on a busy machine five jobs may take more than that
    chance, now = random.Random(3), [100.0]
    made, numbers = StatusCache(store, lambda: now[0]), range(7, 12)
    store.jobs.upsert_all([running(number) for number in numbers])
    viewers = (Viewer(ADA), Viewer(BOB), Viewer(BOB, private=True), Viewer(ROOT, admin=True))
    for step in range(80):
        number, what = chance.choice(numbers), chance.randrange(6)
        if what == 0:
            uid, start = chance.choice((ADA, BOB)), chance.choice((None, 2.0, 50.0))
            store.jobs.upsert(dataclasses.replace(running(number), uid=uid, start_time=start, name='"elapsed_s":1,'))
        elif what == 1:
            store.jobs.end(number, "COMPLETED", now[0])
        elif what == 2:
            store.allocations.note(number, step, (dataclasses.replace(BASE, slurm_job_id=number),), 64, now[0])
        elif what == 3:
            report = dataclasses.replace(REPORT, step=step, at=now[0], samples_per_s=float(step))
            store.reports.submit(number, [report], now[0]).result()
        elif what == 4:
            store.jobs.pin(number, chance.choice((None, 4)))
        else:
            reason = chance.choice(("keep_best", "grow_idle"))
            store.decisions.save(now[0], [DecisionRow(number, now[0], 1, 2, 64, 64, reason, None, None)])
        now[0] += 2.0
        for viewer in viewers:
            shown = [dataclasses.asdict(row) for row in reports.status(store, viewer, now[0])]
            assert json.loads(made.json(viewer))["jobs"] == json.loads(json.dumps(shown))


def test_a_rate_of_another_size_is_not_shown(store: Store) -> None:
    """After a grow the throughput is not known until the first report of the new world; what was done stays known.
    A world that was only started again, at the same size, keeps it."""

    def rate() -> tuple[object, object, object]:
        (row,) = [row for row in reports.status(store, Viewer(ADA), 100.0) if row.job_id == 7]
        return row.gpus, row.samples_per_s, row.step

    store.allocations.note(7, 1, (BASE,), 64, 10.0)
    store.reports.submit(7, [REPORT], 10.0).result()
    assert rate() == (4, 640.0, 10)
    store.allocations.note(7, 2, (BASE,), 64, 20.0)
    assert rate() == (4, 640.0, 10)
    store.allocations.note(7, 3, (dataclasses.replace(BASE, nodes=("n1", "n2")),), 64, 30.0)
    assert rate() == (8, None, 10)
    grown = dataclasses.replace(REPORT, generation=3, gpus=8, at=40.0, step=20, samples_per_s=1200.0)
    store.reports.submit(7, [grown], 40.0).result()
    assert rate() == (8, 1200.0, 20)


def test_standing_decisions_are_remembered(store: Store) -> None:
    """What a scrape and the board need of decisions is asked of the database once, and follows what is decided."""
    evidence = {"speedup_to": 2.0, "much": "more"}
    store.decisions.save(1.0, [DecisionRow(7, 1.0, 1, 1, 64, 64, "keep_best", None, None, evidence, [{"gpus": 2}])])
    store.decisions._standing.clear()
    store.decisions.standing([7, 8])
    said: list[str] = []
    event.listen(store._db.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    assert {job: row.reason for job, row in store.decisions.standing([7, 8]).items()} == {7: "keep_best"} and not said
    store.decisions.save(2.0, [DecisionRow(8, 2.0, 1, 2, 64, 64, "grow_idle", None, None, evidence)])
    said.clear()
    found = store.decisions.standing([7, 8])
    assert (found[7].evidence, found[7].alternatives, found[8].at) == ({"speedup_to": 2.0}, [], 2.0) and not said
    store.jobs.end(8, "COMPLETED", 5.0)
    assert list(store.decisions.standing([7])) == [7] and 8 not in store.decisions._standing


def test_standing_decisions_are_found_by_the_index(store: Store) -> None:
    """SQLite looks up each running job's youngest decision, and never through all that were ever taken."""
    store.decisions.save(1.0, [DecisionRow(7, 1.0, 1, 1, 64, 64, "keep_best", None, None)])
    said: list[str] = []
    event.listen(store._db.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    assert [row.job_id for row in store.decisions.current()] == [7]
    with store._db.read() as connection:
        plan = [
            row[3]
            for row in connection.execute(text("EXPLAIN QUERY PLAN " + next(s for s in said if s.startswith("SELECT"))))
        ]
    assert any("INDEX ix_decisions_job_id_id" in line for line in plan), plan
    assert not [line for line in plan if line.startswith("SCAN decisions")], plan
