"""The store's promises: what is stored, what closes what, what is refused and in which words."""

from __future__ import annotations

import contextlib
import dataclasses
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Connection, event
from store_records import BASE, COMPANION, DECISION, JOB, RESIZE, report

from slurm_elastic.db.rows import records_in, records_out
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.codes import EventKind, ResizeState
from slurm_elastic.protocol.errors import NotFound, StoreError
from slurm_elastic.protocol.messages import Piece, Shape


def test_job_comes_back_as_it_was_stored(store: Store) -> None:
    """Every field of a job survives, and a job that nobody stored is None."""
    assert store.jobs.get(7) == JOB
    assert store.jobs.get(8) is None
    changed = dataclasses.replace(JOB, name="naïve \U0001f600", start_time=None, state="PENDING")
    store.jobs.upsert(changed)
    assert store.jobs.get(7) == changed


def test_an_unchanged_job_costs_no_write(store: Store) -> None:
    """A round that sees the same jobs again leaves the disk alone, so a thousand of them cost nothing."""
    with store._db.read() as connection:
        before = connection.exec_driver_sql("PRAGMA data_version").scalar()
        store.jobs.upsert_all([JOB] * 3)
        assert connection.exec_driver_sql("PRAGMA data_version").scalar() == before


def test_a_start_writes_no_job_that_is_as_it_was(store: Store, url: str) -> None:
    """Of thousands of jobs that would be half of a start's writes; one that has changed meanwhile is written."""
    changed = dataclasses.replace(JOB, job_id=8, account="guests")
    store.jobs.upsert(dataclasses.replace(changed, account="lab"))
    with Store(url) as again:
        again.jobs.all()
        said: list[tuple[str, object]] = []
        event.listen(again._db.engine, "before_cursor_execute", lambda *given: said.append((given[2], given[3])))
        again.jobs.upsert_all([JOB])
        assert not said
        again.jobs.upsert_all([JOB, changed])
        assert "guests" in str(said) and again.jobs.all() == [JOB, changed]


def test_end_of_a_job_closes_what_belongs_to_it(store: Store) -> None:
    """After its end a job has no allocation, token, pin or open resize; the first end counts."""
    store.allocations.note(7, 1, (BASE,), 64, at=10.0, reason="start")
    token = store.tokens.mint(7, 1000)
    store.jobs.pin(7, 4)
    number = store.resizes.begin(RESIZE, 11.0).id
    store.jobs.end(7, "COMPLETED", 20.0)
    store.jobs.end(7, "FAILED", 30.0)
    job = store.jobs.get(7)
    assert job is not None and (job.state, job.end_time) == ("COMPLETED", 20.0)
    assert store.jobs.all() == [] and len(store.jobs.all(active_only=False)) == 1
    assert store.allocations.in_use(7) is None and store.jobs.pinned(7) is None and store.tokens.job_of(token) is None
    assert [row.end for row in store.allocations.rows()] == [20.0]
    assert store.resizes.get(number).state == "withdrawn" and store.resizes.under_way() == []


@pytest.mark.parametrize("state", ["CANCELLED by 1000", "COMPLETED", "NODE_FAIL"])
def test_a_job_seen_ended_is_ended(store: Store, state: str) -> None:
    """A snapshot that shows a job as over ends it as `end_job` does."""
    token = store.tokens.mint(7, 1000)
    store.allocations.note(7, 1, (BASE,), 64, at=10.0)
    store.jobs.upsert(dataclasses.replace(JOB, state=state, end_time=33.0))
    assert store.jobs.all() == [] and store.tokens.job_of(token) is None
    assert [row.end for row in store.allocations.rows()] == [33.0]


def test_a_requeued_job_is_active_again(store: Store) -> None:
    """Slurm runs a requeued job under its old id."""
    store.jobs.end(7, "PREEMPTED", 20.0)
    store.jobs.upsert(dataclasses.replace(JOB, state="PENDING"))
    assert [job.job_id for job in store.jobs.all()] == [7]


