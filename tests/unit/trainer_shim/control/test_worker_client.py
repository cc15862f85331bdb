"""The connection to the supervisor: what it remembers, what it may lose, and that it never blocks."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from control_peer import KEY, meet
from waiting import wait_until

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.trainer_shim.control import worker_client as links
from slurm_elastic.trainer_shim.control.worker_client import WorkerClient


class Peer:
    """The other end of one link."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.link, self.connection, self.said = meet(self.server, lambda: WorkerClient(address, KEY, "w1"))
        self.connection.settimeout(20)
        self.lines = self.connection.makefile("r")

    def send(self, **message: Any) -> None:
        self.connection.sendall(json.dumps(message).encode() + b"\n")

    def world(self, generation: int, rank: int = 1, **more: Any) -> None:
        self.send(type="world", generation=generation, rank=rank, size=3, source="survivor", **more)

    def read(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(self.lines.readline())
        return message

    def held(self) -> links.ComingWorld:
        return wait_until(self.link.held)


@pytest.fixture
def peer() -> Iterator[Peer]:
    peer = Peer()
    yield peer
    peer.link.close()
    peer.connection.close()
    peer.server.close()


def test_the_interval_of_reports_is_the_supervisors(peer: Peer) -> None:
    """It comes by itself, and with every world."""
    assert peer.link.report_s == 0.0
    peer.send(type="report_every", seconds=0.5)
    wait_until(lambda: peer.link.report_s == 0.5)
    peer.world(2, report_s=2.0)
    wait_until(lambda: peer.link.report_s == 2.0)


def test_it_introduces_itself(peer: Peer) -> None:
    """The first message carries name and process, and not the key."""
    assert (peer.said["type"], peer.said["worker"], peer.said["kind"]) == ("hello", "w1", "worker")
    assert KEY not in json.dumps(peer.said)


def test_a_world_is_held_with_its_store_only(peer: Peer) -> None:
    """World and store may come in either order; one without the other is not held. A leaver needs no store."""
    peer.world(2, batch=64)
    peer.send(type="store", generation=1, host="h", port=1)
    peer.send(type="checkpoint")
    wait_until(lambda: peer.link.save_wanted)
    assert peer.link.held() is None
    peer.send(type="store", generation=2, host="h", port=2)
    held = peer.held()
    assert (held.generation, held.batch, held.store) == (2, 64, ("h", 2))
    peer.link.taken(held)
    peer.send(type="store", generation=3, host="h", port=3)
    peer.world(3)
    assert peer.held().store == ("h", 3)
    peer.send(type="store", generation=4, host="", port=4)
    peer.world(4)
    wait_until(lambda: peer.held().store == ("127.0.0.1", 4))  # as this worker reached the supervisor
    peer.world(5, rank=-1, leave=True)
    wait_until(lambda: peer.held().generation == 5)


def test_the_new_rank_0_opens_the_store_at_once(peer: Peer) -> None:
    """It answers that its store is on the supervisor's host: others reach that by an address that it need not know."""
    peer.world(2, rank=0)
    said, store = peer.read(), peer.held().store
    assert store is not None and said == {"type": "store", "generation": 2, "host": "", "port": store[1]}
    assert peer.held().server is not None


def test_the_store_of_a_world_on_one_host_is_on_its_loopback(peer: Peer) -> None:
    """No other host can ask it, whatever network the supervisor is reached by; the members are told where it is."""
    peer.world(2, rank=0, one_host=True)
    said, store = peer.read(), peer.held().store
    assert store is not None and said == {"type": "store", "generation": 2, "host": "127.0.0.1", "port": store[1]}
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", store[1]), timeout=60)
    peer.world(3, rank=0)
    socket.create_connection(("127.0.0.2", peer.read()["port"]), timeout=60).close()


def test_a_world_called_off_or_outdated_is_forgotten(peer: Peer) -> None:
    """After an abort nothing is held; an older generation than the one taken is not taken again."""
    peer.world(2)
    peer.send(type="store", generation=2, host="h", port=2)
    coming = peer.held()
    assert peer.link.still_coming(coming)
    peer.send(type="abort", generation=2)
    wait_until(lambda: peer.link.held() is None)
    assert not peer.link.still_coming(coming)
    peer.world(2)
    peer.world(3)
    peer.send(type="store", generation=3, host="h", port=3)
    held = peer.held()
    assert held.generation == 3
    peer.link.taken(held)
    peer.world(3)
    peer.send(type="hurry", deadline_s=3)
    wait_until(lambda: peer.link.save_wanted)
    assert peer.link.held() is None


def test_a_world_left_for_is_called_off_only_for_a_lost_member(peer: Peer) -> None:
    """An abort is answered where this worker has not left for the world yet; after that it counts only when the world
    cannot come."""
    for generation in (2, 3):
        peer.world(generation)
        peer.send(type="store", generation=generation, host="h", port=2)
        coming = peer.held()
        assert coming.generation == generation
        if generation == 2:
            peer.send(type="abort", generation=2)
            assert peer.read() == {"type": "called_off", "generation": 2}
            assert not peer.link.commit(coming)
    assert peer.link.commit(coming)
    peer.send(type="abort", generation=3, lost=False)
    peer.send(type="report_every", seconds=7)
    wait_until(lambda: peer.link.report_s == 7)
    assert peer.link.still_coming(coming) and not peer.link.called_off(3)
    peer.send(type="abort", generation=3, lost=True)
    wait_until(lambda: peer.link.called_off(3))


def test_reports_never_block_and_the_oldest_are_lost(peer: Peer) -> None:
    """With a supervisor that reads nothing thousands of reports are taken; the newest survive, in order."""
    padding = "x" * 10_000
    newest = range(5000, 5000 + links.MAX_REPORTS)
    for number in range(newest.start):
        peer.link.report({"type": "report", "number": number, "padding": padding})
    with peer.link._changed:  # its thread writes nothing meanwhile, so these wait whatever the kernel has room for
        for number in newest:
            peer.link.report({"type": "report", "number": number, "padding": padding})
        peer.link.send({"type": "done"})
    numbers, kinds = [], []
    while newest[-1] not in numbers[-1:]:
        message = peer.read()
        kinds.append(message["type"])
        if message["type"] == "report":
            numbers.append(message["number"])
    assert numbers == sorted(numbers) and len(numbers) < newest.stop
    assert numbers[-len(newest) :] == list(newest)
    assert "done" in kinds[: -len(newest)]  # control messages overtake reports that wait
    assert peer.link.flush(10)


def test_losing_the_supervisor_is_noticed(peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The flag is set at once; who still trains after the grace is ended by force."""
    ended: list[int] = []
    monkeypatch.setattr(links, "LOST_GRACE_S", 0.1)
    monkeypatch.setattr(links.os, "_exit", ended.append)
    peer.lines.close()
    peer.connection.shutdown(socket.SHUT_RDWR)
    peer.connection.close()
    wait_until(lambda: peer.link.lost)
    wait_until(lambda: ended == [75])


def test_an_unreachable_supervisor_is_named() -> None:
    """A wrong SELASTIC_CONTROL is one sentence, at once."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(TrainingError, match=f"SELASTIC_CONTROL=127.0.0.1:{port}"):
        WorkerClient(f"127.0.0.1:{port}", "", "w", lambda host: (host, 0, None))
