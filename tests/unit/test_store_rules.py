"""The store's promises: what is stored, what closes what, what is refused and in which words."""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.script import ScriptDirectory
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_elastic.db import engine, migrate
from slurm_elastic.db.codec import directive_in, directive_out
from slurm_elastic.db.migrate import head
from slurm_elastic.db.rows import REQUEUE, DecisionRow, JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.trainer_shim.errors import NotFound, StoreError
from slurm_elastic.trainer_shim.wire import Directive, Piece, Report, Shape

JOB = JobRow(
    job_id=7,
    user="ada",
    uid=1000,
    name="train",
    account="lab",
    partition="gpu",
    request="elastic:gpus=1-8,batch=64-512",
    managed=True,
    reason="",
    detail="",
    submit_time=1.0,
    start_time=2.0,
    end_time=None,
    state="RUNNING",
)
BASE = Piece(7, "base", ("n1", "n2"), 4, "a100")
COMPANION = Piece(8, "companion", ("n3",), 2, "a100")
DIRECTIVE = Directive(0, 7, (BASE,), (Shape(1, 2, gpu_type="a100"),), 10, 640, "grow_idle", 60.0)
DECISION = DecisionRow(7, 1.0, 4, 8, 256, 512, "grow_idle", 1.5, 0.5, {"reports": 9}, [{"gpus": 6}], "companion", "act")


def report(
    step: int, at: float = 0.0, *, generation: int = 1, gpus: int = 8, batch: int = 64, time: float = 0.1
) -> Report:
    """A report of ten steps that ends at `step`."""
    return Report(
        generation=generation,
        at=at or float(step),
        gpus=gpus,
        nodes=2,
        batch=batch,
        micro_batch=8,
        accumulation=1,
        steps=10,
        step_time_median_s=time,
        step_time_p90_s=time,
        samples_per_s=batch / time,
        step=step,
        samples=step * batch,
        epoch=0,
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'selastic.db'}"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with Store.open(url) as opened:
        opened.upsert_job(JOB)
        yield opened


def test_job_comes_back_as_it_was_stored(store: Store) -> None:
    """Every field of a job survives, and a job that nobody stored is None."""
    assert store.job(7) == JOB
    assert store.job(8) is None
    changed = dataclasses.replace(JOB, name="naïve \U0001f600", start_time=None, state="PENDING")
    store.upsert_job(changed)
    assert store.job(7) == changed


def test_an_unchanged_job_costs_no_write(store: Store) -> None:
    """A round that sees the same jobs again leaves the disk alone, so a thousand of them cost nothing."""
    with store._db.read() as connection:
        before = connection.exec_driver_sql("PRAGMA data_version").scalar()
        store.upsert_jobs([JOB] * 3)
        assert connection.exec_driver_sql("PRAGMA data_version").scalar() == before


def test_end_of_a_job_closes_what_belongs_to_it(store: Store) -> None:
    """After its end a job has no allocation, token, pin or open resize; the first end counts."""
    store.set_in_use(7, 1, (BASE,), 64, at=10.0, reason="start")
    token = store.mint_token(7, 1000)
    store.pin(7, 4)
    number = store.new_intent(DIRECTIVE, 11.0).id
    store.end_job(7, "COMPLETED", 20.0)
    store.end_job(7, "FAILED", 30.0)
    job = store.job(7)
    assert job is not None and (job.state, job.end_time) == ("COMPLETED", 20.0)
    assert store.jobs() == [] and len(store.jobs(active_only=False)) == 1
    assert store.in_use(7) is None and store.pinned(7) is None and store.token_job(token) is None
    assert [row.end for row in store.allocations()] == [20.0]
    assert store.intent(number).state == "withdrawn" and store.open_intents() == []


@pytest.mark.parametrize("state", ["CANCELLED by 1000", "COMPLETED", "NODE_FAIL"])
def test_a_job_seen_ended_is_ended(store: Store, state: str) -> None:
    """A snapshot that shows a job as over ends it as `end_job` does."""
    token = store.mint_token(7, 1000)
    store.set_in_use(7, 1, (BASE,), 64, at=10.0)
    store.upsert_job(dataclasses.replace(JOB, state=state, end_time=33.0))
    assert store.jobs() == [] and store.token_job(token) is None
    assert [row.end for row in store.allocations()] == [33.0]