def test_who_was_there_in_a_time(store: Store) -> None:
    """A job counts from its submission to its end, at both of which it is there no more than not."""
    store.jobs.upsert_all([dataclasses.replace(JOB, job_id=9, submit_time=50.0)])
    store.jobs.upsert_all([dataclasses.replace(JOB, job_id=8, submit_time=10.0, state="COMPLETED", end_time=20.0)])
    store.jobs.end(7, "COMPLETED", 5.0)
    found = [[job.job_id for job in store.jobs.within(*time)] for time in ((0, 10), (15, 50), (20, 50), (15, 51))]
    assert found == [[7], [8], [], [8, 9]]


def test_jobs_are_remembered_as_the_database_has_them(store: Store, url: str) -> None:
    """Whatever became of them since somebody asked: stored, changed, ended, requeued."""
    chance = random.Random(1)
    for number in range(60):
        job_id = chance.randint(1, 8)
        if chance.random() < 0.3:
            store.jobs.end(job_id, "COMPLETED", float(number))
        else:
            states = chance.choices(("PENDING", "RUNNING", "CANCELLED by 1000"), k=2)
            rows = [dataclasses.replace(JOB, job_id=job_id + i, state=state) for i, state in enumerate(states)]
            store.jobs.upsert_all(rows)
        with Store(url) as other:
            assert store.jobs.all() == other.jobs.all()


def test_token_speaks_for_its_job_alone(store: Store, url: str) -> None:
    """A token names its job, is stored only as a digest, and dies when the id belongs to another user."""
    token = store.tokens.mint(7, 1000)
    assert (
        store.tokens.job_of(token) == 7 and store.tokens.job_of(token + "x") is None and store.tokens.job_of("") is None
    )
    assert token.encode() not in Path(store._db.name).read_bytes()
    assert token.encode() not in Path(store._db.name + "-wal").read_bytes()
    store.jobs.upsert(dataclasses.replace(JOB, uid=2000, user="bob"))
    assert store.tokens.job_of(token) is None


def test_only_the_newest_tokens_live(store: Store) -> None:
    """Two threads may register at once, but tokens do not pile up."""
    tokens = [store.tokens.mint(7, 1000) for _ in range(6)]
    assert [store.tokens.job_of(token) for token in tokens] == [None, None, 7, 7, 7, 7]


def test_token_survives_a_restart(store: Store, url: str) -> None:
    """A daemon that is started again knows its supervisors."""
    token = store.tokens.mint(7, 1000)
    store.close()
    with Store(url) as again:
        assert again.tokens.job_of(token) == 7


def test_pin(store: Store) -> None:
    """A pin is set, changed and let go."""
    assert store.jobs.pinned(7) is None
    store.jobs.pin(7, 4)
    store.jobs.pin(7, 2)
    assert store.jobs.pinned(7) == 2
    store.jobs.pin(7, None)
    assert store.jobs.pinned(7) is None


def test_allocation_rows_follow_what_is_in_use(store: Store) -> None:
    """A row for each size: the old one ends where the new one begins; saying the same again begins none."""
    store.allocations.note(7, 1, (BASE,), 64, at=10.0, reason="start")
    store.allocations.note(7, 1, (BASE,), 64, at=15.0, reason="start")
    used = store.allocations.in_use(7)
    assert used is not None and (used.since, used.registered_at, used.gpus) == (10.0, 15.0, 8)
    store.allocations.note(7, 2, (BASE, COMPANION), 640, at=20.0, pause_s=0.5, reason="grow_idle", resize=3)
    first, second = store.allocations.rows()
    assert (first.start, first.end, first.gpus, first.node_list) == (10.0, 20.0, 8, "n1,n2")
    assert (second.start, second.end, second.gpus, second.nodes) == (20.0, None, 10, 3)
    assert (second.pause_s, second.reason, second.resize) == (0.5, "grow_idle", 3)
    assert store.allocations.mean_pause(7) == 0.5 and store.allocations.all_in_use().keys() == {7}
    used = store.allocations.in_use(7)
    assert used is not None and used.pieces == (BASE, COMPANION)


