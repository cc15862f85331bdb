"""The parts of the running daemon: who waits for news, when rounds come, what supervisors may say, how it stops."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import sqlite3
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from waiting import wait_until
from worlds import REQUEST, World

from slurm_elastic.daemon import claims, hook_socket, service
from slurm_elastic.daemon.assembly import Daemon
from slurm_elastic.daemon.bell import Bell
from slurm_elastic.daemon.check import check, rights
from slurm_elastic.daemon.settings import Settings
from slurm_elastic.daemon.slurm.fake import Want
from slurm_elastic.daemon.ticker import Ticker
from slurm_elastic.db import engine
from slurm_elastic.db.rows import JobRow
from slurm_elastic.db.store import Store
from slurm_elastic.trainer_shim.errors import ConfigError, NotAllowed, NotFound
from slurm_elastic.trainer_shim.wire import VERSION, Phase, Piece, Registration, Report


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


# --- waiting for news ---------------------------------------------------------------------------------------------


def test_a_ring_from_another_thread_wakes_who_waits() -> None:
    """Rounds run on a thread of their own; those who wait are on the API's event loop."""
    bell = Bell()

    async def wait() -> bool:
        waiter = bell.listen(7)
        threading.Thread(target=bell.ring, args=(7,)).start()
        await asyncio.wait_for(waiter[1].wait(), 10)
        bell.leave(7, waiter)
        return bell._waiting == {}

    assert asyncio.run(wait())


def test_a_ring_wakes_only_its_job_and_closing_wakes_all() -> None:
    """News of one job is not everybody's."""
    bell = Bell()

    async def wait() -> tuple[bool, bool]:
        waiter = bell.listen(7)
        bell.ring(8)
        await asyncio.sleep(0)
        early = waiter[1].is_set()
        bell.close()
        await asyncio.wait_for(waiter[1].wait(), 10)
        return early, bell.closed

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
    ticker = Ticker(work, interval_s=3600, gap_s=0.01)
    ticker.start()
    try:
        wait_until(lambda: work.done == 1, 20)
        ticker.wake()
        wait_until(lambda: work.done == 2, 20)
    finally:
        ticker.stop()


def test_an_event_during_a_round_makes_one_more_follow() -> None:
    """What happened while a round was under way may have been missed by it."""
    work = Count()
    work.go.clear()
    ticker = Ticker(work, interval_s=3600, gap_s=0.01)
    ticker.start()
    try:
        wait_until(lambda: work.done == 1, 20)
        ticker.wake()
        ticker.wake()
        assert work.done == 1
        work.go.set()
        wait_until(lambda: work.done == 2, 20)
    finally:
        ticker.stop()
    assert work.done == 2


def test_stopping_waits_for_the_round_under_way() -> None:
    """The store is closed after it, never under it."""
    work = Count()
    work.go.clear()
    ticker = Ticker(work, interval_s=3600, gap_s=0.01)
    ticker.start()
    wait_until(lambda: work.done == 1, 20)
    stopper = threading.Thread(target=ticker.stop)
    stopper.start()
    assert stopper.is_alive()
    work.go.set()
    stopper.join(20)
    assert not stopper.is_alive()
    ticker.wake()
    assert work.done == 1


def test_a_flood_of_datagrams_is_few_wake_ups_and_the_last_is_heard() -> None:
    """Whatever hooks, or whoever else, send: the loop is not kept busy by it, and no news is left unheard."""
    woken: list[bool] = []

    async def flooded() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener, hook_socket.beside(listener) as hooks:
            assert hooks is not None
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.connect(listener.getsockname())
                hook_socket.hear(hooks, lambda: woken.append(False))
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
    with socket.create_server(("127.0.0.1", 0)) as listener, hook_socket.beside(listener) as first:
        assert first is not None
        with hook_socket.beside(listener) as second:
            assert second is None
    assert "hooks cannot wake selasticd: UDP port" in caplog.text


# --- what supervisors say -----------------------------------------------------------------------------------------


def registration(*pieces: Piece, request: str = "") -> Registration:
    return Registration(VERSION, 0, pieces, 240, "train.py", request)


