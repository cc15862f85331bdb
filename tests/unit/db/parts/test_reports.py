"""Reports and what is learned from them: one observation a configuration, in memory as in the database."""

from __future__ import annotations

import dataclasses
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import select
from store_records import JOB, kept_reports, report

from slurm_elastic.db import schema
from slurm_elastic.db.parts import observations
from slurm_elastic.db.parts.observations import MOST
from slurm_elastic.db.parts.reports import OFTEN
from slurm_elastic.db.rows import BATCH, REQUEUE, ObservationRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import ResizeState
from slurm_elastic.protocol.errors import StoreError
from slurm_elastic.protocol.messages import Piece, Resize


def test_observations_group_by_configuration(store: Store, url: str) -> None:
    """One row per configuration with the median of its reports; a report sent twice counts once; a restart forgets
    nothing."""
    store.reports.submit(7, [report(10 * i, time=t) for i, t in enumerate((0.1, 0.3, 0.2), 1)], 100.0).result()
    store.reports.submit(7, [report(30, time=0.2), report(40, gpus=10, batch=640)], 100.0).result()
    small, large = store.reports.observations(7)
    assert (small.gpus, small.count, small.step_time, small.last_at) == (8, 3, 0.2, 30.0)
    assert (large.gpus, large.batch, large.count) == (10, 640, 1)
    store.reports.submit(7, [report(40, gpus=10, batch=640), report(50, gpus=10, batch=640)], 100.0).result()
    assert [row.count for row in store.reports.observations(7)] == [3, 2]
    seen = store.reports.observations(7)
    store.close()
    with Store(url) as again:
        assert again.reports.observations(7) == seen
        assert again.reports.last(7) == report(50, gpus=10, batch=640)


@settings(max_examples=25)
@given(
    sent=st.lists(
        st.tuples(st.integers(1, 40), st.sampled_from([4, 8]), st.floats(0.01, 1.0), st.booleans()), max_size=30
    )
)
def test_memory_and_database_agree(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[int, int, float, bool]]
) -> None:
    """Whatever is sent, in whatever order and how often, what is remembered equals what a fresh daemon reads."""
    address = f"sqlite:///{tmp_path_factory.mktemp('db') / 'a.db'}"
    with Store.open(address) as store:
        store.jobs.upsert(JOB)
        for step, gpus, time, ask in sent:
            store.reports.submit(7, [report(step, gpus=gpus, time=time)], 1000.0).result()
            if ask:
                store.reports.observations(7), store.reports.last(7)
        fastest, seen, last = store.reports.fastest(7), store.reports.observations(7), store.reports.last(7)
        best = {gpus: max(row.samples_per_s for row in seen if row.gpus == gpus) for gpus in {row.gpus for row in seen}}
        assert fastest == store.reports.fastest(7) == best
    with Store(address) as again:
        assert again.reports.observations(7) == seen
        assert (again.reports.last(7) is None) == (last is None)
        if last is not None:
            newest = again.reports.last(7)
            assert newest is not None and newest.at == last.at


def test_medians_are_over_the_youngest(store: Store, url: str) -> None:
    """A job that has become slower is believed after a hundred reports, in memory and after a restart alike."""
    store.reports.observations(7)
    store.reports.submit(7, [report(10 * i, time=0.1) for i in range(1, 151)], 5000.0).result()
    store.reports.submit(7, [report(10 * i, time=0.4) for i in range(151, 221)], 5000.0).result()
    (seen,) = store.reports.observations(7)
    assert (seen.count, seen.step_time) == (220, 0.4)
    store.close()
    with Store(url) as again:
        assert again.reports.observations(7) == [seen]