def test_allocations_by_time_job_and_user(store: Store) -> None:
    """Rows are those that overlap the time asked for, of the job or the uid asked for."""
    store.jobs.upsert(dataclasses.replace(JOB, job_id=9, uid=2000))
    store.allocations.note(7, 1, (BASE,), 64, at=10.0)
    store.allocations.note(7, 2, (BASE,), 128, at=20.0)
    store.allocations.note(9, 1, (COMPANION,), 64, at=12.0)
    assert [row.batch for row in store.allocations.rows(start=20.0)] == [128, 64]
    assert [row.job_id for row in store.allocations.rows(end=12.0)] == [7]
    assert [row.job_id for row in store.allocations.rows(uid=2000)] == [9]
    assert [row.generation for row in store.allocations.rows(7, start=0.0, end=100.0)] == [1, 2]


def test_samples_of_a_row_are_its_own(store: Store) -> None:
    """Counters of the training are shared out exactly when the supervisor says where it stood at the change."""
    store.allocations.note(7, 1, (BASE,), 64, at=10.0, step=0, samples=0)
    store.reports.submit(7, [report(10), report(20)], 30.0).result()
    store.allocations.note(7, 2, (BASE,), 128, at=40.0, step=25, samples=25 * 64)
    store.reports.submit(7, [report(35, generation=2, batch=64)], 50.0).result()
    assert [(row.steps, row.samples) for row in store.allocations.rows()] == [(25, 1600), (10, 640)]
    store.allocations.note_progress(7, 2, 40, 40 * 64)
    assert store.allocations.rows()[1].steps == 15


def test_a_late_report_counts_into_its_own_generation(store: Store) -> None:
    """A report that was held back and re-sent belongs to the world that made it."""
    store.allocations.note(7, 1, (BASE,), 64, at=10.0, step=0, samples=0)
    store.allocations.note(7, 2, (BASE,), 128, at=40.0)
    store.reports.submit(7, [report(30, generation=1)], 50.0).result()
    assert [row.steps for row in store.allocations.rows()] == [30, 0]


def test_work_done_again_after_a_restore_is_counted(store: Store) -> None:
    """A training that falls back to a checkpoint has a new row that begins at the checkpoint, not at the lost step."""
    store.allocations.note(7, 1, (BASE,), 64, at=10.0, step=0, samples=0)
    store.reports.submit(7, [report(100)], 100.0).result()
    store.allocations.note(7, 2, (BASE,), 64, at=110.0)
    store.reports.submit(7, [report(70, 120.0, generation=2), report(90, 130.0, generation=2)], 130.0).result()
    assert [row.steps for row in store.allocations.rows()] == [100, 30]


@pytest.mark.parametrize("counter", ["step", "samples"])
def test_a_row_with_one_counter_alone_ends_like_any(store: Store, counter: str) -> None:
    """A supervisor may tell one and not the other: its next world, and its end, are stored all the same."""
    store.allocations.note(7, 1, (BASE,), 64, at=10.0, **{counter: 5})
    store.allocations.note(7, 2, (BASE,), 64, at=20.0)
    store.allocations.clear_in_use(7, 30.0)
    assert [row.end for row in store.allocations.rows()] == [20.0, 30.0]


def test_a_clock_set_back_ends_no_row_before_its_start(store: Store) -> None:
    """GPU-hours are never negative."""
    store.allocations.note(7, 1, (BASE,), 64, at=100.0)
    store.allocations.note(7, 2, (BASE,), 128, at=50.0)
    assert store.allocations.rows()[0].end == 100.0


