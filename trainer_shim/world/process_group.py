"""A world's forming, and what its ranks tell each other in numbers.

A world forms in two phases, each bounded. First every member checks in at the generation's own store; once all entries
are there rank 0 opens the gate. Nothing of the old world has been touched until then, so a world that is not complete
can still be given up. Then the group is made under a prefix that no other generation uses, and where there are GPUs its
communicator, which else forms with the first gradients, without a bound; both are used once all ranks have them. The
old world is whole until then. The caller has to drop its DistributedDataParallel object before the world leaves its
groups: one that outlives its group can deadlock in gloo's destructor (pytorch issue 56297).
"""

import contextlib
import dataclasses
import datetime
import os
import socket
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
from . import groups, objects
from .groups import Groups
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
POLL_S = 1.0


class WorldNotFormed(TrainingError):
    """Not everyone arrived in time, or the world was called off. `missing`: the ranks that have not come."""

    def __init__(self, sentence: str, missing: Sequence[int] = ()) -> None:
        super().__init__(sentence)
        self.missing = list(missing)


@dataclass(frozen=True)
class World:
    """One generation's place among its ranks."""

    generation: int
    rank: int
    size: int
    groups: Groups | None = None
    """Its own; None in a process alone, that no other one can join."""
    store: KeyStore | None = None
    """Held as long as the world lives: rank 0's handle is the server."""
    layout: Layout = WHOLE

    @property
    def unit(self) -> int:
        """Ranks that hold one replica of the model together; neighbours in rank."""
        return self.layout.unit

    @property
    def grouped(self) -> bool:
        return self.groups is not None

    @property
    def owned(self) -> Groups:
        """Its groups, of which it has some."""
        if self.groups is None:
            raise AssertionError("a process alone has no groups")
        return self.groups

    @property
    def group(self) -> dist.ProcessGroup:
        """That of all ranks."""
        return self.owned.everyone

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
    return World(generation=0, rank=rank, size=size, groups=groups.adopt())


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
    """Make the world's groups once the gate is open: on all of its ranks, or else everyone raises WorldNotFormed, and
    soon when give_up says so. Another world that is there goes on; which one is in use is for the caller to say."""
    coming = gate.coming
    made: Groups | None = None
    store = SealedStore(gate.base, coming.key, f"{gate.name}/pg", give_up, coming.forming_s)
    try:
        slot = groups.free_slot() if coming.rank == 0 else int(store.get("slot"))
        if coming.rank == 0:
            store.set("slot", str(slot))
        # Everyone has checked in, so forming and handing over state are short; bound() then allows for long waits.
        # Who turns back meanwhile leaves the others connecting: who does the same in vain has to be back in time too.
        timeout = datetime.timedelta(seconds=coming.forming_s / CONNECT_TRIES)
        first = timeout if LATER_BOUNDS else COLLECTIVE_TIMEOUT
        groups.wait_left()
        with deaf_when_made(lambda: made is None or getattr(made.everyone, "bound_device_id", None) is None):
            made = groups.make(backend(), store, coming.rank, coming.size, slot, gate.name, first)
            complete(store, coming.size, timeout)
        if made.form_communicator(coming.forming_s, give_up):
            complete(store, coming.size, timeout, "communicator")
        if isinstance(gate.base, WorldStore):
            gate.base.close_door()
    except (RuntimeError, ValueError) as error:
        if made is not None:
            made.leave(later=True, broken=True)
        raise WorldNotFormed(f"world {coming.generation} did not form: {error}") from None
    world = World(coming.generation, coming.rank, coming.size, made, store=gate.base)
    bound(world, coming.forming_s)
    return world


def complete(store: Store, size: int, timeout: datetime.timedelta, what: str = "") -> None:
    """Wait until every rank has made its group, or `what` of it. Raises what the store raises when one does not.

    A rank that gives up may leave connections behind that nobody closes: gloo keeps those that came for a group which
    is not there any more. Who computed with them would wait for as long as a communication may take.
    """
    if store.add(f"formed{what}", 1) == size:
        store.set(f"complete{what}", "1")
    store.wait([f"complete{what}"], timeout)


def bound(world: World, seconds: float = COLLECTIVE_TIMEOUT.total_seconds()) -> None:
    """The longest that a single collective may take from now on; at least as long as an evaluation on rank 0 does."""
    if world.groups is not None and world.store is not None:  # one that torchrun has made is left as it is
        world.groups.bound(seconds)


def gather(world: World, *own: int) -> list[list[int]]:
    """Every rank's numbers, by rank."""
    if not world.grouped or world.size == 1:
        return [list(own)]
    mine = torch.tensor(own, dtype=torch.int64)
    out = [torch.zeros_like(mine) for _ in range(world.size)]
    world.group.allgather([out], [mine]).wait()
    return [entry.tolist() for entry in out]


def total(world: World, own: float) -> float:
    """The sum over the ranks."""
    found = torch.tensor([own], dtype=torch.float64)
    if world.grouped and world.size > 1:
        world.group.allreduce([found]).wait()
    return float(found)


def share(world: World, value: Any) -> Any:
    """Rank 0's value, on every rank."""
    return objects.share(value, world.group) if world.grouped and world.size > 1 else value
