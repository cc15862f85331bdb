"""The process group of one generation: forming it, leaving it, and moving state inside it.

A world forms in two phases, each bounded. First every member checks in at the generation's own store; once all entries
are there rank 0 opens the gate. Nothing of the old world has been touched until then, so a world that is not complete
can still be given up. Then the group is made under a prefix that no other generation uses, and used once all ranks have
made it. The caller has to drop its DistributedDataParallel object before `leave`: one that outlives its group can
deadlock in gloo's destructor (pytorch issue 56297).
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from slurm_elastic.protocol.errors import TrainingError

from ..control import cuda_backend
from ..control.worker_client import ComingWorld
from ..control.world_store import KeyStore, RemoteStore, WorldStore
from . import objects
from .layout import WHOLE, Layout
from .listeners import deaf_when_made
from .stores import Forged, SealedStore

COLLECTIVE_TIMEOUT = datetime.timedelta(minutes=60)
"""Bound of a single collective. Rank 0 may evaluate for long in job.once() while the others wait."""
CONNECT_TRIES = 5
"""gloo tries this often to connect to a member that does not answer, each time for as long as its timeout."""
LATER_BOUNDS = hasattr(dist.ProcessGroup, "set_timeout")
"""Whether gloo heeds another timeout than a group's first one; up to torch 2.8 at least it does not. There who connects
to a member that has given up waits until its supervisor ends it, and a first step waits for a joiner that is stopped,
not dead, as long as any collective may take."""
ARRIVAL_S = 5.0
"""How much later than a joiner, which knows why it does not get through, rank 0 gives up waiting for it."""
ENDING_S = 10.0
"""The longest to wait for the communicators of the world before the last to end."""
POLL_S = 1.0


class WorldNotFormed(TrainingError):
    """Not everyone arrived in time, or the world was called off. `missing`: the ranks that have not come."""

    def __init__(self, sentence: str, missing: Sequence[int] = ()) -> None:
        super().__init__(sentence)
        self.missing = list(missing)


@dataclass(frozen=True)
class World:
    """One generation's place in the group. `grouped`: torch.distributed is initialised for it."""

    generation: int
    rank: int
    size: int
    grouped: bool
    store: KeyStore | None = None
    """Held as long as the world lives: rank 0's handle is the server."""
    patient: object = None
    """Held because torch does not hold it."""
    layout: Layout = WHOLE

    @property
    def unit(self) -> int:
        """Ranks that hold one replica of the model together; neighbours in rank."""
        return self.layout.unit

    @property
    def replicas(self) -> int:
        """Data-parallel width: what a global batch is shared out over."""
        return self.size // self.unit

    @property
    def replica(self) -> int:
        """Which replica this rank is a part of."""
        return self.rank // self.unit

    @property
    def speaks(self) -> bool:
        """Whether this rank stands for its replica where every replica is counted once."""
        return self.rank % self.unit == 0