def test_decisions_are_stored_when_they_change(store: Store) -> None:
    """A round that decides the same again adds no row, also after a restart; a new reason or size does, and is told."""
    assert store.decisions.save(1.0, [DECISION]) == [DECISION]
    assert store.decisions.save(2.0, [dataclasses.replace(DECISION, value=9.0)]) == []
    assert [row.at for row in store.decisions.of(7)] == [1.0]
    store.decisions._marks.clear()
    assert store.decisions.marks([7, 8]) == {7: DECISION.mark}
    assert store.decisions.save(3.0, [DECISION]) == []
    assert len(store.decisions.of(7)) == 1
    kept = dataclasses.replace(DECISION, gpus_from=8, reason="keep_best")
    store.decisions.save(4.0, [kept])
    assert store.decisions.last(7) == dataclasses.replace(kept, at=4.0)
    assert store.decisions.current() == [dataclasses.replace(kept, at=4.0)]
    store.jobs.end(7, "COMPLETED", 5.0)
    assert store.decisions.current() == [] and len(store.decisions.of(7)) == 2


def test_marks_are_read_without_the_evidence(store: Store, url: str) -> None:
    """Evidence of thousands of jobs is kilobytes each, and a start asks whether a decision is another one; what stands
    of it is read when somebody asks."""
    row = dataclasses.replace(DECISION, evidence={"share_of": "ada", "sizes": [1] * 1000})
    store.decisions.save(1.0, [row])
    with Store(url) as again:
        said: list[str] = []
        event.listen(again._db.engine, "before_cursor_execute", lambda *given: said.append(given[2]))
        assert again.decisions.marks([7, 8]) == {7: DECISION.mark}
        assert "decisions" in said[-1] and "evidence" not in str(said)
        standing = again.decisions.standing([7, 8])
        assert standing == {7: dataclasses.replace(row, at=1.0, evidence={"share_of": "ada"}, alternatives=[])}


def test_a_number_that_json_lacks_is_unknown(store: Store) -> None:
    """Evidence with nan or inf is stored as null, so that no reader of the API meets broken JSON."""
    odd = dataclasses.replace(DECISION, gain=float("nan"), evidence={"gain": float("inf"), "sizes": (1, float("nan"))})
    store.decisions.save(1.0, [odd])
    row = store.decisions.last(7)
    assert row is not None and row.gain is None and row.evidence == {"gain": None, "sizes": [1, None]}


def test_a_resize_has_an_id_of_its_own(store: Store) -> None:
    """What was ordered comes back with its id; ids are not used again, also when a resize was the last."""
    first = store.resizes.begin(RESIZE, 5.0)
    assert first.message == dataclasses.replace(RESIZE, id=first.id) and first.id > 0
    assert store.resizes.of(7) == store.resizes.get(first.id) == first
    store.resizes.advance(first.id, ResizeState.DONE, at=6.0)
    second = store.resizes.begin(RESIZE, 7.0)
    assert second.id > first.id
    with store._db.write() as connection:
        connection.exec_driver_sql("DELETE FROM resizes")
    assert store.resizes.begin(RESIZE, 8.0).id > second.id


def test_ids_go_on_above_what_supervisors_know(store: Store) -> None:
    """A new or restored database begins below them, and a supervisor ignores what is not above."""
    store.resizes.heard_of(77)
    first = store.resizes.begin(RESIZE, 5.0)
    assert first.id == 78
    store.resizes.advance(first.id, ResizeState.DONE, at=6.0)
    store.resizes.heard_of(3)
    store.resizes.heard_of(2**62)  # nobody can use up the numbers
    assert store.resizes.begin(RESIZE, 7.0).id == 79


def test_a_job_has_one_open_resize(store: Store) -> None:
    """A second resize of the same job is refused until the first is over."""
    first = store.resizes.begin(RESIZE, 5.0)
    with pytest.raises(StoreError, match=rf"job 7 has resize {first.id} under way"):
        store.resizes.begin(RESIZE, 6.0)
    store.resizes.advance(first.id, ResizeState.FAILED, "no nodes", 7.0)
    closed = store.resizes.last_closed(7)
    assert closed is not None and (closed.state, closed.detail, closed.updated) == ("failed", "no nodes", 7.0)
    store.resizes.begin(RESIZE, 8.0)


