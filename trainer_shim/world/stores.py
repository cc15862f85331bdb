"""The stores through which the members of a world find each other.

torch's TCPStore asks nobody who they are. So what members write is sealed: with the job's key, and for its place in its
world alone. What somebody else has put there, or moved there from another place or world, raises Forged and is not
used. Limit: counters and whether an entry is there are not sealed; a stranger who reaches the port can keep a world
from forming, and read addresses.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore

from ..control import interfaces

LOOK_S = 0.02
"""Longest time between two looks at whether a member has come, and whether the world has been called off."""
OPENS = datetime.timedelta(seconds=30)
SEAL = hashlib.sha256().digest_size


class Forged(RuntimeError):
    """An entry that no process of this job has written."""


def open_store(host: str, listen: str = "") -> tuple[str, int, object]:
    """Open the store of a coming generation on a free port; (host, port, handle). The handle keeps it open.

    listen: the address that it is to listen on; "" for all of this host's.
    """
    options: dict[str, Any] = {"is_master": True, "wait_for_workers": False, "timeout": OPENS}
    if not listen:
        server = TCPStore(host, 0, **options)
        return host, server.port, server
    listener = socket.create_server((listen, 0), family=interfaces.family(listen), backlog=1024)
    port = int(listener.getsockname()[1])
    if torch.__version__ < "2.8":  # there only the older backend takes a socket that listens already
        options["use_libuv"] = False
    return listen, port, TCPStore(listen, port, master_listen_fd=listener.detach(), **options)


class SealedStore(Store):
    """Entries of one world, named `world/...` in a store that others can write to."""

    def __init__(self, store: Any, key: str, world: str) -> None:
        super().__init__()
        self._store, self._key, self._world = store, key.encode(), world

    @property
    def timeout(self) -> datetime.timedelta:
        timeout: datetime.timedelta = self._store.timeout
        return timeout

    def set(self, key: str, value: Any) -> None:
        name = self._name(key)
        self._store.set(name, self._sealed(name, _bytes(value)))

    def get(self, key: str) -> bytes:
        name = self._name(key)
        return self._opened(name, self._store.get(name))

    def opened(self, keys: Sequence[str]) -> bool:
        """Whether all of these entries are there. Raises Forged when one is a stranger's."""
        names = [self._name(key) for key in keys]
        if not self._store.check(names):
            return False
        for name, value in zip(names, self._store.multi_get(names), strict=True):
            self._opened(name, value)
        return True

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        self._store.wait([self._name(key) for key in keys], timeout if timeout is not None else self._store.timeout)

    def add(self, key: str, value: int) -> int:
        return int(self._store.add(self._name(key), value))

    def check(self, keys: list[str]) -> bool:
        return bool(self._store.check([self._name(key) for key in keys]))

    def delete_key(self, key: str) -> bool:
        return bool(self._store.delete_key(self._name(key)))

    def _name(self, key: str) -> str:
        return f"{self._world}/{key}"

    def _sealed(self, name: str, value: bytes) -> bytes:
        return hmac.digest(self._key, name.encode() + b"\0" + value, "sha256") + value

    def _opened(self, name: str, entry: bytes) -> bytes:
        value = entry[SEAL:]
        if not hmac.compare_digest(entry, self._sealed(name, value)):
            raise Forged(f"the entry {name} of its store is none of this job's: somebody else writes to it")
        return value


class InterruptibleStore(Store):
    """A store that waits no longer than the world is wanted; torch's own wait for as long as a collective may take."""

    def __init__(self, store: Store, give_up: Callable[[], bool], least_s: float = 0.0) -> None:
        """least_s: how long it waits at least, where less is asked for."""
        super().__init__()
        self._store, self._give_up, self._least_s = store, give_up, least_s

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        asked = timeout if timeout is not None else self._store.timeout  # type: ignore[attr-defined]
        seconds = max(asked.total_seconds(), self._least_s)
        deadline, pause_s = time.monotonic() + seconds, 0.0005
        while not self._store.check(keys):
            if self._give_up():
                raise dist.DistStoreError("the world was called off")
            if time.monotonic() >= deadline:
                raise dist.DistStoreError(f"a member did not take part within {seconds:g} s")
            time.sleep(pause_s)  # wait() with a short timeout would print a warning each time
            pause_s = min(2 * pause_s, LOOK_S)

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._store.get(key)

    def set(self, key: str, value: Any) -> None:
        self._store.set(key, value)

    def add(self, key: str, value: int) -> int:
        return self._store.add(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check(keys)

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key)


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
