"""Two users, a real munged and a real Slurm: what MUNGE proves and Slurm owns decides who may do what.

The API runs as root; the second user is `games`, a process of its own that has given up root for good.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from second_user import GAMES, SecondUser, second_user
from waiting import wait_until

from slurm_elastic.daemon.api.app import create_app
from slurm_elastic.daemon.api.auth import Authenticator
from slurm_elastic.daemon.sandbox import Sandbox
from slurm_elastic.daemon.selasticd.daemon import Daemon
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.daemon.slurm import CommandClient
from slurm_elastic.db.store import Store
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.client import Client, TokenRefused
from slurm_elastic.protocol.codec import VERSION, to_json
from slurm_elastic.protocol.errors import NotAllowed, NotFound
from slurm_elastic.protocol.messages import Piece, Registration, Report, Reports


@dataclasses.dataclass
class World:
    url: str
    store: Store
    daemon: Daemon
    socket: str
    roots_job: int
    games_job: int
    games: SecondUser
    """Asks as the second user."""

    @property
    def root(self) -> Client:
        """Asks as the user of the tests."""
        return Client(self.url, self.socket)


@pytest.fixture
def games_process() -> Iterator[SecondUser]:
    """A process of the user games, started before this one has threads."""
    with second_user() as process:
        yield process


@pytest.fixture
def world(
    games_process: SecondUser, empty_sandbox: Sandbox, submit: Callable[..., int], tmp_path: Path
) -> Iterator[World]:
    options = ("--gres=gpu:2", "-N1", "--job-name=secret-name", "--comment=elastic:gpus=1-8,batch=64-512")
    jobs = {user: submit(*options, user=user) for user in (None, "games")}
    munge_socket = munge.default_socket(str(empty_sandbox.layout.slurm_conf))
    assert munge_socket and Path(munge_socket).is_socket()
    conf = str(empty_sandbox.layout.slurm_conf)
    settings = Settings(state_dir=str(tmp_path), munge_socket=munge_socket, slurm_conf=conf, mode="observe")
    store = Store.open(settings.database_url)
    daemon = Daemon(settings, CommandClient(conf), store)
    try:
        wait_until(lambda: all(job.running for job in daemon.jobs.snapshot().jobs.values()), 60)
        daemon.rounds.run()
        for user, job_id in jobs.items():
            assert daemon.controller.owner(job_id, 0) == ((GAMES.pw_uid, "games") if user else (0, "root"))
            daemon.controller.registered(job_id, _trained_on(daemon, job_id))
        with _listening(create_app(store, daemon.controller, settings, Authenticator(settings))) as url:
            games_process.url, games_process.munge_socket = url, munge_socket
            yield World(url, store, daemon, munge_socket, jobs[None], jobs["games"], games_process)
    finally:
        daemon.stop()


def _trained_on(daemon: Daemon, job_id: int) -> Registration:
    """What the job's supervisor says at its start: that it trains on what Slurm gave it."""
    job = daemon.jobs.latest().jobs[job_id]
    return Registration(VERSION, 1, (Piece(job_id, "base", job.nodes, job.gpus_per_node),), 64, "train.py")


@contextlib.contextmanager
def _listening(app: Any) -> Iterator[str]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(30)


def _registrations(world: World) -> list[int]:
    """Registrations of root's job and of games', as the daemon's own record has them."""
    return [
        sum(event.kind == "registered" for event in world.store.events.of(job))
        for job in (world.roots_job, world.games_job)
    ]


def _reports() -> bytes:
    return to_json(Reports((Report(1, time.time(), 2, 1, 64, 16, 1, 10, 0.1, 0.1, 640.0, 10, 640, 0),)))


def test_the_owner_registers_and_reports(world: World) -> None:
    """Each user's own job works from end to end, with the uid that MUNGE proves and Slurm's word for the owner."""
    for call, job_id in ((world.root, world.roots_job), (world.games, world.games_job)):
        token = call.post(f"/v1/jobs/{job_id}/register", to_json(_trained_on(world.daemon, job_id)))["token"]
        assert call.post(f"/v1/jobs/{job_id}/reports", _reports(), token=token) == {"stored": 1}
        assert world.store.reports.last(job_id) is not None
    assert _registrations(world) == [2, 2]


def test_a_second_user_cannot_register_for_anothers_job(world: World) -> None:
    """Neither for root's job, nor for one that does not exist; and root is no exception for a user's job."""
    roots, games = (to_json(_trained_on(world.daemon, job)) for job in (world.roots_job, world.games_job))
    with pytest.raises(NotAllowed, match=f"job {world.roots_job} belongs to another user; you are uid {GAMES.pw_uid}"):
        world.games.post(f"/v1/jobs/{world.roots_job}/register", roots)
    with pytest.raises(NotFound):
        world.games.post("/v1/jobs/4000000/register", roots)
    with pytest.raises(NotAllowed):
        world.root.post(f"/v1/jobs/{world.games_job}/register", games)
    assert _registrations(world) == [1, 1]