def test_resizes_begin_together_but_for_those_of_jobs_that_have_one(store: Store) -> None:
    """One transaction for all of a round, with ids in their order; an open resize is left as it is."""
    store.jobs.upsert_all([dataclasses.replace(JOB, job_id=job_id) for job_id in (8, 9)])
    first, version = store.resizes.begin(RESIZE, 5.0), store.version
    begun, refused = store.resizes.begin_all([dataclasses.replace(RESIZE, job_id=job_id) for job_id in (8, 7, 9)], 6.0)
    assert [(row.job_id, row.id - first.id) for row in begun] == [(8, 1), (9, 2)]
    assert store.version == version + 1
    assert [store.resizes.of(job_id) for job_id in (7, 8, 9)] == [first, *begun]
    assert refused == {7: f"job 7 has resize {first.id} under way; it ends before the next begins"}
    assert store.resizes.begin_all([RESIZE], 7.0) == ([], refused) and store.resizes.begin_all([], 7.0) == ([], {})


@pytest.mark.parametrize(("bad", "why"), [("unknown job", "has no record of that job"), ("rule", "breaks its rules")])
def test_a_resize_that_the_database_refuses_keeps_no_other_from_beginning(store: Store, bad: str, why: str) -> None:
    """The others begin, all in one transaction, with ids one after the other; of the refused one nothing is left."""
    store.jobs.upsert_all([dataclasses.replace(JOB, job_id=job_id) for job_id in (8, 9)])
    assert store.resizes.of(7) is None  # the open ones are in memory from here on
    refused_job = 10 if bad == "unknown job" else 8
    if bad == "rule":
        with store._db.write() as connection:
            connection.exec_driver_sql(
                "CREATE TRIGGER no_8 BEFORE INSERT ON resizes WHEN NEW.job_id = 8 "
                "BEGIN SELECT RAISE(ABORT, 'CHECK constraint failed: no 8'); END"
            )
    version, jobs = store.version, (7, refused_job, 9)
    begun, refused = store.resizes.begin_all([dataclasses.replace(RESIZE, job_id=job_id) for job_id in jobs], 6.0)
    assert [row.job_id for row in begun] == [7, 9] and begun[1].id == begun[0].id + 1
    assert store.version == version + 1
    assert list(refused) == [refused_job] and why in refused[refused_job]
    assert store.resizes.under_way() == begun == [store.resizes.of(7), store.resizes.of(9)]
    assert store.resizes.of(refused_job) is None


def test_where_the_database_takes_nothing_no_resize_begins(store: Store) -> None:
    """What is wrong with the database itself is no single resize's fault: it is said, and nothing is half done."""
    with store._db.write() as connection:
        connection.exec_driver_sql("ALTER TABLE resizes RENAME TO elsewhere")
    with pytest.raises(StoreError, match="no such table"):
        store.resizes.begin_all([RESIZE], 6.0)
    with store._db.write() as connection:
        connection.exec_driver_sql("ALTER TABLE elsewhere RENAME TO resizes")
    assert store.resizes.under_way() == [] and store.resizes.begin_all([RESIZE], 7.0)[1] == {}