def test_a_requeued_job_is_active_again(store: Store) -> None:
    """Slurm runs a requeued job under its old id."""
    store.end_job(7, "PREEMPTED", 20.0)
    store.upsert_job(dataclasses.replace(JOB, state="PENDING"))
    assert [job.job_id for job in store.jobs()] == [7]


def test_token_speaks_for_its_job_alone(store: Store, url: str) -> None:
    """A token names its job, is stored only as a digest, and dies when the id belongs to another user."""
    token = store.mint_token(7, 1000)
    assert store.token_job(token) == 7 and store.token_job(token + "x") is None and store.token_job("") is None
    assert token.encode() not in Path(store._db.name).read_bytes()
    assert token.encode() not in Path(store._db.name + "-wal").read_bytes()
    store.upsert_job(dataclasses.replace(JOB, uid=2000, user="bob"))
    assert store.token_job(token) is None


def test_only_the_newest_tokens_live(store: Store) -> None:
    """Two threads may register at once, but tokens do not pile up."""
    tokens = [store.mint_token(7, 1000) for _ in range(6)]
    assert [store.token_job(token) for token in tokens] == [None, None, 7, 7, 7, 7]


def test_token_survives_a_restart(store: Store, url: str) -> None:
    """A daemon that is started again knows its supervisors."""
    token = store.mint_token(7, 1000)
    store.close()
    with Store(url) as again:
        assert again.token_job(token) == 7


def test_pin(store: Store) -> None:
    """A pin is set, changed and let go."""
    assert store.pinned(7) is None
    store.pin(7, 4)
    store.pin(7, 2)
    assert store.pinned(7) == 2
    store.pin(7, None)
    assert store.pinned(7) is None


def test_allocation_rows_follow_what_is_in_use(store: Store) -> None:
    """A row for each size: the old one ends where the new one begins; saying the same again begins none."""
    store.set_in_use(7, 1, (BASE,), 64, at=10.0, reason="start")
    store.set_in_use(7, 1, (BASE,), 64, at=15.0, reason="start")
    used = store.in_use(7)
    assert used is not None and (used.since, used.registered_at, used.gpus) == (10.0, 15.0, 8)
    store.set_in_use(7, 2, (BASE, COMPANION), 640, at=20.0, pause_s=0.5, reason="grow_idle", directive=3)
    first, second = store.allocations()
    assert (first.start, first.end, first.gpus, first.node_list) == (10.0, 20.0, 8, "n1,n2")
    assert (second.start, second.end, second.gpus, second.nodes) == (20.0, None, 10, 3)
    assert (second.pause_s, second.reason, second.directive) == (0.5, "grow_idle", 3)
    assert store.mean_pause(7) == 0.5 and store.all_in_use().keys() == {7}
    used = store.in_use(7)
    assert used is not None and used.pieces == (BASE, COMPANION)


def test_allocations_by_time_job_and_user(store: Store) -> None:
    """Rows are those that overlap the time asked for, of the job or the uid asked for."""
    store.upsert_job(dataclasses.replace(JOB, job_id=9, uid=2000))
    store.set_in_use(7, 1, (BASE,), 64, at=10.0)
    store.set_in_use(7, 2, (BASE,), 128, at=20.0)
    store.set_in_use(9, 1, (COMPANION,), 64, at=12.0)
    assert [row.batch for row in store.allocations(start=20.0)] == [128, 64]
    assert [row.job_id for row in store.allocations(end=12.0)] == [7]
    assert [row.job_id for row in store.allocations(uid=2000)] == [9]
    assert [row.generation for row in store.allocations(7, start=0.0, end=100.0)] == [1, 2]


def test_samples_of_a_row_are_its_own(store: Store) -> None:
    """Counters of the training are shared out exactly when the supervisor says where it stood at the change."""
    store.set_in_use(7, 1, (BASE,), 64, at=10.0, step=0, samples=0)
    store.add_reports(7, [report(10), report(20)], 30.0)
    store.set_in_use(7, 2, (BASE,), 128, at=40.0, step=25, samples=25 * 64)
    store.add_reports(7, [report(35, generation=2, batch=64)], 50.0)
    assert [(row.steps, row.samples) for row in store.allocations()] == [(25, 1600), (10, 640)]
    store.note_progress(7, 2, 40, 40 * 64)
    assert store.allocations()[1].steps == 15