def test_a_second_user_cannot_report_for_anothers_job(world: World) -> None:
    """A token of one's own job does not speak for another's, nor does a guessed one."""
    own = world.games.post(f"/v1/jobs/{world.games_job}/register", to_json(_trained_on(world.daemon, world.games_job)))[
        "token"
    ]
    for what in ("reports", "happenings", "rates", "phases"):
        with pytest.raises(NotAllowed, match="the token is not known"):
            world.games.post(f"/v1/jobs/{world.roots_job}/{what}", _reports(), token=own)
    with pytest.raises(NotAllowed, match="the token is not known"):
        world.games.get(f"/v1/jobs/{world.roots_job}/resize", token=own)
    with pytest.raises(TokenRefused):
        world.games.post(f"/v1/jobs/{world.roots_job}/reports", _reports(), token="x" * 43)
    assert world.store.reports.last(world.roots_job) is None


def test_a_second_user_cannot_pin_anothers_job(world: World) -> None:
    """A pin is the owner's or an admin's: games is refused for root's job, root pins both."""
    body = json.dumps({"gpus": 2}).encode()
    with pytest.raises(NotAllowed, match="only its owner and admins may pin it"):
        world.games.post(f"/v1/jobs/{world.roots_job}/pin", body)
    assert world.store.jobs.pinned(world.roots_job) is None
    assert world.games.post(f"/v1/jobs/{world.games_job}/pin", body)["pinned"] == 2
    assert world.root.post(f"/v1/jobs/{world.games_job}/pin", b'{"gpus": null}')["pinned"] is None


def test_a_second_user_cannot_read_anothers_details(world: World) -> None:
    """Of another's job games sees the id, the state and the GPUs, and no reason, event, name or node."""
    rows = {row["job_id"]: row for row in world.games.get("/v1/jobs")["jobs"]}
    assert rows[world.games_job]["name"] == "secret-name"
    told = {key for key, value in rows[world.roots_job].items() if value is not None}
    assert told == {"job_id", "task_name", "state", "gpus", "own"}
    for what in ("explain", "events"):
        with pytest.raises(NotAllowed, match="belongs to another user"):
            world.games.get(f"/v1/jobs/{world.roots_job}/{what}")
        assert world.games.get(f"/v1/jobs/{world.games_job}/{what}")
        assert world.root.get(f"/v1/jobs/{world.games_job}/{what}")
    assert [row["user"] for row in world.games.get("/v1/acct")["allocations"]] == [None, "games"]


def test_a_credential_is_good_for_one_request_once(world: World) -> None:
    """Stolen on its way it opens nothing: not the same address again, not another one, not with another body."""
    path = f"/v1/jobs/{world.games_job}/pin"

    def send(credential: str, where: str, body: bytes) -> int:
        request = urllib.request.Request(world.url + where, body, {"Authorization": f"MUNGE {credential}"})
        try:
            return int(urllib.request.urlopen(request, timeout=10).status)
        except urllib.error.HTTPError as error:
            with error:
                assert json.load(error)["error"]
                return error.code

    body = b'{"gpus": 2}'
    made_for = munge.bind("POST", path, body)
    credential = world.games.encode(made_for)
    assert [send(credential, path, body), send(credential, path, body)] == [200, 401]
    assert send(world.games.encode(made_for), path, b'{"gpus": 4}') == 401
    assert send(world.games.encode(made_for), f"/v1/jobs/{world.roots_job}/pin", body) == 401
    assert send(world.games.encode(b""), path, body) == 401
    assert send("MUNGE:AAAA:", path, body) == 401
    assert world.store.jobs.pinned(world.games_job) == 2


def test_a_failed_decode_names_nobody(world: World) -> None:
    """Replayed, expired, forged, or meant for another uid: refused, though libmunge fills in a uid all the same."""
    credential = world.games.encode(b"x")
    assert munge.decode(credential, world.socket) == munge.Credential(GAMES.pw_uid, GAMES.pw_gid, b"x")
    with pytest.raises(munge.CredentialRefused, match="Replayed"):
        munge.decode(credential, world.socket)
    forged = world.games.encode(b"x")
    with pytest.raises(munge.CredentialRefused, match="Invalid"):
        munge.decode(forged[:60] + ("A" if forged[60] != "A" else "B") + forged[61:], world.socket)
    short = world.games.encode(b"x", ttl_s=1)
    time.sleep(2.1)  # the credential's own clock counts whole seconds; there is nothing to wait for but time
    with pytest.raises(munge.CredentialRefused, match="Expired"):
        munge.decode(short, world.socket)


def test_a_token_dies_with_the_job(world: World, empty_sandbox: Sandbox) -> None:
    """When a round sees that Slurm has ended the job, its supervisor can neither report nor register."""
    job_id = world.games_job
    registration = to_json(_trained_on(world.daemon, job_id))
    token = world.games.post(f"/v1/jobs/{job_id}/register", registration)["token"]
    empty_sandbox.run(["scancel", str(job_id)])

    def seen() -> bool:
        world.daemon.rounds.run()
        job = world.store.jobs.get(job_id)
        return job is not None and job.end_time is not None

    wait_until(seen, 60)
    with pytest.raises(TokenRefused):
        world.games.post(f"/v1/jobs/{job_id}/reports", _reports(), token=token)
    with pytest.raises(NotFound):
        world.games.post(f"/v1/jobs/{job_id}/register", registration)
