"""A group is used once every rank has made it: otherwise nobody uses it."""

from __future__ import annotations

import dataclasses
import datetime
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
import torch.distributed as dist
from made_worlds import made_world
from waiting import wait_until
from world_stores import stores

from slurm_elastic.trainer_shim.control.worker_client import ComingWorld
from slurm_elastic.trainer_shim.world.groups import end_left, wait_left
from slurm_elastic.trainer_shim.world.process_group import (
    Gate,
    World,
    WorldNotFormed,
    bound,
    complete,
    form,
)
from slurm_elastic.trainer_shim.world.rendezvous import LeftWorld
from slurm_elastic.trainer_shim.world.stores import SealedStore

LONG = datetime.timedelta(seconds=60)


def test_all_go_on_when_the_last_one_has_made_its_group() -> None:
    """Three ranks: none is done before the third."""
    with stores() as opened, ThreadPoolExecutor(3) as pool:
        store = SealedStore(opened(), "key", "g1", lambda: False)
        waiting = [pool.submit(complete, store, 3, LONG) for _ in range(2)]
        while store.add("formed", 0) < 2:
            pass
        assert not any(done.done() for done in waiting)
        pool.submit(complete, store, 3, LONG).result(60)
        for done in waiting:
            done.result(60)


def test_nobody_uses_a_group_that_one_rank_has_not_made() -> None:
    """Two of three ranks are through when the world is called off: both are told, neither waits for its time."""
    off = threading.Event()
    with stores() as opened, ThreadPoolExecutor(2) as pool:
        store = SealedStore(opened(), "key", "g1", off.is_set)
        waiting = [pool.submit(complete, store, 3, LONG) for _ in range(2)]
        while store.add("formed", 0) < 2:
            pass
        off.set()
        for done in waiting:
            with pytest.raises(dist.DistStoreError, match="called off"):
                done.result(60)


def test_a_collectives_time_is_set_by_the_public_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.14 has one, and warns of the old one in every job's output."""
    given: list[tuple[float, Any]] = []
    with made_world() as world:
        monkeypatch.setattr(
            dist, "set_timeout", lambda timeout, group: given.append((timeout.total_seconds(), group)), raising=False
        )
        bound(dataclasses.replace(world, store=MagicMock()), 7)
        assert given == [(7, world.group)]


def test_a_world_whose_store_is_gone_does_not_form() -> None:
    """Rank 0 has closed the store of a world that was called off: who comes late is told so, and not by a traceback."""
    with stores() as opened:
        server = opened()
        place = ("127.0.0.1", server.port)
        gate = Gate(ComingWorld(2, 1, 2, 16, False, "survivor", 5.0, key="key", store=place))
        del server
        with pytest.raises(WorldNotFormed, match="the store of world 2 is gone"):
            wait_until(lambda: gate.arrive())
    with pytest.raises(WorldNotFormed, match=r"does not reach the store of world 2 at 127.0.0.1 port"):
        Gate(gate.coming)
    with pytest.raises(WorldNotFormed, match="the store of world 2 is gone"):
        gate.announce_switch()


def test_the_way_back_is_not_by_the_loopback() -> None:
    """From a world on one host to one on two, which knows no other way between them."""
    with stores() as opened:
        coming = ComingWorld(2, 0, 1, 16, key="key", one_host=True)
        left = LeftWorld(World(1, 0, 2, store=opened()), coming, 16, "fresh")
        gate = left.gate(1.0)
        assert (gate.coming.generation, gate.coming.size, gate.coming.one_host) == (1, 2, False)


def test_a_traceback_is_the_same_after_any_number_of_worlds() -> None:
    """torch wraps sys.excepthook with every group that it makes, and nobody unwraps it."""
    before = sys.excepthook
    for generation in (1, 2):
        with stores() as opened:
            gate = Gate(ComingWorld(generation, 0, 1, 16, key="key", server=opened()))
            gate.arrive()
            form(gate).owned.leave()
        assert sys.excepthook is before


@pytest.mark.skipif(not hasattr(dist.ProcessGroup, "shutdown"), reason="this torch ends none by itself")
def test_communicators_end_once_the_next_world_has_made_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL takes up to 500 ms to end one, and one that ends while another is made can race with it: they end beside the
    steps of the next world. The world after it waits for them; no more than two are left without an end."""
    go_on, ended = threading.Event(), list[str]()

    def shutdown(group: dist.ProcessGroup) -> None:
        go_on.wait(10)
        ended.append(group.group_name)

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(dist.ProcessGroup, "shutdown", shutdown, raising=False)

    def ending() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "selastic-group-end"]

    with made_world() as world:
        dist.new_group([0])
        world.owned.leave(later=True)
    wait_left()
    with made_world() as world:
        dist.new_group([0])
        assert not ending()
        end_left()
        world.owned.leave(later=True)
        assert not dist.is_initialized()
    assert len(ending()) == 1
    assert not ended
    go_on.set()
    wait_left()
    assert ended == ["1001", "1000"], "those made last first"
    with made_world() as world:
        dist.new_group([0])
        world.owned.leave(later=True)  # before its first step
    wait_left()
    assert len(ended) == 6