def test_an_unknown_job_cannot_register(world: World) -> None:
    """Slurm says which jobs there are."""
    with pytest.raises(NotFound, match="no job 99"):
        world.controller.registered(99, registration())


def test_a_job_without_a_request_is_told_how_to_ask(world: World) -> None:
    """It trains at the size it has."""
    job = world.slurm.submit(Want(1, 4), user="games")
    grant = world.controller.registered(job, registration(Piece(job, "base", ("n1",), 4)))
    assert not grant.managed and "--comment=elastic:" in grant.reason
    assert world.store.job(job) is None


def test_a_request_of_the_supervisor_makes_the_job_elastic_for_good(world: World) -> None:
    """Also after the daemon was started again, when nothing but the store remembers it."""
    job = world.slurm.submit(Want(1, 4), user="games")
    grant = world.controller.registered(job, registration(Piece(job, "base", ("n1",), 4), request=REQUEST))
    assert grant.managed
    world.boot()
    world.rounds.run()
    row = world.store.job(job)
    assert row is not None and row.managed


def test_a_request_that_does_not_fit_is_answered_with_its_sentence(world: World) -> None:
    """The supervisor prints it where the user looks."""
    job = world.slurm.submit(Want(1, 4), user="games", comment="elastic:gpus=8-16,batch=256")
    grant = world.controller.registered(job, registration(Piece(job, "base", ("n1",), 4)))
    assert not grant.managed and "starts with 4 GPUs" in grant.reason


def test_pieces_of_another_user_are_refused(world: World) -> None:
    """A supervisor cannot claim what is not its user's: it would be counted, and released."""
    job = world.slurm.submit(Want(1, 4), user="games", comment=REQUEST)
    other = world.slurm.submit(Want(1, 4), user="nobody")
    pieces = (Piece(job, "base", ("n1",), 4), Piece(other, "companion", ("n2",), 4))
    with pytest.raises(NotAllowed, match=f"piece {other}"):
        world.controller.registered(job, registration(*pieces))
    assert world.store.in_use(job) is None
    supervisor = world.elastic()
    supervisor.step()
    with pytest.raises(NotAllowed, match=f"piece {other}"):
        world.controller.phase(supervisor.job_id, Phase(0, "running", 1, pieces, 240, world.slurm.now))


def test_a_phase_told_twice_changes_nothing(world: World) -> None:
    """Phases are sent again until they are acknowledged."""
    job = world.elastic()
    world.settle()
    rows = len(world.store.allocations(job.job_id))
    last = world.store.last_closed_intent(job.job_id)
    assert last is not None
    again = Phase(last.directive.id, "running", job.generation, job.pieces, job.batch, world.slurm.now)
    world.controller.phase(job.job_id, again)
    late = Phase(last.directive.id, "granted", job.generation, job.pieces, job.batch, world.slurm.now)
    world.controller.phase(job.job_id, late)
    assert len(world.store.allocations(job.job_id)) == rows
    assert world.store.intent(last.directive.id).state == "done"


@pytest.mark.parametrize(
    ("exit_code", "state"), [(0, "COMPLETED"), (143, "CANCELLED"), (130, "CANCELLED"), (1, "FAILED"), (137, "FAILED")]
)
def test_a_job_ends_as_its_supervisor_says(world: World, exit_code: int, state: str) -> None:
    """Only exit code 0 is recorded as completed; the code stands in the events."""
    job = world.elastic()
    world.settle()
    over = Phase(0, "finished", job.generation, job.pieces, job.batch, world.slurm.now, exit_code=exit_code)
    world.controller.phase(job.job_id, over)
    job.crash()
    world.settle()
    row = world.store.job(job.job_id)
    assert row is not None and row.state == state
    told = {event.kind: event.detail for event in world.store.events(job.job_id)}
    assert told["finished"]["exit_code"] == exit_code
    assert told["ended"] == {"state": state, "exit_code": exit_code}


