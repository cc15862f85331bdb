"""The process groups of one world, which owns them: made for it, named by whoever communicates, and ended with it.

Several worlds can have groups in one process. torch's default group is that of the world in use: a script's own
collectives go there, and torch looks there when a mesh is made; ours never do. Worlds in one process have a slot each,
which all ranks of a world know it by and torch's numbers of its groups begin with: worlds that follow each other number
alike, since code that torch has compiled names its groups. Limit: one thread at a time changes which world is in use.

What a GPU's communicators are asked to do may never end. So they form, end and are aborted on threads of their own,
each with a bound, and a thread that does not come back is left behind.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from ..control.worker_client import EXIT_LOST
from . import objects

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])
ABORTS = _VERSION >= (2, 7)
"""Whether a communicator can be aborted and the process go on: with NCCL from 2.26.2 on, which torch 2.7 brings."""
SAVING = datetime.timedelta(minutes=10)
"""Bound of a single collective of a save: the slowest rank's writing."""
ON_GPU = datetime.timedelta(minutes=60)
"""Bound of a single collective on a GPU by torch's own watchdog."""
ENDING_S = 10.0
"""The longest to wait for the communicators of the world before the last to end."""
LOOK_S = 0.01
IDLE_S = 0.0 if _VERSION >= (2, 5) else 0.2
"""For gloo's threads to let go of a tensor, which takes the GIL: torch 2.4 holds that until they have ended."""
SPAN = 1000
"""Groups that one slot has numbers for."""
FIRST = 0
"""The slot of the world that a training is in."""
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
        self.broken = ""
        """Why its communicators have been aborted: what is on the GPU since then is not to be used."""
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
        """The longest that a single collective of all ranks in host memory may take from now on. Those of a GPU have a
        watch of their own (training/guards/device_watch), and torch's, which ends the process, comes after that."""
        change: Any = getattr(dist, "set_timeout", None) or _c10d._set_pg_timeout
        change(datetime.timedelta(seconds=seconds), self.everyone)
        if (backend := _communicator(self.everyone)) is not None:
            backend._set_default_timeout(ON_GPU)

    @property
    def on_gpu(self) -> bool:
        """Whether it has communicators, which would wait for a lost rank for ever."""
        return self._everyone is not None and _communicator(self._everyone) is not None

    def form_communicator(self, seconds: float, give_up: Callable[[], bool], alone: bool = False) -> bool:
        """Have the communicator of all ranks form now: it would with the first gradients, and without a bound. Every
        rank calls this; whether there is one. alone: also for one rank. Raises RuntimeError after so many seconds, or
        when it is given up."""
        if not self.on_gpu or (self.everyone.size() == 1 and not alone):
            return False
        device, everyone, problem = torch.cuda.current_device(), self.everyone, list[str]()

        def form() -> None:
            try:
                torch.cuda.set_device(device)
                torch.cuda.empty_cache()  # a communicator's memory is not torch's: what the cache holds is not there
                with torch.cuda.stream(torch.cuda.Stream(device)):
                    everyone.allreduce([torch.zeros(1, device="cuda")]).wait()
                    torch.cuda.current_stream().synchronize()
            except RuntimeError as error:
                problem.append(str(error).splitlines()[0])

        thread = threading.Thread(target=form, name="selastic-group-form", daemon=True)
        thread.start()
        until = time.monotonic() + seconds
        while thread.is_alive():
            thread.join(LOOK_S)
            if give_up():
                raise RuntimeError("it was called off while its communicator formed")
            if time.monotonic() > until:
                raise RuntimeError(f"its communicator did not form within {seconds:g} s")
        if problem:
            raise RuntimeError(problem[0])
        return True

    def tell_limits(self) -> None:
        """Say at the start what a world that breaks will cost, where that is more than is promised."""
        if self.on_gpu and not ABORTS:
            _say(
                f"torch {torch.__version__} cannot abort communicators of NCCL, 2.7 can: where a rank is lost all "
                "workers end, and start again from the last checkpoint"
            )

    def abort(self, why: str) -> None:
        """Have whatever its communicators do end, with any result; it returns at once. why: said in the log."""
        if not self.broken and self.on_gpu:
            self.broken = why
            _say(f"{why}: its communicators are aborted")
            _abort(self._held())

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
        on_gpu, held = self.on_gpu, self._forget()
        if not later:
            _end(held)
        elif on_gpu and (broken or self.broken):
            _abort(held)
        elif torch.cuda.is_available() and not broken:
            _communicators.append(held)
        else:
            ending, _left[:] = (held, _left) if broken else (list(_left), held)
            # Not a daemon thread: one that comes back from gloo into an interpreter that ends aborts the process.
            threading.Thread(target=_let_go, args=(ending,), name="selastic-group-end").start()

    def settle(self) -> None:
        """From now on number alike with all worlds that were settled before, in the first slot: those that form beside
        the world in use have another one. Before it has a second group."""
        if FIRST in _slots:
            return
        tables, name = _c10d._world, str(FIRST * SPAN)
        group: Any = self.everyone
        tag, before = f"ptd:{name}", tables.pg_names[group]
        _c10d._unregister_process_group(before)
        group._set_group_name(name)
        _c10d._register_process_group(name, group)
        tables.pg_names[group], tables.pg_to_tag[group] = name, tag
        tables.tags_to_pg[tag] = tables.tags_to_pg.pop(f"ptd:{before}")
        _slots[FIRST] = _slots.pop(self._slot)
        self._slot, self._count = FIRST, FIRST * SPAN + 1

    def _forget(self) -> list[Any]:
        """Nobody finds these groups any more, torch neither; in the order in which they were made."""
        tables, held = _c10d._world, self._held()
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

    def _held(self) -> list[Any]:
        return [group for group, name in _c10d._world.pg_names.items() if self._owns(name)]

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
    """For a world that forms, the first that no world in this process has."""
    return next(slot for slot in itertools.count(FIRST + 1) if slot not in _slots)


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


