"""What is kept and what goes: roll-up and pruning lose no knowledge that anyone still asks for."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Select, delete, select, update
from store_records import JOB, kept_reports

from slurm_elastic.db import schema
from slurm_elastic.db.parts import observations, reports, retention
from slurm_elastic.db.rows import DecisionRow
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.messages import Piece, Report

HOUR = 3600.0


def report(at: float, gpus: int = 4, time: float = 0.1, noise: float = 0.0) -> Report:
    """A report at this time; its step is its second."""
    return Report(1, at, gpus, 1, 64, 16, 1, 1, time, time, 64 / time, int(at), int(at) * 64, 0, noise_scale=noise)


def test_rolled_up_reports_still_count(store: Store) -> None:
    """Reports become hourly records; the count, the youngest time and a median of medians stay."""
    made = [report(i * 60.0, time=0.1 if i < 60 else 0.3, noise=i % 2) for i in range(1, 150)]
    store.reports.submit(7, made, 1e6).result()
    assert store.retention.roll_up(2 * HOUR + 100) == 119
    assert len(kept_reports(store, 7)) == 30
    (seen,) = store.reports.observations(7)
    assert (seen.count, seen.last_at, seen.step_time, seen.noise_scale) == (149, 149 * 60.0, 0.3, 1.0)
    assert store.retention.roll_up(2 * HOUR + 100) == 0
    assert store.retention.roll_up(1e6) == 30
    (seen,) = store.reports.observations(7)
    assert (seen.count, seen.step_time) == (149, 0.3)


def test_the_share_of_communication_is_a_median_of_the_reports_that_measured_it(store: Store) -> None:
    """It is the same from memory and from the database; an hour's record does not keep it."""
    made = [replace(report(60.0 * i), comm_share=share) for i, share in enumerate((0.0, 0.2, 0.3, 0.7), 1)]
    store.reports.submit(7, made[:3], 1e6).result()
    (stored,) = store.reports.observations(7)
    assert stored.comm_share == 0.25
    store.reports.submit(7, made[3:], 1e6).result()
    (added,) = store.reports.observations(7)
    assert added.comm_share == 0.3
    store.retention.roll_up(1e6)
    (old,) = store.reports.observations(7)
    assert (old.count, old.comm_share) == (4, 0.0)


def test_the_share_that_waits_for_input_is_kept_by_the_hour(store: Store, url: str) -> None:
    """It is the same from memory, from the database and from hourly records; a step that did not wait counts as 0."""
    made = [replace(report(60.0 * i), input_wait_share=share) for i, share in enumerate((0.0, 0.4, 0.5), 1)]
    store.reports.submit(7, made, 1e6).result()
    (stored,) = store.reports.observations(7)
    store.retention.roll_up(HOUR)
    (old,) = store.reports.observations(7)
    store.reports.submit(7, [replace(report(600.0), input_wait_share=0.8)], 1e6).result()
    store.retention.roll_up(HOUR)
    (late,) = store.reports.observations(7)
    assert [row.input_wait_share for row in (stored, old, late)] == pytest.approx([0.4, 0.4, 0.5])
    with Store(url) as reopened:
        assert reopened.reports.observations(7) == [late]


def test_hours_that_an_older_release_rolled_up_say_nothing_of_the_input(store: Store) -> None:
    """Not known is not 0: what is known of other hours, or of reports that join the hour, stays as it is."""
    store.reports.submit(7, [report(60.0)], 1e6).result()
    store.retention.roll_up(HOUR)
    with store._db.write() as connection:
        connection.execute(update(schema.rollups).values(input_wait_share=None))
    store.retention.roll_up(1e6)
    store.reports._warm = False
    assert store.reports.observations(7)[0].input_wait_share == 0.0
    store.reports.submit(7, [replace(report(at), input_wait_share=0.3) for at in (120.0, HOUR + 60.0)], 1e6).result()
    assert store.reports.observations(7)[0].input_wait_share == 0.3
    store.retention.roll_up(1e6)
    assert store.reports.observations(7)[0].input_wait_share == 0.3