def test_a_late_report_counts_into_its_own_generation(store: Store) -> None:
    """A report that was held back and re-sent belongs to the world that made it."""
    store.set_in_use(7, 1, (BASE,), 64, at=10.0, step=0, samples=0)
    store.set_in_use(7, 2, (BASE,), 128, at=40.0)
    store.add_reports(7, [report(30, generation=1)], 50.0)
    assert [row.steps for row in store.allocations()] == [30, 0]


def test_work_done_again_after_a_restore_is_counted(store: Store) -> None:
    """A training that falls back to a checkpoint has a new row that begins at the checkpoint, not at the lost step."""
    store.set_in_use(7, 1, (BASE,), 64, at=10.0, step=0, samples=0)
    store.add_reports(7, [report(100)], 100.0)
    store.set_in_use(7, 2, (BASE,), 64, at=110.0)
    store.add_reports(7, [report(70, 120.0, generation=2), report(90, 130.0, generation=2)], 130.0)
    assert [row.steps for row in store.allocations()] == [100, 30]


@pytest.mark.parametrize("counter", ["step", "samples"])
def test_a_row_with_one_counter_alone_ends_like_any(store: Store, counter: str) -> None:
    """A supervisor may tell one and not the other: its next world, and its end, are stored all the same."""
    store.set_in_use(7, 1, (BASE,), 64, at=10.0, **{counter: 5})
    store.set_in_use(7, 2, (BASE,), 64, at=20.0)
    store.clear_in_use(7, 30.0)
    assert [row.end for row in store.allocations()] == [20.0, 30.0]


def test_a_clock_set_back_ends_no_row_before_its_start(store: Store) -> None:
    """GPU-hours are never negative."""
    store.set_in_use(7, 1, (BASE,), 64, at=100.0)
    store.set_in_use(7, 2, (BASE,), 128, at=50.0)
    assert store.allocations()[0].end == 100.0


def test_observations_group_by_configuration(store: Store, url: str) -> None:
    """One row per configuration with the median of its reports; a report sent twice counts once; a restart forgets
    nothing."""
    store.add_reports(7, [report(10 * i, time=t) for i, t in enumerate((0.1, 0.3, 0.2), 1)], 100.0)
    store.add_reports(7, [report(30, time=0.2), report(40, gpus=10, batch=640)], 100.0)
    small, large = store.observations(7)
    assert (small.gpus, small.count, small.step_time, small.last_at) == (8, 3, 0.2, 30.0)
    assert (large.gpus, large.batch, large.count) == (10, 640, 1)
    store.add_reports(7, [report(40, gpus=10, batch=640), report(50, gpus=10, batch=640)], 100.0)
    assert [row.count for row in store.observations(7)] == [3, 2]
    seen = store.observations(7)
    store.close()
    with Store(url) as again:
        assert again.observations(7) == seen
        assert again.last_report(7) == report(50, gpus=10, batch=640)


@settings(max_examples=25, deadline=None)
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
        store.upsert_job(JOB)
        for step, gpus, time, ask in sent:
            store.add_reports(7, [report(step, gpus=gpus, time=time)], 1000.0)
            if ask:
                store.observations(7), store.last_report(7)
        seen, last = store.observations(7), store.last_report(7)
    with Store(address) as again:
        assert again.observations(7) == seen
        assert (again.last_report(7) is None) == (last is None)
        if last is not None:
            newest = again.last_report(7)
            assert newest is not None and newest.at == last.at


def test_medians_are_over_the_youngest(store: Store, url: str) -> None:
    """A job that has become slower is believed after a hundred reports, in memory and after a restart alike."""
    store.observations(7)
    store.add_reports(7, [report(10 * i, time=0.1) for i in range(1, 151)], 5000.0)
    store.add_reports(7, [report(10 * i, time=0.4) for i in range(151, 221)], 5000.0)
    (seen,) = store.observations(7)
    assert (seen.count, seen.step_time) == (220, 0.4)
    store.close()
    with Store(url) as again:
        assert again.observations(7) == [seen]


