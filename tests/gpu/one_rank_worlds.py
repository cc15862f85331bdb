"""Worlds of one rank, as a worker's link to its supervisor makes them."""

from __future__ import annotations

import threading
from concurrent.futures import Future

from slurm_elastic.trainer_shim.control.event_loop import Loop
from slurm_elastic.trainer_shim.control.worker_client import ComingWorld
from slurm_elastic.trainer_shim.control.world_store import WorldStore
from slurm_elastic.trainer_shim.world.process_group import Gate

KEY = "key"
_loop = Loop()
threading.Thread(target=_loop.run, daemon=True).start()


def gate_of(number: int) -> Gate:
    """The open gate of a world with this number."""
    made: Future[WorldStore] = Future()
    _loop.call(lambda: made.set_result(WorldStore(_loop, KEY, "127.0.0.1", print)))
    coming = ComingWorld(number, rank=0, size=1, timeout_s=10, forming_s=20, key=KEY, server=made.result(20))
    gate = Gate(coming)
    gate.arrive()
    gate.wait_open()
    return gate