def test_a_job_that_ends_without_a_word_just_ended(world: World) -> None:
    """Neither completed nor failed is made up."""
    job = world.elastic()
    world.settle()
    job.crash()
    world.settle()
    row = world.store.job(job.job_id)
    assert row is not None and row.state == "ENDED"
    assert [event.detail for event in world.store.events(job.job_id) if event.kind == "ended"] == [{"state": "ENDED"}]


def test_a_requeued_job_is_decided_about_again(world: World) -> None:
    """It keeps its id: what its first run said of its end holds no longer once the next one registers."""
    job = world.elastic()
    world.settle()
    over = Phase(0, "finished", job.generation, job.pieces, job.batch, world.slurm.now, exit_code=143)
    world.controller.phase(job.job_id, over)
    world.round()
    before = len(world.store.decisions(job.job_id, 100))
    base, *companions = job.pieces
    for piece in companions:
        world.slurm.client("games").cancel(piece.slurm_job_id)
    job.pieces, job.generation = (base,), job.generation + 1
    job.register()
    world.settle()
    assert len(world.store.decisions(job.job_id, 100)) > before
    assert job.gpus == 24
    job.crash()
    world.settle()
    row = world.store.job(job.job_id)
    assert row is not None and row.state == "ENDED"


def test_the_first_world_of_an_unmanaged_job_is_no_restart(world: World) -> None:
    """Its registration opens no allocation, its first world does; the next world is a restart."""
    job = world.slurm.submit(Want(1, 4), user="games", comment="elastic:gpus=8-16,batch=256")
    pieces = (Piece(job, "base", ("n1",), 4),)
    world.controller.registered(job, registration(*pieces))
    world.rounds.run()
    for generation in (1, 2):
        world.slurm.now += 1
        world.controller.phase(job, Phase(0, "running", generation, pieces, 256, world.slurm.now))
    assert [row.reason for row in world.store.allocations(job)] == ["registered", "restart"]


def test_a_clock_far_off_is_not_believed(world: World) -> None:
    """A node with a wrong clock does not write history."""
    job = world.elastic()
    job.step()
    phase = Phase(0, "running", 1, job.pieces, 480, world.slurm.now + 1e6)
    world.controller.phase(job.job_id, phase)
    assert world.store.allocations(job.job_id)[-1].start <= world.slurm.now


def test_a_directive_is_handed_out_while_it_can_be_carried_out(world: World) -> None:
    """Open: yes. Switched already: no. Withdrawn: told for a while, to the one who took it."""
    job = world.elastic()
    world.round()
    world.rounds.run()
    directive = world.controller.directive(job.job_id)
    assert directive is not None and not directive.withdrawn
    world.store.move_intent(directive.id, "withdrawn", "test", at=world.slurm.now)
    taken_back = world.controller.directive(job.job_id)
    assert taken_back == replace(directive, withdrawn=True)
    world.slurm.now += 61
    assert world.controller.directive(job.job_id) is None


def test_a_waiting_supervisor_hears_at_once(world: World) -> None:
    """The long poll answers when the order is given, not when its time is over."""
    job = world.elastic()
    job.step()

    async def poll() -> object:
        waiting = asyncio.create_task(world.controller.wait_directive(job.job_id, 0, 60))
        await asyncio.sleep(0.05)
        await asyncio.get_running_loop().run_in_executor(None, world.rounds.run)
        return await asyncio.wait_for(waiting, 10)

    directive = asyncio.run(poll())
    assert directive is not None
    assert world.bell._waiting == {}


def test_a_directive_already_seen_is_waited_past(world: World) -> None:
    """Nothing new within the time: no answer. Its withdrawal is new."""
    job = world.elastic()
    job.step()
    world.rounds.run()
    seen = world.controller.directive(job.job_id)
    assert seen is not None
    assert asyncio.run(world.controller.wait_directive(job.job_id, seen.id, 0.05)) is None
    world.store.move_intent(seen.id, "withdrawn", "test", at=world.slurm.now)
    told = asyncio.run(world.controller.wait_directive(job.job_id, seen.id, 5))
    assert told is not None and told.withdrawn
    assert asyncio.run(world.controller.wait_directive(job.job_id, 0, 0.05)) is None