def test_a_resize_whose_commit_failed_after_it_was_on_the_disk_is_not_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its supervisor gets it: what the disk holds is read again."""
    assert store.resizes.of(7) is None
    write = store._db.write

    @contextlib.contextmanager
    def broken() -> Iterator[Connection]:
        with write() as connection:
            yield connection
        raise StoreError("the connection was lost")

    monkeypatch.setattr(store._db, "write", broken)
    with pytest.raises(StoreError, match="lost"):
        store.resizes.begin_all([RESIZE], 6.0)
    monkeypatch.undo()
    begun = store.resizes.of(7)
    assert begun is not None and store.resizes.under_way() == [begun]


def test_events_of_many_jobs_are_written_together(store: Store) -> None:
    """Each job has its own."""
    store.jobs.upsert(dataclasses.replace(JOB, job_id=8))
    version = store.version
    store.events.add_all({7: {"resize": 1}, 8: {"resize": 2}}, EventKind.RESIZE_ISSUED, "selasticd", 3.0)
    assert store.version == version + 1
    assert [(store.events.of(job_id)[0].detail, store.events.of(job_id)[0].at) for job_id in (7, 8)] == [
        ({"resize": 1}, 3.0),
        ({"resize": 2}, 3.0),
    ]


def test_failures_in_a_row_are_counted(store: Store) -> None:
    """From the last resize that came about on, those of the job alone."""
    assert store.resizes.failed_in_a_row(7) == 0
    for state, count in (("failed", 1), ("failed", 2), ("done", 0), ("failed", 1)):
        store.resizes.advance(store.resizes.begin(RESIZE, 5.0).id, ResizeState(state), at=6.0)
        assert store.resizes.failed_in_a_row(7) == count
    store.resizes.begin(RESIZE, 7.0)
    assert store.resizes.failed_in_a_row(7) == 1 and store.resizes.failed_in_a_row(8) == 0


def test_resizes_only_go_forward(store: Store) -> None:
    """A phase that arrives late or twice changes nothing; what is closed stays closed."""
    number = store.resizes.begin(RESIZE, 5.0).id
    assert store.resizes.advance(number, ResizeState.READY, "", 6.0).state == "ready"
    assert store.resizes.advance(number, ResizeState.ACCEPTED, "", 7.0).state == "ready"
    assert store.resizes.advance(number, ResizeState.WITHDRAWN, "late", 8.0).open is False
    late = store.resizes.advance(number, ResizeState.RUNNING, "", 9.0)
    assert late.phases == (("issued", 5.0), ("ready", 6.0), ("withdrawn", 8.0)), "each with its time"
    with pytest.raises(NotFound, match="no resize 99"):
        store.resizes.advance(99, ResizeState.DONE)


def test_events_are_kept_in_order(store: Store) -> None:
    """The record of a job outlives it and comes back in the order in which it was written."""
    for i in range(5):
        store.events.add(7, f"k{i}", "selasticd", {"i": i}, 100.0 - i)
    store.jobs.end(7, "COMPLETED", 5.0)
    assert [event.kind for event in store.events.of(7, limit=3)] == ["k2", "k3", "k4"]


text = st.text(st.characters(codec="utf-8", categories=("L", "N", "P")), max_size=8)


pieces = st.builds(
    Piece,
    st.integers(1, 1 << 31),
    st.sampled_from(["base", "companion"]),
    st.lists(text).map(tuple),
    st.integers(1, 8),
    text,
)


shapes = st.builds(Shape, st.integers(1, 99), st.integers(1, 8), gpu_type=text, node_list=st.lists(text).map(tuple))


def test_the_last_event_of_a_kind(store: Store) -> None:
    """Of each job that has one; job 3 has none."""
    for number, (job_id, kind) in enumerate([(1, "resume"), (2, "resume"), (1, "resume"), (1, "free"), (3, "free")]):
        store.events.add(job_id, EventKind(kind), "selasticd", {"number": number}, 10.0 + number)
    found = store.events.last([1, 2, 3], EventKind.RESUME)
    assert {job_id: (event.detail["number"], event.at) for job_id, event in found.items()} == {
        1: (2, 12.0),
        2: (1, 11.0),
    }
    assert store.events.last([], EventKind.RESUME) == {}


@given(st.lists(pieces).map(tuple), st.lists(shapes).map(tuple))
def test_pieces_and_shapes_come_back_as_they_were(held: tuple[Piece, ...], asked: tuple[Shape, ...]) -> None:
    """No field of what is kept and added is lost in the database."""
    assert records_in(Piece, records_out(held)) == held and records_in(Shape, records_out(asked)) == asked


def test_what_belongs_to_an_unknown_job_is_refused(store: Store) -> None:
    """Foreign keys are on: nothing is stored for a job that is not."""
    with pytest.raises(StoreError, match="no record of that job"):
        store.allocations.note(404, 1, (BASE,), 64, at=1.0)
