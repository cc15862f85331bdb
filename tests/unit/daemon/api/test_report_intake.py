"""The quick way for reports takes what the API's own handler takes, and leaves to it what that refuses."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from http.client import HTTPMessage, parse_headers
from pathlib import Path
from typing import Any

import pytest
from api_harness import ADA, BASE, REPORT, FakeController, Named, job, served
from fresh_store import fresh_store
from hypothesis import given, settings
from hypothesis import strategies as st
from waiting import wait_until

from slurm_elastic.daemon.api import http_server, report_intake, requests
from slurm_elastic.daemon.api.app import Application, create_app
from slurm_elastic.daemon.api.requests import RateLimit
from slurm_elastic.daemon.selasticd.main import DaemonServer
from slurm_elastic.daemon.selasticd.settings import Settings
from slurm_elastic.db.store import Store
from slurm_elastic.protocol import codec
from slurm_elastic.protocol.api import munge
from slurm_elastic.protocol.api.proofs import JobKey, JobProofs
from slurm_elastic.protocol.codec import WireError, to_json
from slurm_elastic.protocol.errors import StoreError
from slurm_elastic.protocol.messages import Reports

GOOD = dataclasses.asdict(REPORT)
VALUES = st.one_of(
    st.integers(-2, 10**17), st.floats(), st.booleans(), st.none(), st.text(max_size=5), st.just("x\n"), st.just([]),
    st.text(min_size=codec.MAX_TEXT - 1, max_size=codec.MAX_TEXT + 1),
)  # fmt: skip
CHANGES = st.dictionaries(st.sampled_from([*GOOD, "more"]), VALUES, max_size=3)


@settings(max_examples=300)
@given(st.lists(st.tuples(CHANGES, st.sets(st.sampled_from(list(GOOD)), max_size=2)), max_size=3))
def test_it_never_accepts_more_nor_reads_anything_else(changes: list[tuple[dict[str, Any], set[str]]]) -> None:
    """Whatever it takes at first sight, the other decoder takes too, and as the same reports."""
    made = [{k: v for k, v in (GOOD | change).items() if k not in gone} for change, gone in changes]
    body = json.dumps({"reports": made}).encode()
    quick = report_intake.decode(body)
    try:
        other = codec.from_json(Reports, body).reports
    except WireError:
        assert quick is None
    else:
        assert quick in (None, other)


def test_it_takes_what_supervisors_send() -> None:
    """An ordinary message is no exception that has to be looked at twice."""
    assert report_intake.decode(to_json(Reports((REPORT, REPORT)))) == (REPORT, REPORT)
    assert report_intake.decode(b"[" * 100_000) is None and report_intake.decode(b"\xff") is None
    assert report_intake.decode(to_json(Reports((REPORT,) * (codec.MAX_ITEMS + 1)))) is None


class World:
    """A daemon's server over a store with jobs 7 and 8, and what a registration of the first has given; its name was
    looked up once, so it is remembered."""

    def __init__(self, store: Store, app: Application, server: DaemonServer, port: int) -> None:
        self.store, self.app, self.server, self.port = store, app, server, port
        self.keys = {job_id: self.registered(job_id) for job_id in (7, 8)}
        assert store.tokens.speaks_for(self.keys[7].name) == 7
        self.taken: list[bool] = []
        """Of each message that the quick way has looked at, whether it took it."""
        take = app.intake.take

        def watched(*given: Any) -> bool:
            self.taken.append(take(*given))
            return self.taken[-1]

        app.intake.take = watched  # type: ignore[method-assign]

    def registered(self, job_id: int) -> JobKey:
        """Register as a supervisor does."""
        key = JobKey(b"", secrets.token_hex())
        self.store.tokens.note_registration(job_id, ADA, key.name)
        self.app.callers.registered(job_id, JobProofs(b"", key.token))
        return key

    def request(self, body: bytes, job_id: int = 7, key: JobKey | None = None, query: str = "", *more: str) -> bytes:
        """A message of reports as bytes."""
        target = f"/v1/jobs/{job_id}/reports{query}"
        proof = (key or self.keys[7]).prove(munge.bind("POST", target, body))
        lines = (
            f"POST {target} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}",
            f"Authorization: Proof {proof}", *more, "", "",
        )  # fmt: skip
        return "\r\n".join(lines).encode() + body

    def connected(self) -> socket.socket:
        """A new connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def ask(self, *given: Any) -> tuple[int, Any, HTTPMessage]:
        """Status, JSON and headers of the answer to a request."""
        with self.connected() as connection:
            connection.sendall(self.request(*given))
            return answer(connection)


