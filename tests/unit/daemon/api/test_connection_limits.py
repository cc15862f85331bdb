"""Connections beyond the limits are refused, and leave the process its descriptors."""

from __future__ import annotations

import contextlib
import http.client
import socket
from pathlib import Path

import pytest
from api_harness import ADA, FakeController, Named, job, served
from waiting import wait_until

from slurm_elastic.daemon.api import http_server
from slurm_elastic.daemon.api.app import create_app
from slurm_elastic.daemon.api.connection_limits import MAX_CONNECTIONS, ConnectionLimits
from slurm_elastic.daemon.config.settings import Settings
from slurm_elastic.db.store import Store

OF_PEER = 24


def test_limits_leave_descriptors_for_rounds() -> None:
    """Of however many there may be; one peer never has all that several may have."""
    for open_files in (256, 1024, 16384, 1 << 20):
        limits = ConnectionLimits(open_files)
        assert 0 < limits.of_peer <= limits.in_all <= min(MAX_CONNECTIONS, open_files - 128)
    assert ConnectionLimits(16384).of_peer < 16384 // 4


def test_what_ends_makes_room() -> None:
    """For the same peer, and for all."""
    limits = ConnectionLimits(256)
    assert [limits.admit("a") for _ in range(limits.of_peer + 1)] == [True] * limits.of_peer + [False]
    assert [limits.admit("b") for _ in range(limits.of_peer + 1)] == [True] * limits.of_peer + [False]
    assert limits.in_all == 2 * limits.of_peer and not limits.admit("c")
    limits.release("a")
    assert limits.admit("c") and not limits.admit("a")


@pytest.mark.parametrize("local", [False, True])
def test_a_flood_from_one_peer_is_refused_and_ends(
    local: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Over TCP and the Unix socket. Others are answered meanwhile, and the same peer when it has ended them."""
    made: list[ConnectionLimits] = []

    def limited(open_files: int) -> ConnectionLimits:
        made.append(ConnectionLimits(open_files))
        made[0].of_peer = OF_PEER
        return made[0]

    monkeypatch.setattr(http_server, "ConnectionLimits", limited)
    settings = Settings(state_dir=str(tmp_path), listen_socket=str(tmp_path / "s"))
    with Store.open(f"sqlite:///{tmp_path / 'a.db'}") as store, contextlib.ExitStack() as held:
        store.upsert_jobs([job(7, ADA, "ada")])
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
        wait_until(lambda: health(connect(local)) == 200, 60)


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
        return caller.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