def test_a_late_report_joins_its_hour(store: Store) -> None:
    """A report that was held back for hours is counted in the record of the hour it was made in."""
    store.reports.submit(7, [report(10.0, time=0.1), report(20.0, time=0.1), report(30.0, gpus=8)], 1e6).result()
    store.retention.roll_up(HOUR)
    store.reports.submit(7, [report(40.0, time=0.4)], 1e6).result()
    store.retention.roll_up(HOUR)
    small, large = store.reports.observations(7)
    assert (small.count, small.last_at, large.count) == (3, 40.0, 1)
    assert small.step_time == pytest.approx(0.2)


@settings(max_examples=30)
@given(
    times=st.lists(st.integers(1, 6 * 3600), unique=True, min_size=1, max_size=60),
    step=st.integers(1, 20),
    before=st.floats(0, 8 * HOUR),
)
def test_no_report_is_lost_or_counted_twice(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], step: int, before: float
) -> None:
    """However large the steps and wherever the limit falls, the counts by configuration stay."""
    with (
        Store.open(f"sqlite:///{tmp_path_factory.mktemp('db') / 'a.db'}") as store,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(retention, "STEP", step)
        jobs = [dataclasses.replace(JOB, job_id=number) for number in (7, 8)]
        store.jobs.upsert_all(jobs)
        for job in jobs:
            store.reports.submit(job.job_id, [report(float(at), gpus=1 + at % 3) for at in times], 1e6).result()
        counts = {job.job_id: [(row.gpus, row.count) for row in store.reports.observations(job.job_id)] for job in jobs}
        store.retention.roll_up(before)
        for job in jobs:
            assert [(row.gpus, row.count) for row in store.reports.observations(job.job_id)] == counts[job.job_id]
            assert all(row.at >= before // HOUR * HOUR for row in kept_reports(store, job.job_id))


@example(done=[("report", 1, 1), ("ask", 1, 0), ("report", 1, 2)], often=1)
@settings(max_examples=30)
@given(
    done=st.lists(
        st.one_of(
            st.tuples(st.just("report"), st.integers(1, 5 * 3600), st.integers(1, 2)),
            st.tuples(st.sampled_from(["roll up", "ask"]), st.integers(1, 6 * 3600), st.just(0)),
        ),
        min_size=1,
        max_size=30,
    ),
    often=st.integers(1, 3),
)
def test_what_is_remembered_is_what_a_restart_would_read(
    tmp_path_factory: pytest.TempPathFactory, done: list[tuple[str, int, int]], often: int
) -> None:
    """Whatever was reported, late or not, rolled up and summarised in between: medians, counts and the last report are
    those of the database, after a kill and after an end; without summaries too, as an upgrade finds it."""
    address = f"sqlite:///{tmp_path_factory.mktemp('db') / 'a.db'}"
    with Store.open(address) as store, pytest.MonkeyPatch.context() as patch:
        patch.setattr(observations, "YOUNGEST", 3)
        patch.setattr(reports, "OFTEN", often)
        store.jobs.upsert(JOB)
        for what, at, gpus in done:
            if what == "report":
                store.reports.submit(7, [report(float(at), gpus, time=0.1 + at / 1e5, noise=at % 3)], 1e6).result()
            elif what == "roll up":
                store.retention.roll_up(float(at))
            else:
                store.reports.observations(7), store.reports.last(7)
        seen, last = store.reports.observations(7), store.reports.last(7)
        for how in ("killed", "ended", "upgraded"):
            if how == "ended":
                store.close()
            with Store(address) as again:
                if how == "upgraded":
                    with again._db.write() as connection:
                        connection.execute(delete(schema.summaries))
                assert (again.reports.observations(7), again.reports.last(7)) == (seen, last)


def test_a_roll_up_reads_no_job_again_whose_youngest_reports_are_younger(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a job that goes on at one size nothing is read: of thousands the reports of hours would be, every hour. A last
    report that is rolled up is known no more, nor is a summary that holds one."""
    monkeypatch.setattr(observations, "YOUNGEST", 3)
    monkeypatch.setattr(reports, "OFTEN", 1)
    store.jobs.upsert(replace(JOB, job_id=8))
    for job_id, times in ((7, [60.0, 4000.0, 4060.0, 4120.0]), (8, [60.0, 4000.0, 4060.0])):
        store.reports.submit(job_id, [report(at) for at in times], 1e6).result()
        store.reports.observations(job_id)
    store.jobs.upsert(replace(JOB, job_id=9))
    store.reports.submit(9, [report(60.0)], 1e6).result()
    assert store.reports.last(9) == report(60.0)
    read: list[object] = []

    def counted(connection: Connection, jobs: Select[Any] | int, *rest: Any) -> object:
        read.append(jobs)
        return observations.load(connection, jobs, *rest)

    monkeypatch.setattr(reports, "load", counted)
    summarised = select(schema.summaries.c.job_id).order_by(schema.summaries.c.job_id)
    with store._db.read() as connection:
        assert connection.execute(summarised).scalars().all() == [7, 8]
    assert store.retention.roll_up(HOUR) == 3
    with store._db.read() as connection:
        assert connection.execute(summarised).scalars().all() == [7]
    assert [store.reports.observations(job_id)[0].count for job_id in (7, 8)] == [4, 3] and read == [8]
    assert store.reports.last(8) == report(4060.0) and store.reports.last(9) is None


def test_old_jobs_go_with_all_that_is_theirs(store: Store) -> None:
    """Jobs that ended long ago are forgotten, and events of that time; running and younger ones stay whole."""
    for number, end in ((8, 50.0), (9, 150.0)):
        store.jobs.upsert(dataclasses.replace(JOB, job_id=number))
        store.allocations.note(number, 1, (Piece(number, "base", ("n1",), 4),), 64, 10.0)
        store.reports.submit(number, [report(20.0)], 30.0).result()
        store.events.add(number, "started", "selasticd", {}, end - 1)
        store.jobs.end(number, "COMPLETED", end)
    assert store.retention.prune(100.0) == 1
    assert [job.job_id for job in store.jobs.all(active_only=False)] == [7, 9]
    assert [row.job_id for row in store.allocations.rows()] == [9]
    assert store.reports.observations(8) == [] and store.reports.last(8) is None and store.events.of(8) == []
    assert len(store.events.of(9)) == 1 and store.reports.observations(9)[0].count == 1
    assert store.retention.prune(100.0) == 0


def test_of_old_decisions_each_jobs_last_one_stays(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `explain` shows is kept as long as the job; of the rest what is younger than the limit. In small steps."""
    monkeypatch.setattr(retention, "DECISIONS", 2)
    store.jobs.upsert_all([dataclasses.replace(JOB, job_id=number) for number in (7, 8)])
    for at in range(1, 7):
        row = DecisionRow(7, float(at), at, at + 1, 64, 64, "grow_idle", None, None)
        store.decisions.save(float(at), [row, dataclasses.replace(row, job_id=8)] if at < 3 else [row])
    assert store.retention.prune_decisions(5.0) == 5
    assert [row.at for row in store.decisions.of(7)] == [6.0, 5.0]
    assert [row.at for row in store.decisions.of(8)] == [2.0]
    assert store.retention.prune_decisions(100.0) == 1 and store.retention.prune_decisions(100.0) == 0


def test_years_of_decisions_are_forgotten_little_by_little(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No round begins while old records are cleared away: one call takes so many, and the next ones the rest."""
    monkeypatch.setattr(retention, "DECISIONS", 2)
    monkeypatch.setattr(retention, "MOST_DECISIONS", 4)
    store.jobs.upsert_all([dataclasses.replace(JOB, job_id=7)])
    for at in range(1, 11):
        store.decisions.save(float(at), [DecisionRow(7, float(at), at, at + 1, 64, 64, "grow_idle", None, None)])
    assert [store.retention.prune_decisions(100.0) for _ in range(4)] == [4, 4, 1, 0]


def test_a_year_fits(store: Store) -> None:
    """An hourly record takes less than 150 bytes: those of 250 jobs at any time for a year are below 350 MB."""
    before = store.retention.size_mb()
    store.jobs.upsert_all([dataclasses.replace(JOB, job_id=number) for number in range(100, 150)])
    for number in range(100, 150):
        store.reports.submit(number, [report(hour * HOUR + 5) for hour in range(100)], 1e6).result()
    store.retention.roll_up(1e6)
    with store._db.write() as connection:
        connection.exec_driver_sql("DELETE FROM reports")
    with store._db.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.rollback()
        connection.connection.dbapi_connection.execute("VACUUM")  # type: ignore[union-attr]
    after = store.retention.size_mb()
    assert before is not None and after is not None
    assert (after - before) * 1e6 / 5000 < 150
