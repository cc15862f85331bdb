"""A stranger is not heard by the store of a world; what is changed under way is noticed and not obeyed."""

from __future__ import annotations

import datetime
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch.distributed as dist
from waiting import wait_until
from world_stores import Open, stores

from slurm_elastic.trainer_shim.control import server as control_server
from slurm_elastic.trainer_shim.control.worker_client import ComingWorld
from slurm_elastic.trainer_shim.control.world_store import KeyStore, RemoteStore
from slurm_elastic.trainer_shim.world.process_group import Gate
from slurm_elastic.trainer_shim.world.stores import Forged, SealedStore


def stranger(port: int, says: bytes) -> bytes:
    """What somebody without the job's key, who says this to the store at this port, hears after the challenge."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as sock:
        assert sock.recv(1000).startswith(b'{"type":"challenge"')
        try:
            sock.sendall(says)
            return sock.recv(1000)
        except ConnectionError:
            return b""


class Entries(KeyStore):
    """A store in this process, which a test changes by hand."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}

    def _ask(self, what: str, keys: Sequence[str], value: bytes = b"") -> list[bytes | None]:
        if what == "set":
            self.held[keys[0]] = value
        return [self.held.get(key) for key in keys]

    def wait(self, keys: Sequence[str], seconds: float) -> bool:
        return self.check(keys)


@pytest.fixture
def opened() -> Iterator[Open]:
    with stores() as function:
        yield function


def world(generation: int, rank: int, size: int, **more: Any) -> ComingWorld:
    return ComingWorld(generation, rank, size, 16, key="key", timeout_s=60.0, forming_s=60.0, **more)


def test_what_members_write_is_read_in_its_place_alone() -> None:
    """Neither from another entry, nor of another world, nor by another key; text and bytes of any length."""
    base = Entries()
    store = SealedStore(base, "key", "g1")
    for value in (b"", b"\0\xff", b"x" * 5000):
        store.set("a", value)
        assert store.get("a") == value
    store.set("a", "text")
    assert (store.get("a"), store.check(["a"]), store.check(["b"])) == (b"text", True, False)
    base.set("g1/b", base.get("g1/a"))
    base.set("g2/a", base.get("g1/a"))
    for forged, name in ((store, "b"), (SealedStore(base, "key", "g2"), "a"), (SealedStore(base, "other", "g1"), "a")):
        with pytest.raises(Forged):
            forged.get(name)
        with pytest.raises(Forged):
            forged.written([name])
    for short in (b"", b"1", b"x" * 32):
        base.set("g1/a", short)
        with pytest.raises(Forged, match=r"^the entry g1/a of its store is none of this job's"):
            store.get("a")


def test_torch_gets_another_handle_to_the_same_entries() -> None:
    """As torch asks for it where it splits and shrinks groups: by a PrefixStore, with nobody else who holds it."""
    store = SealedStore(Entries(), "key", "g1")
    handle = dist.PrefixStore("p", store).clone()
    handle.set("a", "text")
    assert (handle.get("a"), store.get("p/a")) == (b"text", b"text")


@pytest.mark.parametrize("at", ["the server", "a member"])
def test_a_store_does_behind_a_prefix_what_torchs_own_does(opened: Open, at: str) -> None:
    """Each call that torch passes on to a store in Python, with TCPStore's answers; sums are not sealed."""
    server = opened()
    base = server if at == "the server" else RemoteStore("127.0.0.1", server.port, "key", 60.0)
    server.set("g2/other", b"")
    ours, theirs = (
        SealedStore(base, "key", "g1"),
        dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(minutes=1)),
    )
    said = []
    for store in (dist.PrefixStore("p", ours), dist.PrefixStore("p", theirs)):
        before = store.num_keys()
        answers: list[Any] = [
            store.compare_set("a", "x", "1"),  # nothing is there
            store.compare_set("a", "", "1"),
            store.compare_set("a", "x", "2"),
            store.compare_set("a", "1", "22"),
            store.compare_set("a", "", "3"),
        ]
        store.append("a", "3")
        store.append("b", "new")
        store.multi_set(["c", "d"], ["", "4"])
        answers += [store.multi_get(["a", "b", "d"]), store.add("n", 2), store.check(["c", "n"])]
        answers += [store.num_keys() - before, store.delete_key("c"), store.delete_key("c"), store.num_keys() - before]
        said.append(answers)
    assert said[0] == said[1]


def test_what_many_append_is_all_there(opened: Open) -> None:
    """Nothing of one member's is lost to another's that comes between."""
    server = opened()
    members = [RemoteStore("127.0.0.1", server.port, "key", 60.0) for _ in range(3)]

    def append(member: KeyStore) -> None:
        store = SealedStore(member, "key", "g1")
        for _ in range(20):
            store.append("a", "x")

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(append, members))
    assert SealedStore(server, "key", "g1").get("a") == b"x" * 60


