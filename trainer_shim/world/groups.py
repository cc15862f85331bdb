"""The process groups of one world, which owns them: made for it, named by whoever communicates, and ended with it.

Several worlds can have groups in one process. torch's default group is that of the world in use: a script's own
collectives go there, and torch looks there when a mesh is made; ours never do. Worlds in one process have a slot each,
which all ranks of a world know it by and torch's numbers of its groups begin with: worlds that follow each other number
alike, since code that torch has compiled names its groups. Limit: one thread at a time changes which world is in use.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import threading
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from . import objects

SAVING = datetime.timedelta(minutes=10)
"""Bound of a single collective of a save: the slowest rank's writing."""
ENDING_S = 10.0
"""The longest to wait for the communicators of the world before the last to end."""
SPAN = 1000
"""Groups that one slot has numbers for."""
TABLES = (
    "pg_map", "pg_names", "pg_group_ranks", "pg_backend_config", "pg_coalesce_state", "pg_to_tag", "pg_default_device"
)  # fmt: skip
"""Where torch keeps groups; the last one up to torch 2.4."""

_slots: dict[int, Groups] = {}
_in_use: Groups | None = None
_left: list[Any] = []
"""The groups that were left last."""
_communicators: list[list[Any]] = []
"""Of worlds that were left, with NCCL's communicators, which end once the next world has made its own."""
_ending: threading.Thread | None = None
"""What ends them."""
_c10d: Any = dist.distributed_c10d


class Groups:
    """See the module. `everyone`: all ranks; its backend for host memory carries what ranks agree on, the device's
    carries gradients."""

    def __init__(self, everyone: dist.ProcessGroup, slot: int, name: str, store: Store | None = None) -> None:
        """name: no other world of this job has it. store: held because torch does not hold it."""
        if slot in _slots:
            raise ValueError(f"slot {slot} is another world's")
        self._everyone: dist.ProcessGroup | None = everyone
        self._beside: dist.ProcessGroup | None = None
        self._slot, self._name, self._store = slot, name, store
        self._count = slot * SPAN + 1
        """torch's number of the next group, while this world is not in use."""
        _slots[slot] = self
        objects.begin(everyone, name)

    @property
    def everyone(self) -> dist.ProcessGroup:
        if self._everyone is None:
            raise AssertionError("this world has been left")
        return self._everyone

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Have this world be in use for as long as this lasts: what torch makes meanwhile is its own."""
        before = _in_use
        use(self)
        try:
            yield
        finally:
            use(before)

    def beside(self) -> dist.ProcessGroup:
        """One more group of all ranks, in host memory, whose collectives run beside the training's: those of saving
        and loading. Every rank asks for it at the same step."""
        if self._beside is None:
            with self.used():
                made: dist.ProcessGroup = dist.new_group(timeout=SAVING, backend="gloo")
            objects.begin(made, f"{self._name} {made.group_name}")
            self._beside = made
        return self._beside

    def bound(self, seconds: float) -> None:
        """The longest that a single collective of all ranks may take from now on."""
        change: Any = getattr(dist, "set_timeout", None) or _c10d._set_pg_timeout
        change(datetime.timedelta(seconds=seconds), self.everyone)

    def leave(self, later: bool = False, broken: bool = False) -> None:
        """End them all; nothing where that has been done. Every DistributedDataParallel object has to be gone by now.

        later: the process goes on, and need not wait for the groups' own threads to end: gloo's take 20 ms, and NCCL,
        which is left to end_left(), waits for one of its own that looks up every 500 ms only. broken: nor may the other
        members wait for this one: its connections close now. Unless it is broken, a group of gloo's is done with at the
        next call only: just left, its threads may still let go of a tensor, which takes the GIL, and torch 2.4 holds
        that while it waits for them to end. By then they are idle.
        """
        if self._everyone is None:
            return
        held = self._forget()
        if not later:
            _end(held)
        elif torch.cuda.is_available():
            _communicators.append(held)
        else:
            ending, _left[:] = (held, _left) if broken else (list(_left), held)
            # Not a daemon thread: one that comes back from gloo into an interpreter that ends aborts the process.
            threading.Thread(target=ending.clear, name="selastic-group-end").start()

    def _forget(self) -> list[Any]:
        """Nobody finds these groups any more, torch neither; in the order in which they were made."""
        tables = _c10d._world
        held = [group for group, name in tables.pg_names.items() if self._owns(name)]
        if _in_use is self:
            use(None)
        for group in held:
            _c10d._unregister_process_group(tables.pg_names[group])
            for table in TABLES:
                getattr(tables, table, {}).pop(group, None)
            for tagged in tables.tags_to_pg.values():
                tagged[:] = [other for other in tagged if other is not group]
        self._everyone = self._beside = self._store = None
        del _slots[self._slot]
        return held

    def _owns(self, name: str) -> bool:
        """Groups that a script has made are the world's in which it did; those without a number the one's in use."""
        return int(name) // SPAN == self._slot if name.isdecimal() else _in_use is self


def use(world: Groups | None) -> None:
    """Have torch's default group be this world's from now on; None: there is none."""
    global _in_use
    if world is _in_use:
        return
    if _in_use is not None:
        _in_use._count = _c10d._world.group_count
    _c10d._update_default_pg(world.everyone if world is not None else None)
    _c10d._world.group_count = world._count if world is not None else 0
    _in_use = world


def free_slot() -> int:
    """The first that no world in this process has."""
    return next(slot for slot in itertools.count() if slot not in _slots)


def make(backend: str, store: Store, rank: int, size: int, slot: int, name: str, timeout: datetime.timedelta) -> Groups:
    """Groups of a new world, of which all ranks call this; not in use yet. store: nobody else's."""
    # init_process_group() makes the default group, and no second one beside it.
    everyone, _ = _c10d._new_process_group_helper(
        size, rank, [], dist.Backend(backend), PrefixStore("default_pg", store), str(slot * SPAN),
        timeout=timeout, group_desc="default_pg",
    )  # fmt: skip
    _c10d._world.pg_group_ranks[everyone] = {member: member for member in range(size)}
    return Groups(everyone, slot, name, store)


def adopt() -> Groups:
    """Of the default group that is there: torchrun's, or one that the script has made."""
    global _in_use
    if _in_use is None:  # a second join() is in the same world
        everyone: Any = dist.group.WORLD
        _in_use = Groups(everyone, 0, "")
    return _in_use


def end_left() -> None:
    """End NCCL's communicators of the groups that were left, on a thread of its own.

    Called after a world's first step, when it has made its own: one that ends while another is made can race with it
    (pytorch issue 119196).
    """
    global _ending
    if _communicators:
        groups = [group for held in _communicators for group in held]
        _communicators.clear()
        _ending = threading.Thread(target=_end, args=(groups,), name="selastic-group-end")
        _ending.start()


def wait_left() -> None:
    """Wait, no longer than ENDING_S, for the communicators that are ending: another one is about to be made, and those
    that end take memory of the GPU. No more than two worlds' are left without an end."""
    if len(_communicators) > 1:
        end_left()
    if _ending is not None:
        _ending.join(ENDING_S)


def _end(groups: list[Any]) -> None:
    """Shut them down, those made last first as torch does, and let go of them."""
    while groups:
        group = groups.pop()
        end = getattr(dist.ProcessGroup, "shutdown", None) or _c10d._shutdown_backend  # of torch 2.4
        with contextlib.suppress(RuntimeError):  # of a group that is broken
            end(group)
        del group