def test_a_job_is_known_by_its_youngest_configurations(store: Store, url: str) -> None:
    """A job that reports ever new ones costs no more than others: in memory, after a restart, in the record of an
    hour."""
    store.reports.observations(7)
    made = [report(step, gpus=1 + step % 300, batch=64 * (1 + step // 300)) for step in range(1, 3 * MOST)]
    store.reports.submit(7, made, 3600.0).result()
    youngest = {(one.gpus, one.batch) for one in made[-MOST:]}
    assert {(row.gpus, row.batch) for row in store.reports.observations(7)} == youngest
    store.close()
    for rolled in (False, True):
        with Store(url) as again:
            assert {(row.gpus, row.batch) for row in again.reports.observations(7)} == youngest
            if rolled:
                with again._db.read() as connection:
                    assert connection.exec_driver_sql("SELECT count(*) FROM rollups").scalar() == MOST
            else:
                assert again.retention.roll_up(7200.0) == len(made)


def test_a_start_reads_no_report_again(store: Store, url: str) -> None:
    """But the last few, where the daemon was killed: those of thousands of jobs take half a minute. A report
    that came late counts all the same, and what a job came to ends with it."""
    store.reports.observations(7)
    for step in range(1, 2 * OFTEN + 6):
        gpus = 8 if step < OFTEN else 10
        store.reports.submit(7, [report(step, gpus=gpus, time=step / 100)], 1e6).result()
    seen = store.reports.observations(7)
    assert _read_by_a_start(url) == (5, seen)
    store.close()
    assert _read_by_a_start(url) == (0, seen)
    with Store(url) as again:
        again.reports.submit(7, [report(2 * OFTEN, time=9.0, at=3.5)], 1e6).result()
        assert [row.count for row in again.reports.observations(7)] == [OFTEN, OFTEN + 6]
        again.jobs.end(7, "COMPLETED", 50.0)
        with again._db.read() as connection:
            assert connection.execute(select(schema.summaries)).all() == []
        assert not again.reports._until and not again.reports._due, "memory of ended jobs"


def _read_by_a_start(url: str) -> tuple[int, list[ObservationRow]]:
    """How many reports a start reads, and what it takes from them."""
    with Store(url) as again, pytest.MonkeyPatch.context() as patch:
        read: list[object] = []
        patch.setattr(observations, "_of_job", lambda row: read.append(row) or row[:6])
        seen = again.reports.observations(7)
        return len(read), seen


def test_a_clock_ahead_does_not_hold_the_last_report(store: Store) -> None:
    """A report from a node whose clock runs a year ahead is as old as its arrival."""
    store.reports.submit(7, [report(10, at=4e9)], 100.0).result()
    store.reports.submit(7, [report(20, at=101.0)], 101.0).result()
    last = store.reports.last(7)
    assert last is not None and last.step == 20
    assert store.reports.observations(7)[0].last_at == 101.0


def test_a_poisoned_report_fails_alone(store: Store) -> None:
    """A record that the database refuses fails with one sentence; those beside it and after it are stored."""
    poison = dataclasses.replace(report(20), samples=1 << 70)
    nan = dataclasses.replace(report(25), step_time_median_s=float("nan"))
    with store._db.lock:  # so that all four meet in one transaction
        futures = [
            store.reports.submit(job, [item], 99.0)
            for job, item in ((7, report(10)), (7, poison), (404, report(1)), (7, nan))
        ]
    assert futures[0].result(10) is None
    for future in futures[1:]:
        assert isinstance(future.exception(10), StoreError)
    store.reports.submit(7, [report(30)], 99.0).result()
    assert store.reports.observations(7)[0].count == 2
    assert [row.step for row in kept_reports(store, 7)] == [10, 30]


def test_reports_after_close_are_refused(store: Store) -> None:
    """Nobody waits for ever on a store that has been closed."""
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.reports.submit(7, [report(10)], 20.0).result()


def test_many_threads_lose_nothing(store: Store) -> None:
    """Threads that report, decide and read at once all succeed, and everything they stored is there."""
    errors: list[BaseException] = []

    def work(part: int) -> None:
        try:
            for i in range(20):
                store.reports.submit(7, [report(part * 1000 + i + 1)], 1e6).result()
                store.events.add(7, "test", "selasticd", {"part": part}, float(i))
                store.reports.observations(7)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert store.reports.observations(7)[0].count == 120 and len(store.events.of(7)) == 120


def test_what_is_remembered_of_resizes_and_pauses_is_what_is_stored(tmp_path: Path) -> None:
    """Resize under way, last closed one, mean pause and first size come from one look at all jobs and from memory
    after; each is what a fresh store reads from the disk, after every kind of change."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with Store.open(url) as store:
        for job_id in (1, 2, 3):
            store.jobs.upsert(dataclasses.replace(JOB, job_id=job_id))

        def same() -> None:
            with Store(url) as fresh:
                for job_id in (1, 2, 3):
                    assert store.resizes.of(job_id) == fresh.resizes.of(job_id)
                    assert store.resizes.last_closed(job_id) == fresh.resizes.last_closed(job_id)
                    assert store.allocations.mean_pause(job_id) == fresh.allocations.mean_pause(job_id)
                    assert store.allocations.mean_pause(job_id, REQUEUE) == fresh.allocations.mean_pause(
                        job_id, REQUEUE
                    )
                    assert store.allocations.mean_pause(job_id, BATCH) == fresh.allocations.mean_pause(job_id, BATCH)
                    assert store.resizes.last_of_each(job_id) == fresh.resizes.last_of_each(job_id)
                assert store.allocations.first_sizes() == fresh.allocations.first_sizes()

        same()
        piece = Piece(1, "base", ("n1",), 4, "a100")
        for job_id in (1, 2):
            for number in range(3):
                ordered = store.resizes.begin(Resize(0, job_id, (), (), 4, 64, "grow_idle", 60.0), float(number))
                same()
                store.allocations.note(
                    job_id, number, (piece,), 64 + number, float(number), 0.5 * number, REQUEUE if job_id == 2 else ""
                )
                store.resizes.advance(ordered.id, ResizeState.ACCEPTED, at=float(number))
                same()
                store.resizes.advance(ordered.id, ResizeState.DONE, at=float(number))
                same()
        assert (
            store.allocations.mean_pause(1),
            store.allocations.mean_pause(2, REQUEUE),
            store.allocations.mean_pause(3, REQUEUE),
        ) == (0.75, 0.75, None)
        assert store.allocations.mean_pause(2) is None and store.allocations.first_sizes() == {1: (4, 64), 2: (4, 64)}
        store.resizes.begin(Resize(0, 1, (), (), 4, 64, "grow_idle", 60.0), 9.0)
        store.jobs.end(1, "COMPLETED", 10.0)
        same()
        assert store.resizes.last_closed(1).detail == "the job has ended"


def test_the_end_of_a_companion_was_foreseen(store: Store) -> None:
    """A job that leaves one whose time is over may be resized as often within the hour as if it had not."""
    piece = Piece(7, "base", ("n1",), 4, "a100")
    for number, reason in enumerate(("grow_idle", "companion_ends", "grow_idle"), 1):
        resize = store.resizes.begin(Resize(0, 7, (), (), 4, 64, reason, 60.0), float(number)).id
        store.allocations.note(7, number, (piece,), 64, float(number), 1.0, reason, resize)
        store.resizes.advance(resize, ResizeState.DONE, at=float(number))
    assert store.allocations.resized_since(0.0) == {7: (1.0, 3.0)}


def test_a_batch_alone_is_of_its_own_kind(store: Store) -> None:
    """Its pause is in no mean of resizes, nor it among those of an hour; of the job's last resizes it is kept apart."""
    piece = Piece(7, "base", ("n1",), 4, "a100")
    ids = []
    for number, (reason, pause_s) in enumerate((("grow_idle", 2.0), (BATCH, 0.25), (BATCH, 0.75)), 1):
        ids.append(store.resizes.begin(Resize(0, 7, (), (), 4, 64, reason, 60.0), float(number)).id)
        store.allocations.note(7, number, (piece,), 64 + number, float(number), pause_s, reason, ids[-1])
        store.resizes.advance(ids[-1], ResizeState.DONE, at=float(number))
    assert (store.allocations.mean_pause(7), store.allocations.mean_pause(7, BATCH)) == (2.0, 0.5)
    assert [row.pause_s for row in store.outcomes.pauses(9)] == [2.0] and store.allocations.resized_since(0.0) == {
        7: (1.0,)
    }
    assert [row.id for row in store.resizes.last_of_each(7) if row is not None] == [ids[0], ids[2]]
    last = store.resizes.last_closed(7)
    assert last is not None and last.id == ids[2]