def test_a_clock_ahead_does_not_hold_the_last_report(store: Store) -> None:
    """A report from a node whose clock runs a year ahead is as old as its arrival."""
    store.add_reports(7, [report(10, at=4e9)], 100.0)
    store.add_reports(7, [report(20, at=101.0)], 101.0)
    last = store.last_report(7)
    assert last is not None and last.step == 20
    assert store.observations(7)[0].last_at == 101.0


def test_a_poisoned_report_fails_alone(store: Store) -> None:
    """A record that the database refuses fails with one sentence; those beside it and after it are stored."""
    poison = dataclasses.replace(report(20), samples=1 << 70)
    nan = dataclasses.replace(report(25), step_time_median_s=float("nan"))
    with store._db.lock:  # so that all four meet in one transaction
        futures = [
            store.submit_reports(job, [item], 99.0)
            for job, item in ((7, report(10)), (7, poison), (404, report(1)), (7, nan))
        ]
    assert futures[0].result(10) is None
    for future in futures[1:]:
        assert isinstance(future.exception(10), StoreError)
    store.add_reports(7, [report(30)], 99.0)
    assert store.observations(7)[0].count == 2
    assert [row.step for row in store.report_rows(7)] == [10, 30]


def test_reports_after_close_are_refused(store: Store) -> None:
    """Nobody waits for ever on a store that has been closed."""
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.add_reports(7, [report(10)], 20.0)


def test_many_threads_lose_nothing(store: Store) -> None:
    """Threads that report, decide and read at once all succeed, and everything they stored is there."""
    errors: list[BaseException] = []

    def work(part: int) -> None:
        try:
            for i in range(20):
                store.add_reports(7, [report(part * 1000 + i + 1)], 1e6)
                store.add_event(7, "test", "selasticd", {"part": part}, float(i))
                store.observations(7)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(part,)) for part in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert store.observations(7)[0].count == 120 and len(store.events(7)) == 120


def test_decisions_are_stored_when_they_change(store: Store) -> None:
    """A round that decides the same again adds no row, also after a restart; a new reason or size does, and is told."""
    assert store.save_decisions(1.0, [DECISION]) == [DECISION]
    assert store.save_decisions(2.0, [dataclasses.replace(DECISION, value=9.0)]) == []
    assert [row.at for row in store.decisions(7)] == [1.0]
    store._marks.clear()
    assert store.decision_marks([7, 8]) == {7: DECISION.mark}
    assert store.save_decisions(3.0, [DECISION]) == []
    assert len(store.decisions(7)) == 1
    kept = dataclasses.replace(DECISION, gpus_from=8, reason="keep_best")
    store.save_decisions(4.0, [kept])
    assert store.decision(7) == dataclasses.replace(kept, at=4.0)
    assert store.current_decisions() == [dataclasses.replace(kept, at=4.0)]
    store.end_job(7, "COMPLETED", 5.0)
    assert store.current_decisions() == [] and len(store.decisions(7)) == 2


def test_a_number_that_json_lacks_is_unknown(store: Store) -> None:
    """Evidence with nan or inf is stored as null, so that no reader of the API meets broken JSON."""
    odd = dataclasses.replace(DECISION, gain=float("nan"), evidence={"gain": float("inf"), "sizes": (1, float("nan"))})
    store.save_decisions(1.0, [odd])
    row = store.decision(7)
    assert row is not None and row.gain is None and row.evidence == {"gain": None, "sizes": [1, None]}


def test_intent_has_a_number_of_its_own(store: Store) -> None:
    """The directive comes back numbered; numbers are not used again, also when an intent was the last."""
    first = store.new_intent(DIRECTIVE, 5.0)
    assert first == dataclasses.replace(DIRECTIVE, id=first.id) and first.id > 0
    assert store.open_intent(7) is not None and store.intent(first.id).directive == first
    store.move_intent(first.id, "done", at=6.0)
    second = store.new_intent(DIRECTIVE, 7.0)
    assert second.id > first.id
    with store._db.write() as connection:
        connection.exec_driver_sql("DELETE FROM intents")
    assert store.new_intent(DIRECTIVE, 8.0).id > second.id


