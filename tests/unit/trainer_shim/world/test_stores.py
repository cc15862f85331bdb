"""A stranger who writes to the store of a world, which asks nobody who they are, is noticed and not obeyed."""

from __future__ import annotations

import datetime
import os
import socket
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from waiting import run, wait_until

from slurm_elastic.trainer_shim.control.worker_client import ComingWorld
from slurm_elastic.trainer_shim.world.process_group import Gate, WorldNotFormed
from slurm_elastic.trainer_shim.world.stores import Forged, InterruptibleStore, SealedStore, open_store

STRANGER = """
import os, sys
from datetime import timedelta
from torch._C._distributed_c10d import TCPStore
os.setgid(65534); os.setuid(65534)
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=timedelta(seconds=60))
"""


def stranger(port: int, does: str) -> None:
    """Have another user do this to the store at this port."""
    command = [sys.executable, "-c", STRANGER + does, str(port)]
    done = run(command)
    assert done.returncode == 0, done.stderr


def world(generation: int, rank: int, size: int, **more: Any) -> ComingWorld:
    return ComingWorld(generation, rank, size, 16, key="key", timeout_s=60.0, forming_s=60.0, **more)


def test_what_members_write_is_read_in_its_place_alone() -> None:
    """Neither from another entry, nor of another world, nor by another key; text and bytes of any length."""
    base = dist.HashStore()
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
    for short in ("", "1", "x" * 32):
        base.set("g1/a", short)
        with pytest.raises(Forged, match=r"^the entry g1/a of its store is none of this job's"):
            store.get("a")


def test_a_store_listens_where_it_is_told_to() -> None:
    """On one network, if one was chosen; this host's other addresses do not answer."""
    for listen, others in (("127.0.0.1", ["127.0.0.2"]), ("::1", ["127.0.0.1"])):
        host, port, server = open_store("unknown.invalid", listen)
        assert host == listen
        socket.create_connection((host, port), timeout=60).close()
        for other in others:
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((other, port), timeout=60)
        SealedStore(server, "key", "g1").set("a", "b")
    everywhere = open_store("127.0.0.1")
    socket.create_connection(("127.0.0.2", everywhere[1]), timeout=60).close()


def test_who_has_not_come_is_counted_by_nobody() -> None:
    """A counter is not sealed: that everyone has come is seen from what each has written."""
    base = dist.HashStore()
    store = SealedStore(base, "key", "g1")
    store.set("here/0", "1")
    assert not store.opened(["here/0", "here/1"])
    base.set("g1/here/1", "1")
    with pytest.raises(Forged):
        store.opened(["here/0", "here/1"])
    store.set("here/1", "1")
    assert store.opened(["here/0", "here/1"])


@pytest.mark.skipif(os.geteuid() != 0, reason="plays another user")
def test_a_gate_that_a_stranger_opens_stays_closed() -> None:
    """Another user says that all members are there."""
    host, port, server = open_store("localhost")
    gate = Gate(world(3, 0, 2, store=(host, port), server=server))
    gate.arrive()
    stranger(port, "store.set('g3/open', '1')")
    with pytest.raises(WorldNotFormed, match="world 3 does not form: the entry g3/open"):
        gate.wait_open()


@pytest.mark.skipif(os.geteuid() != 0, reason="plays another user")
@pytest.mark.skipif(torch.__version__ < (2, 8), reason="this torch's gloo waits minutes for a rank that has given up")
def test_a_ranks_address_that_a_stranger_overwrites_is_not_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 has said how it is reached, and another user says otherwise, before rank 0 looks. The next world forms."""
    _, port, server = open_store("localhost")
    written: list[str] = []
    write = SealedStore.set
    monkeypatch.setattr(SealedStore, "set", lambda self, key, value: (write(self, key, value), written.append(key)))
    off = threading.Event()

    def member(name: str, rank: int) -> object:
        store = InterruptibleStore(SealedStore(server, "key", name), off.is_set)
        return dist.ProcessGroupGloo(store, rank, 2, datetime.timedelta(seconds=60)), store

    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(member, "g5/pg", 1)
        wait_until(lambda: written)
        overwrite = "".join(f"store.set('g5/pg/{key}', b'elsewhere')\n" for key in written)
        stranger(port, overwrite)
        with pytest.raises(RuntimeError, match="is none of this job's: somebody else writes to it"):
            member("g5/pg", 0)
        off.set()
        with pytest.raises(RuntimeError, match=r"called off|none of this job's"):
            waiting.result(120)
        off.clear()
        for made in [pool.submit(member, "g6/pg", rank) for rank in (0, 1)]:
            made.result(120)