def test_many_who_ask_for_an_unknown_job_share_few_snapshots(world: World) -> None:
    """Asking for what is not there costs Slurm little."""
    world.round()
    taken = []
    look = world.jobs._client.snapshot
    world.jobs._client.snapshot = lambda: taken.append(1) or look()  # type: ignore[method-assign,func-returns-value]
    for _ in range(5):
        assert world.controller.owner(12345) is None
    assert len(taken) <= 5
    job = world.slurm.submit(Want(1, 4), user="games")
    world.slurm.now += 1
    assert world.controller.owner(job) == (5, "games")


# --- starting and stopping ----------------------------------------------------------------------------------------


def test_two_daemons_on_one_state_directory_are_refused(tmp_path: Path) -> None:
    """Both would act."""
    settings = Settings(state_dir=str(tmp_path))
    with (
        claims.alone(settings),
        pytest.raises(ConfigError, match="another selasticd"),
        claims.alone(settings),
    ):
        pass
    with claims.alone(settings):
        pass


def test_a_file_system_without_locks_is_no_obstacle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lustre without -o flock knows none: the daemon of a user runs all the same, and says what is not seen to."""

    def unknown(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unknown)
    with claims.alone(Settings(state_dir=str(tmp_path))):
        pass
    assert f"no lock on state_dir={tmp_path} (Function not implemented)" in caplog.text


def test_a_port_in_use_is_said_in_one_sentence(tmp_path: Path) -> None:
    """Before anything else is opened."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        settings = Settings(state_dir=str(tmp_path), listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ConfigError, match=r"listen=127\.0\.0\.1"), claims.listening(settings):
            pass


def test_port_0_is_told_to_clients(tmp_path: Path) -> None:
    """The file has the port that was taken."""
    settings = Settings(state_dir=str(tmp_path), listen="127.0.0.1:0")
    with claims.listening(settings) as listener:
        url = claims.address(settings, listener)
    path = claims.write_client_file(settings, {"url": url})
    assert json.loads(path.read_text()) == {"url": url} and not url.endswith(":0")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert claims.address(replace(settings, url="http://head:1"), listener) == "http://head:1"


def test_a_client_file_with_a_secret_is_its_owners_alone(tmp_path: Path) -> None:
    """Whoever reads it may speak for its owner."""
    settings = Settings(state_dir=str(tmp_path))
    before = os.umask(0)
    try:
        path = claims.write_client_file(settings, {"url": "http://x:1", "secret": "s"})
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_bad_setting_ends_it_with_2_and_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An admin's typing error is not a traceback."""
    config = tmp_path / "selasticd.toml"
    config.write_text('mode = "akt"\n')
    assert service.main(["--config", str(config)]) == 2
    assert "did you mean act?" in capsys.readouterr().err