def test_a_job_has_one_open_intent(store: Store) -> None:
    """A second resize of the same job is refused until the first is over."""
    first = store.new_intent(DIRECTIVE, 5.0)
    with pytest.raises(StoreError, match=rf"job 7 has resize {first.id} under way"):
        store.new_intent(DIRECTIVE, 6.0)
    store.move_intent(first.id, "failed", "no nodes", 7.0)
    closed = store.last_closed_intent(7)
    assert closed is not None and (closed.state, closed.detail, closed.updated) == ("failed", "no nodes", 7.0)
    store.new_intent(DIRECTIVE, 8.0)


def test_intents_only_go_forward(store: Store) -> None:
    """A phase that arrives late or twice changes nothing; what is closed stays closed."""
    number = store.new_intent(DIRECTIVE, 5.0).id
    assert store.move_intent(number, "ready", "", 6.0).state == "ready"
    assert store.move_intent(number, "accepted", "", 7.0).state == "ready"
    assert store.move_intent(number, "withdrawn", "late", 8.0).open is False
    assert store.move_intent(number, "running", "", 9.0).state == "withdrawn"
    with pytest.raises(NotFound, match="no resize 99"):
        store.move_intent(99, "done")
    with pytest.raises(StoreError, match="accepted: issued"):
        store.move_intent(number, "vanished")


def test_events_are_kept_in_order(store: Store) -> None:
    """The record of a job outlives it and comes back in the order in which it was written."""
    for i in range(5):
        store.add_event(7, f"k{i}", "selasticd", {"i": i}, 100.0 - i)
    store.end_job(7, "COMPLETED", 5.0)
    assert [event.kind for event in store.events(7, limit=3)] == ["k2", "k3", "k4"]


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


numbers = st.integers(1, 99)
directives = st.builds(
    Directive,
    numbers,
    numbers,
    st.lists(pieces).map(tuple),
    st.lists(shapes).map(tuple),
    numbers,
    numbers,
    text,
    st.floats(0, 1e6),
    st.booleans(),
)


@given(directives)
def test_directives_come_back_as_they_were(directive: Directive) -> None:
    """No field of a directive is lost in the database."""
    assert directive_in(directive.id, directive_out(directive)) == directive


def test_what_belongs_to_an_unknown_job_is_refused(store: Store) -> None:
    """Foreign keys are on: nothing is stored for a job that is not."""
    with pytest.raises(StoreError, match="no record of that job"):
        store.set_in_use(404, 1, (BASE,), 64, at=1.0)


def test_disk_settings_are_the_durable_ones(store: Store) -> None:
    """Every connection writes ahead, syncs fully and checks foreign keys."""
    with store._db.read() as connection:
        values = [
            connection.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    assert values == ["wal", 2, 1]


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("sqlite:////nowhere/at/all/x.db", "directory /nowhere/at/all does not exist; create it"),
        ("sqlite://", "keeps nothing; accepted"),
        ("selastic.db", "cannot be read; accepted: sqlite"),
        ("nosuchdatabase://x/y", "cannot be read; accepted: sqlite"),
    ],
)
def test_an_address_that_cannot_work_is_refused(address: str, sentence: str) -> None:
    """Each mistake in database_url has its own sentence with the remedy."""
    with pytest.raises(StoreError, match=sentence):
        Store.open(address)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody else")
@pytest.mark.parametrize(("mode", "sentence"), [(0o755, "is not writable by uid 65534"), (0o700, "is closed to uid")])
def test_a_directory_of_someone_else_is_refused(mode: int, sentence: str) -> None:
    """A daemon that may not write says which directory and which uid, before it touches anything."""
    with tempfile.TemporaryDirectory() as outer:
        folder = Path(outer) / "state"
        folder.mkdir()
        Path(outer).chmod(mode)
        os.seteuid(65534)
        try:
            with pytest.raises(StoreError, match=sentence):
                Store.open(f"sqlite:///{folder / 'x.db'}")
        finally:
            os.seteuid(0)