def from_environment() -> World:
    """The fixed world that torchrun (or mpirun with the same variables) describes."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if not dist.is_initialized():
        dist.init_process_group(backend(), rank=rank, world_size=size, timeout=COLLECTIVE_TIMEOUT)
    return World(generation=0, rank=rank, size=size, grouped=True)


def laid_out(world: World, layout: Layout) -> World:
    """The same with replicas of several ranks each. Raises TrainingError when they do not come out even."""
    layout.check(world.size)
    return dataclasses.replace(world, layout=layout)


def backend() -> str:
    """gloo for tensors in host memory, with what SELASTIC_CUDA_BACKEND says beside it where there are GPUs."""
    return f"cpu:gloo,cuda:{cuda_backend.chosen(os.environ)}" if torch.cuda.is_available() else "gloo"


class Gate:
    """Everyone's arrival for one generation. Usable before, and independent of, any process group."""

    def __init__(self, coming: ComingWorld, prefix: str = "") -> None:
        """prefix: what sets this gate apart from an earlier one in the same store."""
        if coming.store is None and coming.server is None:
            raise WorldNotFormed(f"world {coming.generation} has no store; its rank 0 has to open one")
        self.coming = coming
        host, port = coming.store or ("", 0)
        try:
            self.base: KeyStore = coming.server or RemoteStore(host, port, coming.key, coming.timeout_s)
        except OSError as error:
            raise WorldNotFormed(
                f"{socket.gethostname()} does not reach the store of world {coming.generation} at {host} port {port}, "
                f"see --interface ({error.strerror or error})"
            ) from None
        self.name = f"g{coming.generation}{prefix}"
        self.store = SealedStore(self.base, coming.key, self.name)
        self._places = [f"here/{rank}" for rank in range(coming.size)]

    def arrive(self, reached: str = "") -> None:
        """Check in. Raises WorldNotFormed when the store is gone.

        reached: the address by which this member, on another host, reaches rank 0's host.
        """
        with self._asking():
            if reached:
                self.store.set("reached", reached)
            self.store.set(self._places[self.coming.rank], "1")

    def arrived(self) -> int:
        """How many have checked in. Raises WorldNotFormed when the store is gone."""
        with self._asking():
            return self.store.written(self._places)

    def missing(self) -> list[int]:
        """The ranks that have not checked in. Raises WorldNotFormed when the store is gone."""
        with self._asking():
            return [rank for rank, place in enumerate(self._places) if not self.store.check([place])]

    def reached(self) -> str:
        """Of a gate that is open: an address by which other hosts reach rank 0's; "" where all are on that one."""
        with self._asking():
            return self.store.get("reached").decode() if self.store.check(["reached"]) else ""

    def begun(self) -> bool:
        """Whether anybody has checked in."""
        return self.store.written(self._places) > 0

    def announce_switch(self) -> None:
        """A survivor says that the old world has reached its last step: from now on waiting is bounded."""
        with self._asking():
            self.store.set("switching", "1")

    def wait_switch(self, give_up: Callable[[], bool]) -> None:
        """A joiner waits for the old world's last step. Only `give_up` bounds it: a step may take its time."""
        while not self._wait(["switching"], POLL_S):
            if give_up():
                raise WorldNotFormed(f"world {self.coming.generation} was called off")

    def wait_open(self, give_up: Callable[[], bool] = lambda: False) -> None:
        """Wait for everyone, at most the world's timeout. Raises WorldNotFormed."""
        deadline = time.monotonic() + self.coming.timeout_s
        wanted = self._places if self.coming.rank == 0 else ["open"]
        while not self._wait(wanted, max(0.01, min(POLL_S, deadline - time.monotonic()))):
            if give_up():
                raise WorldNotFormed(f"world {self.coming.generation} was called off")
            if time.monotonic() >= deadline:
                raise WorldNotFormed(
                    f"world {self.coming.generation}: {self.arrived()} of {self.coming.size} workers arrived within "
                    f"{self.coming.timeout_s:g} s",
                    self.missing(),
                )
        if self.coming.rank == 0:
            self.store.set("open", "1")

    def _wait(self, keys: list[str], seconds: float) -> bool:
        with self._asking(), contextlib.suppress(dist.DistStoreError):
            self.store.wait(keys, datetime.timedelta(seconds=seconds))
            return self.store.written(keys) == len(keys)
        return False

    @contextlib.contextmanager
    def _asking(self) -> Iterator[None]:
        """Raises WorldNotFormed where the store is gone, or a stranger writes to it."""
        try:
            yield
        except Forged as error:
            raise WorldNotFormed(f"world {self.coming.generation} does not form: {error}") from None
        except RuntimeError as error:
            raise WorldNotFormed(f"the store of world {self.coming.generation} is gone: {error}") from None


def form(gate: Gate, give_up: Callable[[], bool] = lambda: False) -> World:
    """Make the group once the gate is open: on all of its ranks, or else everyone raises WorldNotFormed, and soon when
    give_up says so."""
    coming = gate.coming
    store = SealedStore(gate.base, coming.key, f"{gate.name}/pg", give_up, coming.forming_s)
    try:
        # torch puts a count of groups into the store's keys, and sets it back when a group is destroyed: not when one
        # did not form. Where that has happened on some ranks only they would look for each other under two names.
        dist.distributed_c10d._world.group_count = 0
        # Everyone has checked in, so forming and handing over state are short; bound() then allows for long waits.
        # Who turns back meanwhile leaves the others connecting: who does the same in vain has to be back in time too.
        timeout = datetime.timedelta(seconds=coming.forming_s / CONNECT_TRIES)
        first = timeout if LATER_BOUNDS else COLLECTIVE_TIMEOUT
        excepthook = sys.excepthook
        wait_left()
        with deaf_when_made(lambda: getattr(dist.group.WORLD, "bound_device_id", None) is None):
            dist.init_process_group(backend(), store=store, rank=coming.rank, world_size=coming.size, timeout=first)
            sys.excepthook = excepthook  # torch puts one more around it, which prefixes each line, with every group
            complete(store, coming.size, timeout)
        if isinstance(gate.base, WorldStore):
            gate.base.close_door()
        objects.begin(gate.name)
    except (RuntimeError, ValueError) as error:
        leave(later=True, broken=True)
        raise WorldNotFormed(f"world {coming.generation} did not form: {error}") from None
    world = World(coming.generation, coming.rank, coming.size, grouped=True, store=gate.base, patient=store)
    bound(world, coming.forming_s)
    return world