def test_check_names_what_does_not_work(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Each part is tried, whatever the others said."""
    slurm_conf = tmp_path / "slurm.conf"
    slurm_conf.write_text("ClusterName=none\nSlurmctldHost=localhost\nSlurmctldPort=1\nMessageTimeout=2\nNodeName=n1\n")
    config = tmp_path / "selasticd.toml"
    config.write_text(f'state_dir = "{tmp_path}"\nslurm_conf = "{slurm_conf}"\nmunge_socket = "{tmp_path}/no"\n')
    assert service.main(["--config", str(config), "--check"]) == 1
    said = capsys.readouterr().out
    assert "database: sqlite, will be created" in said
    assert "identity:" in said and "slurm:" in said and "would not work" in said


def test_a_users_own_daemon_is_checked_without_munge(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`selasticd --user` works without MUNGE, so its check does not ask for it."""
    check(Settings(state_dir=str(tmp_path), munge_socket=f"{tmp_path}/no", user_mode=True))
    assert "identity: callers are known by the secret in client.json\n" in capsys.readouterr().out


def test_check_says_whose_jobs_may_be_changed() -> None:
    """An admin who forgot the grant hears it before the first refusal; to advise it is not needed."""
    assert rights("selastic", True, (), "act") == "selastic may change all jobs, as an operator"
    assert "the jobs of ml, physics, as coordinator" in rights("selastic", False, {"physics", "ml"}, "act")
    assert rights("selastic", False, (), "advise").endswith("mode advise needs none")
    with pytest.raises(ConfigError, match="selastic may change nobody else's jobs"):
        rights("selastic", False, (), "act")


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Everything below a folder, with its contents and times."""
    found = sorted(folder.rglob("*"))
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in (folder, *found)
    }


def checked(state: Path, capsys: pytest.CaptureFixture[str], url: str = "") -> str:
    """What `--check` says of this state directory; asserts that it leaves everything around it as it was."""
    around = next(parent for parent in state.parents if parent.is_dir())
    before = tree(around)
    check(Settings(state_dir=str(state), database_url=url, user_mode=True))
    assert tree(around) == before
    return capsys.readouterr().out


def test_check_makes_neither_directory_nor_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what the first start will make; the same account may not be the one that it will run as."""
    state = tmp_path / "lib" / "slurm-elastic"
    said = checked(state, capsys)
    assert f"state: {state}, will be created\n" in said and "database: sqlite, will be created\n" in said
    state.mkdir(parents=True)
    said = checked(state, capsys)
    assert f"state: {state}, ready\n" in said and "database: sqlite, will be created\n" in said


def test_check_changes_no_database(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One that is there is compared with this code: the same, a newer one, which is refused, and an empty one."""
    url = f"sqlite:///{tmp_path / 'state' / 'selastic.db'}"
    (tmp_path / "state").mkdir()
    with Store.open(url):
        # The daemon that runs has its journal there.
        assert "database: sqlite, ready\n" in checked(tmp_path / "state", capsys)
    assert "database: sqlite, ready\n" in checked(tmp_path / "state", capsys)
    newer, empty = "UPDATE alembic_version SET version_num = '9999'", "DELETE FROM alembic_version"
    for change, words in ((newer, "newer than this version"), (empty, "will be created")):
        with contextlib.closing(sqlite3.connect(tmp_path / "state" / "selastic.db")) as connection:
            connection.execute(change)
            connection.commit()
        assert words in checked(tmp_path / "state", capsys)


def test_check_names_a_place_that_cannot_hold_the_state(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file in the way, or a file system that SQLite cannot trust, is found before the directory is made."""
    (tmp_path / "file").touch()
    assert f"{tmp_path}/file is not a directory" in checked(tmp_path / "file" / "state", capsys, "sqlite:////tmp/x.db")
    monkeypatch.setattr(engine, "file_system", lambda _: "nfs4")
    assert "network file system (nfs4)" in checked(tmp_path / "state", capsys)


# --- what is kept -------------------------------------------------------------------------------------------------


def test_old_reports_are_rolled_up_and_ended_jobs_forgotten(world: World) -> None:
    """The daemon tidies its database by itself, to the settings' ages; what is young stays."""
    daemon = Daemon(Settings(reports_keep_h=1.0, history_keep_days=30.0), world.slurm.client(), world.store)
    now = 100 * 86400.0
    job = JobRow(7, "ada", 1000, "t", "lab", "main", REQUEST, True, "", "", 1.0, 2.0, None, "RUNNING")
    world.store.upsert_jobs([job, replace(job, job_id=8), replace(job, job_id=9)])
    for age in (3 * 3600.0, 60.0):
        step = int(now - age)
        report = Report(1, now - age, 4, 1, 64, 16, 1, 1, 0.1, 0.1, 640.0, step, 64 * step, 0)
        world.store.add_reports(7, [report], now - age)
    world.store.end_job(8, "COMPLETED", now - 31 * 86400)
    world.store.end_job(9, "COMPLETED", now - 86400)
    daemon.tidy(now)
    assert [report.at for report in world.store.report_rows(7)] == [now - 60.0]
    assert sum(seen.count for seen in world.store.observations(7)) == 2
    assert (world.store.job(8) is None, world.store.job(9) is None) == (True, False)
