"""Connections beyond the limits are refused, and leave the process its descriptors."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from api_harness import ADA, FakeController, Named, job, served
from certificates import self_signed
from fresh_store import fresh_store
from waiting import wait_until

from slurm_elastic.daemon.api import connection_limits, http_server
from slurm_elastic.daemon.api.app import create_app
from slurm_elastic.daemon.api.connection_limits import MAX_CONNECTIONS, ConnectionLimits
from slurm_elastic.daemon.selasticd.settings import Settings

OF_PEER = 24


@pytest.mark.parametrize("way", ["HTTP", "TLS"])
def test_nobody_writes_into_the_log_by_requests_that_are_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """One connection would fill the disk with lines, without any credential."""
    caplog.set_level("INFO")
    cert, key = self_signed(tmp_path) if way == "TLS" else ("", "")
    settings = Settings(state_dir=str(tmp_path), tls_cert=cert, tls_key=key)
    upgrade = b"GET /v1/health HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"
    bad = b"GET /v1/jobs HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer x\r\n\r\n"
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        app = create_app(store, FakeController(), settings, Named(settings))  # type: ignore[arg-type]
        with served(app, settings) as (server, port):
            wait_until(lambda: server.started, 60)
            caplog.clear()
            for said in (upgrade, bad, b"no request\r\n\r\n", b"\x16\x03\x01nothing\r\n\r\n"):
                with socket.create_connection(("127.0.0.1", port), 60) as peer:
                    peer.sendall(said)
                    with contextlib.suppress(ConnectionResetError):
                        assert peer.recv(4096) or way == "TLS"
            assert not caplog.messages


def test_limits_leave_descriptors_for_rounds() -> None:
    """Of however many there may be; one peer never has all that several may have."""
    for open_files in (256, 1024, 16384, 1 << 20):
        limits = ConnectionLimits(open_files)
        assert 0 < limits.of_peer <= limits.in_all <= min(MAX_CONNECTIONS, open_files - 128)
    assert ConnectionLimits(16384).of_peer < 16384 // 4


def test_what_ends_makes_room() -> None:
    """For the same peer, and for all; what has proved who it is stays."""
    limits = ConnectionLimits(256)

    def admit(peer: str) -> list[bool]:
        """As many as one peer may have, and one more."""
        found = []
        for _ in range(limits.of_peer + 1):
            end = lambda: None  # noqa: E731
            found.append(limits.admit(peer, end))
            limits.prove(peer, end)
        return found

    for peer in ("a", "b"):
        assert admit(peer) == [True] * limits.of_peer + [False]
    end = lambda: None  # noqa: E731
    assert limits.in_all == 2 * limits.of_peer and not limits.admit("c", end)
    limits.release("a", end)
    assert limits.admit("c", end) and not limits.admit("a", end)


def test_the_oldest_that_has_proved_nothing_makes_room_for_another() -> None:
    """Of the same peer, and of no other; one that has proved who it is never."""
    limits, ended = ConnectionLimits(1 << 12), list[int]()
    limits.of_peer = 4

    def connect(number: int, peer: str = "a") -> Callable[[], None]:
        def end() -> None:
            ended.append(number)
            limits.release(peer, end)

        assert limits.admit(peer, end)
        return end

    connect(9, "b")
    ends = [connect(number) for number in range(4)]
    limits.prove("a", ends[0])
    for number in (4, 5, 6):
        connect(number)
    assert ended == [1, 2, 3]
    ends[0]()
    connect(7)
    assert ended == [1, 2, 3, 0]


def test_a_user_is_answered_beside_a_flood_of_silent_connections(tmp_path: Path, made: list[ConnectionLimits]) -> None:
    """They come from one address, all that it may have and more while the user asks; a connection on which a user was
    answered is not ended for them."""
    settings = Settings(state_dir=str(tmp_path))
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store, contextlib.ExitStack() as held:
        store.jobs.upsert_all([job(7, ADA, "ada")])
        app = create_app(store, FakeController(), settings, Named(settings))  # type: ignore[arg-type]
        _, port = held.enter_context(served(app, settings))

        def connect() -> socket.socket:
            return held.enter_context(socket.create_connection(("127.0.0.1", port), 60))

        for _ in range(OF_PEER):
            connect()
        wait_until(lambda: made[0]._count == OF_PEER, 60)
        caller = http.client.HTTPConnection("selasticd")
        caller.sock = connect()

        def ask() -> int:
            caller.request("GET", "/v1/jobs", headers={"authorization": f"Test {ADA}"})
            answer = caller.getresponse()
            answer.read()
            return answer.status

        assert ask() == 200
        for _ in range(2 * OF_PEER):
            connect()
        assert ask() == 200 and made[0]._count == OF_PEER


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[ConnectionLimits]:
    """The limits of the servers that are started: of one peer few."""
    found: list[ConnectionLimits] = []

    def limited(open_files: int) -> ConnectionLimits:
        found.append(ConnectionLimits(open_files))
        found[-1].of_peer = OF_PEER
        return found[-1]

    monkeypatch.setattr(http_server, "ConnectionLimits", limited)
    return found


@pytest.mark.parametrize("way", ["TCP", "TLS", "Unix"])
def test_a_flood_from_one_peer_is_refused_and_ends(
    way: str, tmp_path: Path, made: list[ConnectionLimits], caplog: pytest.LogCaptureFixture
) -> None:
    """Over TCP, before any TLS handshake, and over the Unix socket. Others are answered meanwhile, and the same peer
    when it has ended them."""
    local, cert, key = way == "Unix", *(self_signed(tmp_path) if way == "TLS" else ("", ""))
    settings = Settings(state_dir=str(tmp_path), listen_socket=str(tmp_path / "s"), tls_cert=cert, tls_key=key)
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store, contextlib.ExitStack() as held:
        store.jobs.upsert_all([job(7, ADA, "ada")])
        app = create_app(store, FakeController(), settings, Named(settings))  # type: ignore[arg-type]
        server, port = held.enter_context(served(app, settings))
        wait_until(lambda: server.started, 60)

        def connect(unix: bool) -> socket.socket:
            peer = socket.socket(socket.AF_UNIX if unix else socket.AF_INET)
            peer.settimeout(60)
            peer.connect(settings.listen_socket if unix else ("127.0.0.1", port))
            return held.enter_context(peer)

        flood = [connect(local) for _ in range(4 * OF_PEER)]
        wait_until(lambda: sum(is_closed(peer) for peer in flood) == 3 * OF_PEER, 60)
        assert health(connect(not local)) == 200
        assert len([record for record in caplog.records if "are refused" in record.message]) == 1
        for peer in flood:
            peer.close()

        def answered() -> bool:
            with contextlib.suppress(OSError):
                peer = connect(local)
                return health(trusting(cert).wrap_socket(peer, server_hostname="localhost") if cert else peer) == 200
            return False

        wait_until(answered, 60)


@pytest.mark.parametrize("says", [b"", b"GET /v1/health HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"])
def test_a_handshake_that_does_not_end_is_ended(
    says: bytes, tmp_path: Path, made: list[ConnectionLimits], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Silence, no TLS at all, the beginning of a handshake: the connection is closed, and counts no more."""
    monkeypatch.setattr(connection_limits, "HANDSHAKE_S", 0.5)
    cert, key = self_signed(tmp_path)
    settings = Settings(state_dir=str(tmp_path), tls_cert=cert, tls_key=key)
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store:
        app = create_app(store, FakeController(), settings, Named(settings))  # type: ignore[arg-type]
        with served(app, settings) as (_, port), socket.create_connection(("127.0.0.1", port), 60) as peer:
            peer.sendall(says)
            with contextlib.suppress(ConnectionResetError):
                while peer.recv(4096):
                    pass
            wait_until(lambda: not made[0]._count, 60)