def complete(store: Store, size: int, timeout: datetime.timedelta) -> None:
    """Wait until every rank has made its group. Raises what the store raises when one does not.

    A rank that gives up may leave connections behind that nobody closes: gloo keeps those that came for a group which
    is not there any more. Who computed with them would wait for as long as a communication may take.
    """
    if store.add("formed", 1) == size:
        store.set("complete", "1")
    store.wait(["complete"], timeout)


def bound(world: World, seconds: float = COLLECTIVE_TIMEOUT.total_seconds()) -> None:
    """The longest that a single collective may take from now on; at least as long as an evaluation on rank 0 does."""
    change = getattr(dist, "set_timeout", None) or getattr(dist.distributed_c10d, "_set_pg_timeout", None)
    if world.grouped and world.store is not None and change is not None:
        change(datetime.timedelta(seconds=seconds), None)


def is_grouped() -> bool:
    """Whether this process is in a default process group, whoever made it."""
    return bool(dist.is_initialized())


def leave(later: bool = False, broken: bool = False) -> None:
    """Destroy the process group. Every DistributedDataParallel object of it has to be gone by now.

    later: the process goes on, and need not wait for the group's own threads to end. broken: nor may the other members
    wait for this one: its connections close now.
    """
    if dist.is_initialized():
        destroy(dist.group.WORLD, later, broken)


_left: list[Any] = []
"""The groups that were left last."""
_communicators: list[list[Any]] = []
"""Of groups that were left, with NCCL's communicators, which end once the next world has made its own."""
_ending: threading.Thread | None = None
"""What ends them."""


def destroy(group: Any, later: bool, broken: bool = False) -> None:
    """Destroy a group; `later` leaves its destructor, which waits 20 ms for gloo's threads, to a thread of its own, and
    NCCL's communicators to end_left(): NCCL waits for one of its threads that looks up every 500 ms only.

    Unless it is broken, the first is done with the next call only: just left, the group's threads may still let go of a
    tensor, which takes the GIL, and torch 2.4 holds that while it waits for them to end. By then they are idle.
    """
    named = getattr(dist.distributed_c10d._world, "pg_map", ()) if group is dist.group.WORLD else ()
    held = [group, *named]  # a mesh's own groups end with the default one
    beside = later and torch.cuda.is_available() and hasattr(group, "shutdown")
    if beside and named:
        dist.distributed_c10d._world.pg_names.clear()  # of these destroy_process_group() waits for their communicators
    del group, named
    dist.destroy_process_group(held[0])
    if beside:
        _communicators.append(held)
    elif later and not torch.cuda.is_available():
        if broken:
            ending = held
        else:
            ending, _left[:] = list(_left), held
            held = []
        # Not a daemon thread: one that comes back from gloo into an interpreter that ends aborts the process.
        threading.Thread(target=ending.clear, name="selastic-group-end").start()


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
    that end take memory of the GPU. No more than two groups are left without an end."""
    if len(_communicators) > 1:
        end_left()
    if _ending is not None:
        _ending.join(ENDING_S)


def _end(groups: list[Any]) -> None:
    """Shut them down, those made last first as torch does, and let go of them."""
    while groups:
        group = groups.pop()
        if group not in groups:  # the default one is among those that torch has names of, too
            with contextlib.suppress(RuntimeError):  # of a group that is broken
                group.shutdown()


def gather(world: World, *own: int) -> list[list[int]]:
    """Every rank's numbers, by rank."""
    if not world.grouped or world.size == 1:
        return [list(own)]
    mine = torch.tensor(own, dtype=torch.int64)
    out = [torch.zeros_like(mine) for _ in range(world.size)]
    dist.all_gather(out, mine)
    return [entry.tolist() for entry in out]


def total(world: World, own: float) -> float:
    """The sum over the ranks."""
    found = torch.tensor([own], dtype=torch.float64)
    if world.grouped and world.size > 1:
        dist.all_reduce(found)
    return float(found)


def share(world: World, value: Any) -> Any:
    """Rank 0's value, on every rank."""
    return objects.share(value) if world.grouped and world.size > 1 else value