def _communicator(group: Any) -> Any:
    """What moves a group's CUDA tensors, unless that is gloo, which fails where a rank is lost."""
    if torch.cuda.is_available():
        with contextlib.suppress(RuntimeError):  # there is none
            backend = group._get_backend(torch.device("cuda"))
            return backend if backend.name() != "gloo" else None
    return None


def _abort(groups: list[Any]) -> None:
    """Abort their communicators, and then let go of them. Where that cannot be done this process ends."""
    if not ABORTS:
        _say(f"torch {torch.__version__} cannot abort communicators, 2.7 can: this process ends")
        os._exit(EXIT_LOST)

    def abort() -> None:
        backends = [backend for backend in map(_communicator, reversed(groups)) if backend is not None]
        together = [backend for backend in backends if hasattr(backend, "_group_start")][:1]
        for nccl in together:  # aborts of several may wait for each other (pytorch issue 119797)
            nccl._group_start()
        for backend in backends:
            with contextlib.suppress(RuntimeError):
                backend.abort()
        for nccl in together:
            nccl._group_end()
        with contextlib.suppress(RuntimeError):  # the interpreter ends
            threading.Thread(target=_let_go, args=(groups,), name="selastic-group-end").start()

    threading.Thread(target=abort, name="selastic-group-abort", daemon=True).start()


def _end(groups: list[Any]) -> None:
    """Shut them down, those made last first as torch does, and let go of them. A communicator finishes first what it
    was given, so that one with a lost rank does not end by itself: after ENDING_S it is aborted."""
    time.sleep(IDLE_S)
    while groups:
        group = groups.pop()
        if _communicator(group) is None:
            _shut_down(group)
        else:
            thread = threading.Thread(target=_shut_down, args=(group,), name="selastic-shut-down", daemon=True)
            thread.start()
            thread.join(ENDING_S)
            if thread.is_alive():
                _say(f"communicators of an older world have not ended within {ENDING_S:g} s: they are aborted")
                _abort([group])
        del group


def _let_go(groups: list[Any]) -> None:
    time.sleep(IDLE_S)
    groups.clear()


def _shut_down(group: Any) -> None:
    end = getattr(dist.ProcessGroup, "shutdown", None) or _c10d._shutdown_backend  # of torch 2.4
    with contextlib.suppress(RuntimeError):  # of a group that is broken
        end(group)


def _say(line: str) -> None:
    sys.stderr.write(f"selastic: {line}\n")
    sys.stderr.flush()