def test_a_store_listens_where_it_is_told_to(opened: Open) -> None:
    """On one network, if one was chosen; this host's other addresses do not answer."""
    for listen, others in (("127.0.0.1", ["127.0.0.2"]), ("::1", ["127.0.0.1"])):
        server = opened(listen)
        socket.create_connection((listen, server.port), timeout=60).close()
        for other in others:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((other, server.port), timeout=60)
    everywhere = opened("")
    socket.create_connection(("127.0.0.2", everywhere.port), timeout=60).close()


def test_members_write_read_count_and_wait(opened: Open) -> None:
    """Rank 0's own handle and a member's connection see the same; who waits is told, whoever writes."""
    server = opened()
    member = RemoteStore("127.0.0.1", server.port, "key", 60.0)
    for one, other in ((server, member), (member, server)):
        assert one.read(["a", "b"]) == [None, None]
        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(other.wait, ["a", "b"], 60.0)
            one.set("a", b"\0\xff" * 5000)
            one.set("b", b"")
            assert waiting.result(60)
        assert (other.get("a"), other.get("b"), other.check(["a", "b"])) == (b"\0\xff" * 5000, b"", True)
        assert [one.add("n", 2), other.add("n", 1), one.delete_key("n"), other.delete_key("n")] == [2, 3, True, False]
        assert not other.wait(["c"], 0.001)
        assert one.delete_key("a") and one.delete_key("b") and not other.check(["a", "b"])
        with pytest.raises(RuntimeError, match="nobody has written a"):
            other.get("a")


def test_a_store_whose_door_is_closed_answers_those_inside(opened: Open) -> None:
    """A complete world's store takes nobody else; it ends with its handle."""
    server = opened()
    member, port = RemoteStore("127.0.0.1", server.port, "key", 60.0), server.port
    idle = socket.create_connection(("127.0.0.1", port), timeout=60)
    assert idle.recv(1000)
    server.close_door()
    assert idle.recv(1000) == b""
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=60)
    server.set("a", b"b")
    assert member.get("a") == b"b"
    del server
    with pytest.raises(RuntimeError):
        wait_until(lambda: member.check(["c"]))


@pytest.mark.parametrize("listen", ["127.0.0.1", ""])
def test_a_stranger_neither_opens_a_gate_nor_keeps_it_shut(
    opened: Open, listen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody writes that all have come, counts, or sends 16 MB: nothing of it is kept, and it is told from where, as
    people write addresses. The world forms. What ends a line without an end is its length: there would be time."""
    monkeypatch.setattr(control_server, "HELLO_S", 3600.0)
    told: list[str] = []
    server = opened(listen, told.append)
    gates = [
        Gate(world(3, rank, 2, store=("127.0.0.1", server.port), server=server if rank == 0 else None))
        for rank in (0, 1)
    ]
    gates[0].arrive()
    for says in (
        b'{"what":"set","keys":["g3/here/1"],"value":"MQ==","number":1}\n',
        b'{"what":"add","keys":["g3/arrived"],"value":"OQ==","number":1}\n',
        b'{"type":"hello","kind":"worker","worker":"w","nonce":"n","proof":"0"}\n',
        b"x" * (16 << 20),
    ):
        assert stranger(server.port, says) == b""
    assert gates[0].arrived() == 1
    assert told == ["somebody at 127.0.0.1 calls without this job's key, and is not listened to"]
    gates[1].arrive()
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(gate.wait_open) for gate in gates]:
            done.result(60)


@pytest.mark.skipif(
    not hasattr(dist.ProcessGroup, "shutdown"), reason="this torch's gloo connects for minutes, whatever its store says"
)
def test_a_ranks_address_that_was_changed_under_way_is_not_connected_to(
    monkeypatch: pytest.MonkeyPatch, opened: Open
) -> None:
    """Rank 1 has said how it is reached, and it is overwritten, before rank 0 looks. The next world forms."""
    server = opened()
    written: list[str] = []
    write = SealedStore.set
    monkeypatch.setattr(SealedStore, "set", lambda self, key, value: (write(self, key, value), written.append(key)))
    off = threading.Event()

    def member(name: str, rank: int) -> object:
        store = SealedStore(server, "key", name, off.is_set)
        return dist.ProcessGroupGloo(store, rank, 2, datetime.timedelta(seconds=60)), store

    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(member, "g5/pg", 1)
        wait_until(lambda: written)
        for key in written:
            server.set(f"g5/pg/{key}", b"elsewhere")
        with pytest.raises(RuntimeError, match="is none of this job's: somebody else writes to it"):
            member("g5/pg", 0)
        off.set()
        with pytest.raises(RuntimeError, match=r"called off|none of this job's"):
            waiting.result(120)
        off.clear()
        for made in [pool.submit(member, "g6/pg", rank) for rank in (0, 1)]:
            made.result(120)