def test_network_file_systems_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SQLite on NFS and its like loses data: the sentence names the file system and both ways out."""
    mounts = f"/dev/sda1 / ext4 rw 0 0\nserver:/x {tmp_path} nfs4 rw 0 0\nx {tmp_path}/local\\040disk xfs rw 0 0\n"
    assert engine.file_system(tmp_path / "a.db", mounts) == "nfs4"
    assert engine.file_system(tmp_path / "local disk" / "a.db", mounts) == "xfs"
    assert engine.file_system(Path("/etc/x"), mounts) == "ext4"
    assert [engine.is_network(kind) for kind in ("lustre", "gpfs", "beegfs", "ceph", "fuse.sshfs", "nfs")] == [True] * 6
    assert [engine.is_network(kind) for kind in ("ext4", "xfs", "tmpfs", "overlay", "fuse.fuse-overlayfs")] == [
        False
    ] * 5
    monkeypatch.setattr(engine, "file_system", lambda path: "nfs4")
    with pytest.raises(StoreError, match=r"network file system \(nfs4\).*local disk or to a PostgreSQL"):
        Store.open(f"sqlite:///{tmp_path / 'x.db'}")


def test_the_files_of_the_migrations_are_named_by_their_revisions() -> None:
    """What the code takes for the newest schema, without Alembic, is what Alembic would go to."""
    scripts = ScriptDirectory.from_config(migrate.alembic_config())
    assert [head()] == scripts.get_heads()
    assert migrate._revisions() == tuple(script.revision for script in scripts.walk_revisions())


def test_a_newer_schema_is_refused(store: Store, url: str) -> None:
    """An older program does not touch what a newer one has written."""
    store.close()
    connection = sqlite3.connect(store._db.name)
    connection.execute("UPDATE alembic_version SET version_num='9999'")
    connection.commit()
    connection.close()
    for opening in (Store.open, Store):
        with pytest.raises(StoreError, match=f"schema 9999, newer than this version .*{head()}"):
            opening(url)


def test_a_store_without_schema_says_so(url: str) -> None:
    """`Store(url)` does not create anything by itself."""
    with pytest.raises(StoreError, match=f"has schema none, not {head()}"):
        Store(url)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    """A path to something else is not overwritten."""
    path = tmp_path / "x.db"
    path.write_bytes(b"something else entirely, longer than a header" * 100)
    with pytest.raises(StoreError, match="another kind of file"):
        Store.open(f"sqlite:///{path}")
    assert path.read_bytes().startswith(b"something else")


def test_opened_by_two_at_once(url: str) -> None:
    """Two daemons that start together on a fresh database both find it whole."""
    errors: list[BaseException] = []

    def opening() -> None:
        try:
            Store.open(url).close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=opening) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert errors == []


def test_what_is_remembered_of_resizes_and_pauses_is_what_is_stored(tmp_path: Path) -> None:
    """Last closed resize, mean pause and first size come from one look at all jobs and from memory after; each is
    what a fresh store reads from the disk, after every kind of change."""
    url = f"sqlite:///{tmp_path / 'a.db'}"
    with Store.open(url) as store:
        for job_id in (1, 2, 3):
            store.upsert_job(dataclasses.replace(JOB, job_id=job_id))

        def same() -> None:
            with Store(url) as fresh:
                for job_id in (1, 2, 3):
                    assert store.last_closed_intent(job_id) == fresh.last_closed_intent(job_id)
                    assert store.mean_pause(job_id) == fresh.mean_pause(job_id)
                    assert store.mean_requeue(job_id) == fresh.mean_requeue(job_id)
                assert store.first_sizes() == fresh.first_sizes()

        same()
        piece = Piece(1, "base", ("n1",), 4, "a100")
        for job_id in (1, 2):
            for number in range(3):
                ordered = store.new_intent(Directive(0, job_id, (), (), 4, 64, "grow_idle", 60.0), float(number))
                same()
                store.set_in_use(
                    job_id, number, (piece,), 64 + number, float(number), 0.5 * number, REQUEUE if job_id == 2 else ""
                )
                same()
                store.move_intent(ordered.id, "done", at=float(number))
                same()
        assert (store.mean_pause(1), store.mean_requeue(1), store.mean_requeue(3)) == (0.75, 0.75, 0.75)
        assert store.mean_pause(2) is None and store.first_sizes() == {1: (4, 64), 2: (4, 64)}
        store.new_intent(Directive(0, 1, (), (), 4, 64, "grow_idle", 60.0), 9.0)
        store.end_job(1, "COMPLETED", 10.0)
        same()
        assert store.last_closed_intent(1).detail == "the job has ended"