def answer(connection: socket.socket) -> tuple[int, Any, HTTPMessage]:
    """The next answer on a connection, and not a byte more."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, f"the daemon has closed after {head!r}"
        head += byte
    first, _, lines = head.partition(b"\r\n")
    headers = parse_headers(io.BytesIO(lines))
    body = b""
    while len(body) < int(headers["content-length"]):
        body += connection.recv(int(headers["content-length"]) - len(body))
    return int(first.split()[1]), json.loads(body), headers


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        store.jobs.upsert_all([job(7, ADA, "ada"), job(8, ADA, "ada")])
        store.allocations.note(7, 1, (BASE,), 64, 10.0)
        chosen = Settings(requests_per_s=2)
        app = create_app(store, FakeController(), chosen, Named(chosen))
        with served(app, chosen) as (server, port):
            yield World(store, app, server, port)


def later(step: int) -> bytes:
    """A message of another report."""
    return to_json(Reports((dataclasses.replace(REPORT, step=step, at=5.0 + step),)))


def test_the_quick_way_answers_as_the_other(world: World) -> None:
    """Stored and acknowledged; refused for another job, an unknown token, a wrong form, or too often, as elsewhere."""
    status, said, headers = world.ask(later(20))
    assert (status, said, world.taken) == (202, {"stored": 1}, [True])
    assert headers["content-type"] == "application/json" and headers["date"]
    last = world.store.reports.last(7)
    assert last is not None and last.step == 20
    assert world.ask(later(20), 8)[0] == 401
    assert world.ask(later(20), 7, JobKey(b"", "x"))[0] == 401
    assert "not JSON" in world.ask(b"{")[1]["error"]
    assert world.ask(later(20), 7, None, "?of_tomorrow=1")[0] == 202
    world.app.intake._limit = RateLimit(0.2)
    with world.connected() as kept:
        said_all = []
        while not said_all or (said_all[-1][0] == 202 and len(said_all) < 10):
            kept.sendall(world.request(later(20)))
            said_all.append(answer(kept))
    assert (said_all[-1][0], said_all[-1][1]) == (429, {"error": "too many requests; accepted: 0.2 per second"})
    assert said_all[-1][2]["retry-after"] and world.taken[-2:] == [True] * 2
    world.store.jobs.end(7, "COMPLETED", 50.0)
    assert world.ask(later(20))[0] == 401


def test_a_report_that_was_heard_is_taken_once(world: World) -> None:
    """Neither again, nor with other figures, nor after the next registration; a refused one uses no number up."""
    heard = world.request(later(20))
    for said, status in ((heard.replace(b'"step":20', b'"step":21'), 401), (heard, 202), (heard, 401)):
        with world.connected() as connection:
            connection.sendall(said)
            assert answer(connection)[0] == status
    assert world.taken == [False, True, False]
    unsent = world.request(later(30))
    world.registered(7)
    with world.connected() as connection:
        connection.sendall(unsent)
        assert answer(connection)[0] == 401
    last = world.store.reports.last(7)
    assert last is not None and last.step == 20


def test_who_asks_too_often_is_answered_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """On either way: a caller that asks again at once is slowed down by each refusal."""
    monkeypatch.setattr(requests, "TOO_MANY_S", 0.3)
    world.app.intake._limit._full = 0.5
    for way in ("", "?of_tomorrow=1"):
        began = time.monotonic()
        assert world.ask(later(20), 7, None, way)[0] == 429
        assert time.monotonic() - began >= 0.3


def test_no_job_fills_the_store_with_reports(world: World) -> None:
    """However they are put into messages, and on either way, a job's reports are taken at a few times the rate of its
    supervisor, after what that may have kept. Other jobs' are taken meanwhile."""
    kept = tuple(dataclasses.replace(REPORT, step=step, at=step / 1000) for step in range(1000))
    assert world.ask(to_json(Reports(kept)))[:2] == (202, {"stored": 1000})
    more = to_json(Reports(kept[:500]))
    sentence = "too many reports of this job; accepted: 0.8 per second, 1000 at once"
    status, said, headers = world.ask(more, 7, None, "?of_tomorrow=1")
    assert (status, said, bool(headers["retry-after"])) == (429, {"error": sentence}, True)
    quick: list[tuple[int, bytes]] = []
    head = report_intake.Head(7, "", "")
    assert world.app.intake.take(head, more, lambda status, _, body: quick.append((status, body)))
    assert [(status, json.loads(body)) for status, body in quick] == [(429, {"error": sentence})]
    assert world.ask(more, 8, world.keys[8])[0] == 202


@pytest.mark.parametrize("at_once", [True, False])
def test_a_disk_that_refuses_is_said(world: World, monkeypatch: pytest.MonkeyPatch, at_once: bool) -> None:
    """A report that is not stored is not acknowledged, whether the store says so at once or when it commits."""

    def full(_job: int, _reports: object, _at: float, told: Callable[[BaseException], None]) -> None:
        if at_once:
            raise StoreError("database cannot grow: the disk is full")
        told(StoreError("database cannot grow: the disk is full"))

    monkeypatch.setattr(world.store.reports, "store", full)
    status, said, headers = world.ask(later(30))
    assert status == 503 and "disk is full" in said["error"] and headers["retry-after"] and world.taken == [True]


