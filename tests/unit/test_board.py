"""The status of all jobs: fresh where that is cheap, at once where it is not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_world import ADA
from sqlalchemy import event, text
from waiting import wait_until

from slurm_elastic.daemon import board
from slurm_elastic.daemon.board import STALE_S, StatusBoard
from slurm_elastic.db.rows import DecisionRow, JobRow
from slurm_elastic.db.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as made:
        made.upsert_jobs([running(number) for number in (7, 8)])
        yield made


def running(number: int) -> JobRow:
    text = "elastic:gpus=1-8,batch=64-512"
    return JobRow(number, "ada", ADA, "n", "a", "p", text, True, "keep_best", "", 1.0, 2.0, None, "RUNNING")


def shown(made: StatusBoard) -> list[int]:
    return [job.job_id for job, _ in made.rows()]


def test_a_small_board_shows_every_change_at_once(store: Store) -> None:
    """On a cluster of a few jobs whoever asks after a change sees it."""
    made = StatusBoard(store)
    assert shown(made) == [7, 8]
    store.upsert_job(running(9))
    assert shown(made) == [7, 8, 9]
    store.end_job(7, "COMPLETED", 5.0)
    assert shown(made) == [8, 9]


def test_a_large_board_is_not_waited_for(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the next one is being made the last one is shown, until it is too old; then the next one is."""
    monkeypatch.setattr(board, "LITTLE_S", -1.0)
    go, actual, now = threading.Event(), board.whole, [100.0]
    made = StatusBoard(store, lambda: now[0])
    assert shown(made) == [7, 8], "the first one is waited for"
    monkeypatch.setattr(board, "whole", lambda *given: go.wait(60) and actual(*given))
    store.upsert_job(running(9))
    assert shown(made) == [7, 8], "a moment after it was made it is not made anew"
    now[0] += STALE_S / 2
    assert shown(made) == [7, 8] and shown(made) == [7, 8]
    go.set()
    wait_until(lambda: shown(made) == [7, 8, 9], 60, "the next board")
    store.end_job(7, "COMPLETED", 5.0)
    now[0] += STALE_S
    assert shown(made) == [8, 9], "one that is too old is waited for"


def test_standing_decisions_are_found_by_the_index(store: Store) -> None:
    """SQLite looks up each running job's youngest decision, and never through all that were ever taken."""
    store.save_decisions(1.0, [DecisionRow(7, 1.0, 1, 1, 64, 64, "keep_best", None, None)])
    said: list[str] = []
    event.listen(store._db.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
    assert [row.job_id for row in store.current_decisions()] == [7]
    with store._db.read() as connection:
        plan = [
            row[3]
            for row in connection.execute(text("EXPLAIN QUERY PLAN " + next(s for s in said if s.startswith("SELECT"))))
        ]
    assert any("INDEX ix_decisions_job_id_id" in line for line in plan), plan
    assert not [line for line in plan if line.startswith("SCAN decisions")], plan