def test_a_connection_counts_once_before_and_after_its_handshake(tmp_path: Path, made: list[ConnectionLimits]) -> None:
    """As many as one peer may have are answered over TLS, for one more the oldest ends; none counts that has ended."""
    cert, key = self_signed(tmp_path)
    settings = Settings(state_dir=str(tmp_path), tls_cert=cert, tls_key=key)
    with fresh_store(f"sqlite:///{tmp_path / 'a.db'}") as store, contextlib.ExitStack() as held:
        app = create_app(store, FakeController(), settings, Named(settings))  # type: ignore[arg-type]
        _, port = held.enter_context(served(app, settings))

        def connect() -> socket.socket:
            peer = held.enter_context(socket.create_connection(("127.0.0.1", port), 60))
            return held.enter_context(trusting(cert).wrap_socket(peer, server_hostname="localhost"))

        kept = [connect() for _ in range(OF_PEER)]
        assert [health(peer) for peer in kept] == [200] * OF_PEER and made[0]._count == OF_PEER
        more = connect()
        assert health(more) == 200 and made[0]._count == OF_PEER
        assert health(kept[0]) == 0 and health(kept[1]) == 200
        for peer in (*kept, more):
            peer.close()
        wait_until(lambda: not made[0]._count, 60)


def trusting(cert: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cert)


def is_closed(peer: socket.socket) -> bool:
    try:
        peer.setblocking(False)
        return peer.recv(1, socket.MSG_PEEK) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def health(peer: socket.socket) -> int:
    """The status of the API's answer; 0: none."""
    caller = http.client.HTTPConnection("selasticd")
    caller.sock = peer
    try:
        caller.request("GET", "/v1/health")
        answer = caller.getresponse()
        answer.read()
        return answer.status
    except (OSError, http.client.HTTPException):
        return 0