def test_messages_in_pieces_and_in_a_row(world: World) -> None:
    """However the bytes of requests are cut and joined, each is answered, in the order in which they were sent."""
    lines = world.request(later(20)).index(b"\r\n\r\n") + 4
    with world.connected() as kept:
        kept.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for place in (1, lines, -1):
            whole = world.request(later(20))
            kept.sendall(whole[:place])
            kept.sendall(whole[place:])
            assert answer(kept)[:2] == (202, {"stored": 1})
        health = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
        kept.sendall(world.request(later(20)) + health + world.request(b"{") + world.request(later(20)) + health)
        said = [answer(kept)[:2] for _ in range(5)]
        assert [status for status, _ in said] == [202, 200, 400, 202, 200] and said[3][1] == {"stored": 1}
        kept.sendall(world.request(later(20), 7, None, "", "Expect: 100-continue"))
        assert kept.recv(12) == b"HTTP/1.1 100"
    with world.connected() as once:
        once.sendall(world.request(later(20), 7, None, "", "Connection: close"))
        status, _, headers = answer(once)
        assert (status, headers["connection"], once.recv(1)) == (202, "close", b"")


def test_a_report_under_way_is_waited_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is told to stop acknowledges what it stores; one whose caller has gone stores it all the same."""
    under_way: list[Any] = []
    monkeypatch.setattr(world.store.reports, "store", lambda *given: under_way.append(given))
    with world.connected() as gone, world.connected() as kept:
        gone.sendall(world.request(later(20)))
        wait_until(lambda: len(under_way) == 1, 60)
        gone.close()
        wait_until(lambda: len(world.server.server_state.connections) == 1, 60)
        kept.sendall(world.request(later(30)))
        wait_until(lambda: len(under_way) == 2, 60)
        connection = next(iter(world.server.server_state.connections))
        world.server.should_exit = True
        wait_until(lambda: not connection.cycle.keep_alive, 60)
        for *_, told in under_way:
            connection.loop.call_soon_threadsafe(told, None)
        status, said, headers = answer(kept)
        assert (status, said, headers["connection"], kept.recv(1)) == (202, {"stored": 1}, "close", b"")


def closed(connection: socket.socket) -> bool:
    """Whether the daemon has ended this connection without a word."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "said", [b"", b"GET /v1/health HTTP/1.1\r\nHost: x\r\n", b"POST /v1/jobs/7/pin HTTP/1.1\r\nCo"]
)
def test_who_never_ends_a_request_is_cut_off(world: World, monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    """A head that does not come to its end holds no connection for good; the next request of one has its full time."""
    monkeypatch.setattr(http_server, "MESSAGE_S", 0.5)
    with world.connected() as connection:
        connection.sendall(said)
        assert closed(connection)
    with world.connected() as connection:
        for _ in range(2):
            connection.sendall(world.request(later(1)))
            assert answer(connection)[0] == 202
        connection.sendall(b"GET")
        assert closed(connection)
    wait_until(lambda: not world.server.server_state.connections, 60)


@pytest.mark.parametrize("piece", [b"a: b\r\n" * 1000, b"x" * 4000])
def test_a_request_without_end_is_cut_off(world: World, piece: bytes) -> None:
    """Headers, and what stands between the pieces of a body, are kept in memory only up to a bound."""
    chunked = b"POST /v1/jobs/7/pin HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n0\r\n"
    for start, most in ((b"GET /", http_server.MAX_HEAD), (chunked, http_server.MAX_REQUEST)):
        sent = 0
        with world.connected() as connection, contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(start if piece[:1] == b"x" else start + b" HTTP/1.1\r\n" * start.startswith(b"GET"))
            while sent < 64 << 20:
                connection.sendall(piece)
                sent += len(piece)
        assert sent < 64 << 20, f"{sent} bytes were taken; accepted: {most}"


@pytest.mark.parametrize(
    "named", [b"GET /v1/health HTTP/1.1\r\n", b"POST /v1/jobs/7/reports HTTP/1.1\r\nContent-Length: 1\r\n"]
)
def test_requests_that_pile_up_end_their_connection(world: World, named: bytes) -> None:
    """Whoever sends them: each that waits costs thirty times its bytes."""
    sent, many = 0, (named + b"Host: x\r\n\r\n" + b"x" * named.startswith(b"POST")) * 1000
    with world.connected() as connection, contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while sent < 16 << 20:
            connection.sendall(many)
            sent += len(many)
    assert sent < 16 << 20
    assert world.ask(later(1))[0] == 202
