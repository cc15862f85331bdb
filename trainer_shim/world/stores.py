"""What torch sees of the store through which the members of a world find each other.

A stranger is not answered there (control/world_store). And what members write is sealed: with the job's key, and for
its place in its world alone. What somebody else has changed under way, or moved from another place or world, raises
Forged and is not used. Limit: torch's own counters are not sealed.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from ..control.world_store import KeyStore

LOOK_S = 0.02
"""Longest time between two looks at whether a member has come, and whether the world has been called off."""
SEAL = hashlib.sha256().digest_size


class Forged(RuntimeError):
    """An entry that no process of this job has written."""


class SealedStore(Store):
    """Entries of one world, named `world/...` in a store that others can write to. It waits no longer than the world is
    wanted; torch's own wait for as long as a collective may take. It has what torch lets a store in Python have; queues
    and listed keys are not among that."""

    def __init__(
        self, store: KeyStore, key: str, world: str, give_up: Callable[[], bool] | None = None, least_s: float = 0.0
    ) -> None:
        """least_s: how long it waits at least, where less is asked for."""
        super().__init__()
        self._store, self._key, self._world = store, key.encode(), world
        self._give_up, self._least_s = give_up, least_s
        self._clones: list[SealedStore] = []

    def clone(self) -> SealedStore:
        """Another handle to the same entries."""
        made = SealedStore(self._store, self._key.decode(), self._world, self._give_up, self._least_s)
        self._clones.append(made)  # torch holds what is behind it alone
        return made

    @property
    def timeout(self) -> datetime.timedelta:
        return self._store.timeout

    def set(self, key: str, value: Any) -> None:
        name = self._name(key)
        self._store.set(name, self._sealed(name, _bytes(value)))

    def get(self, key: str) -> bytes:
        """What is written there; waits for it where the world may be called off."""
        if self._give_up is not None:
            self.wait([key])
        name = self._name(key)
        return self._opened(name, self._store.get(name))

    def written(self, keys: Sequence[str]) -> int:
        """How many of these entries are there. Raises Forged when one is a stranger's."""
        names = [self._name(key) for key in keys]
        there = [pair for pair in zip(names, self._store.read(names), strict=True) if pair[1] is not None]
        return len([self._opened(name, value) for name, value in there if value is not None])

    def wait(self, keys: list[str], timeout: datetime.timedelta | None = None) -> None:
        asked = timeout if timeout is not None else self._store.timeout
        seconds, names = max(asked.total_seconds(), self._least_s), [self._name(key) for key in keys]
        deadline = time.monotonic() + seconds
        while not self._store.wait(names, seconds if self._give_up is None else LOOK_S):
            if self._give_up is not None and self._give_up():
                raise dist.DistStoreError("the world was called off")
            if time.monotonic() >= deadline:
                raise dist.DistStoreError(f"{', '.join(keys[:3])}: not written within {seconds:g} s")

    def add(self, key: str, value: int) -> int:
        return self._store.add(self._name(key), value)

    def check(self, keys: list[str]) -> bool:
        return self._store.check([self._name(key) for key in keys])

    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(self._name(key))

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        """As TCPStore's: `desired` comes in place of `expected`; "" stands for nothing there. What is there then."""
        found = self._swap(key, _bytes(expected), _bytes(desired))
        return _bytes(desired if found is None else found)

    def append(self, key: str, value: Any) -> None:
        before = b""
        while (found := self._swap(key, before, before + _bytes(value))) is not None:
            before = found

    def _swap(self, key: str, expected: bytes, desired: bytes) -> bytes | None:
        """None where that was done; else what is there, and `expected` where nothing is."""
        name = self._name(key)
        sealed = self._sealed(name, desired)
        for old in [self._sealed(name, expected), *([b""] if not expected else [])]:
            there = self._store.swap(name, old, sealed)
            if (there or b"") == old:
                return None
        return expected if there is None else self._opened(name, there)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return [self.get(key) for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[Any]) -> None:
        for key, value in zip(keys, values, strict=True):
            self.set(key, value)

    def num_keys(self) -> int:
        return self._store.count(self._name(""))

    deleteKey, getNumKeys = delete_key, num_keys  # as torch calls them behind a prefix

    def _name(self, key: str) -> str:
        return f"{self._world}/{key}"

    def _sealed(self, name: str, value: bytes) -> bytes:
        return hmac.digest(self._key, name.encode() + b"\0" + value, "sha256") + value

    def _opened(self, name: str, entry: bytes) -> bytes:
        value = entry[SEAL:]
        if not hmac.compare_digest(entry, self._sealed(name, value)):
            raise Forged(f"the entry {name} of its store is none of this job's: somebody else writes to it")
        return value


def _bytes(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)
