"""This worker's place in a sequence of worlds: entering the first, switching to the next, leaving.

Three homes, one interface: alone, under torchrun's environment, or under the supervisor (SELASTIC_CONTROL). Only the
last one changes. Nothing here knows a model; the caller drops what refers to the old group before it is destroyed.
"""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping, Sequence
from typing import NoReturn

import torch

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.protocol.json_lines import Message

from ..control import copies, cuda_backend, interfaces, job_key
from ..control.worker_client import EXIT_LOST, ComingWorld, WorkerClient, leave_lost
from . import groups
from . import process_group as worlds
from .agreement import EMPTY_VOTE, Vote
from .layout import WHOLE, Layout
from .process_group import Gate, World, WorldNotFormed
from .stores import LOOK_S, Forged


@dataclasses.dataclass(frozen=True, eq=False)
class LeftWorld:
    """What a world was left for, and what it takes to form it again."""

    old: World
    coming: ComingWorld
    batch: int
    source: str

    def gate(self, patience_s: float) -> Gate:
        """Of the old world, announced once more. Its store is still there: World holds it."""
        old = self.old
        again = dataclasses.replace(
            self.coming, generation=old.generation, rank=old.rank, size=old.size, store=None, server=old.store,
            timeout_s=patience_s, one_host=False,
        )  # fmt: skip
        return Gate(again, f".{self.coming.generation}")


ALONE = "accepted: selastic run, or RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT as torchrun sets them"
NO_WORKER = (
    "join() was called in a process that a worker of selastic run has started (torchrun behind it, or "
    "multiprocessing.spawn); accepted: join() in the script itself, which selastic run starts once per GPU"
)
OWN_GROUP = (
    "the script called torch.distributed.init_process_group(); leave it out: under selastic run the job makes the "
    "process groups, a new one at each resize"
)
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
BROKEN_WORDS = ("gloo", "nccl", "connection closed", "connection reset", "broken pipe", "timed out", "socket")


class Membership:
    def __init__(self, environ: MutableMapping[str, str] = os.environ, layout: Layout = WHOLE) -> None:
        """layout: of every world. Raises TrainingError when a fixed world is not whole replicas."""
        self.layout = layout
        self.worker = environ.get("SELASTIC_WORKER", f"rank{environ.get('RANK', '0')}")
        self.client: WorkerClient | None = None
        self.batch = int(environ.get("SELASTIC_BATCH") or 0)
        self.source = ""
        self.forming_s = self.first_step_s = worlds.COLLECTIVE_TIMEOUT.total_seconds()
        self.on_leave: Callable[[], None] = lambda: None
        """What to finish before this process ends, in bounded time."""
        self.on_wait: Callable[[ComingWorld], None] = lambda coming: None
        """What a joiner does while the old world still trains."""
        control = environ.get("SELASTIC_CONTROL")
        self.world: World | None = None
        if control:
            key = job_key.take(environ)
            if not key:
                raise TrainingError(NO_WORKER)
            self.client = WorkerClient(control, key, self.worker, environ.get("SELASTIC_LISTEN", ""))
        elif "RANK" in environ and "WORLD_SIZE" in environ:
            self.world = worlds.laid_out(worlds.from_environment(), layout)
        else:
            if why := copies.refusal(environ, "this script", ALONE):
                raise TrainingError(why)
            self.world = worlds.laid_out(World(generation=0, rank=0, size=1), layout)
        self._interface_set = GLOO_INTERFACE in environ
        self.local_rank = cuda_backend.own_device(environ)

    def device(self) -> torch.device:
        """cuda:<local rank>, or the CPU."""
        if not torch.cuda.is_available():
            return torch.device("cpu")
        device = torch.device("cuda", self.local_rank)
        torch.cuda.set_device(device)
        return device

    def enter(self, about: Message) -> World:
        """The first world. Under the supervisor this waits for it, and says what is ready, and `about` it.

        Raises TrainingError where the script has made a process group of its own, beside which no world can form."""
        if self.client is None:
            if self.world is None:
                raise AssertionError("no world and no supervisor")
            return self.world
        if torch.distributed.is_initialized():
            raise TrainingError(OWN_GROUP)
        self.client.send({"type": "ready", "worker": self.worker, "takes_batches": True, **about})
        while True:
            coming = self.client.wait_held()
            if coming.leave:
                self.exit_process()
            try:
                self._use(self._join(self.client, coming))
            except WorldNotFormed as error:
                if not self.client.lost and not self.client.still_coming(coming):
                    continue  # called off: wait for the next one
                self.fail(coming.generation, str(error), missing=error.missing)
            self._settle(coming)
            if coming.rank == 0 and self.world is not None:
                self.world.owned.tell_limits()
            return self.world  # type: ignore[return-value]

    def _join(self, client: WorkerClient, coming: ComingWorld) -> World:
        def called_off() -> bool:
            return client.lost or not client.still_coming(coming)

        # before anybody has arrived: a rank that left afterwards would take the others' store with it
        self.layout.check(coming.size)
        gate = Gate(coming)
        gate.arrive(self._reached)
        if coming.source == "survivor":
            self.on_wait(coming)
            gate.wait_switch(called_off)
        gate.wait_open(called_off)
        return self._formed(gate)

    def _settle(self, coming: ComingWorld) -> None:
        if self.client is not None:
            self.client.taken(coming)
        self.batch, self.source = coming.batch, coming.source
        self.forming_s, self.first_step_s = coming.forming_s, coming.first_step_s

    def coming(self) -> ComingWorld | None:
        """The world that this worker could switch to."""
        return self.client.held() if self.client is not None and not self.client.idle else None

    def vote(self, save: bool, stop: bool, square: float, ready: bool = True) -> tuple[ComingWorld | None, Vote]:
        """This rank's vote with the step now ending, and the world it is about.

        ready: to switch to a world that is coming.
        """
        if self.client is None or self.client.idle:
            return None, Vote(save=save, stop=stop, square=square) if save or stop or square else EMPTY_VOTE
        coming = self.client.held() if ready else None
        if coming is not None and not self._joiners_are_there(coming):
            coming = None
        if self.client.save_wanted:
            self.client.save_wanted, save = False, True
        stop = stop or self.client.ends_at is not None
        return coming, Vote(coming.generation if coming is not None else 0, save, stop, square)

    def _joiners_are_there(self, coming: ComingWorld) -> bool:
        """Rank 0 votes for a world only once all joiners have got through to its store: until then nobody leaves the
        old one, and a joiner that does not get through costs no pause."""
        if self.client is None or coming.server is None or not coming.joiners:
            return True
        patience_s, missing = coming.timeout_s + worlds.ARRIVAL_S, list[int]()
        try:
            gate = Gate(coming)
            arrived = gate.arrived()
            if arrived >= coming.joiners:
                return True
            problem = (
                f"world {coming.generation}: {arrived} of {coming.joiners} new workers came within {patience_s:g} s"
            )
        except WorldNotFormed as error:
            problem, patience_s = str(error), 0.0
        if time.monotonic() - coming.since > patience_s:
            self.client.taken(coming)
            with contextlib.suppress(WorldNotFormed):
                missing = gate.missing()
            self.stayed(coming, problem, missing)
        return False

    def leave(
        self, coming: ComingWorld, position: Message, rescue: Callable[[list[int]], None], drop: Callable[[], None]
    ) -> tuple[LeftWorld, World | None] | None:
        """Leave the current world for the coming one, which has formed by then; every member of the current one calls
        this at the same step.

        `rescue` is called in the old world once it is certain that it ends, with the new rank of every old one (-1 for
        one that leaves). `drop` lets go of all that refers to the old group. None: the coming world has not formed
        everywhere, and the old one, still whole, goes on. Who gets no world has no place in the new one. `quiesced`
        with the `position` tells the supervisor that the old world is left.
        """
        client, old = self.client, self.world
        if client is None or old is None:
            raise AssertionError("only a world under the supervisor changes")
        worlds.bound(old, coming.timeout_s + 3 * coming.forming_s)  # for the others, while they form
        new, problem, missing = None, "", list[int]()
        if not coming.leave:
            try:
                gate = Gate(coming)
                gate.announce_switch()
                gate.arrive(self._reached)
                gate.wait_open(lambda: client.lost or not client.still_coming(coming))
                new = self._formed(gate)
            except WorldNotFormed as error:
                problem, missing = str(error), error.missing
        if not problem and not client.commit(coming):
            problem = f"world {coming.generation} was called off"
        calls = worlds.gather(old, int(not problem), -1 if coming.leave else coming.rank)
        if not all(formed for formed, _ in calls):
            if new is not None:
                new.owned.leave(later=True, broken=True)
            client.taken(coming)
            self.stayed(coming, problem or f"world {coming.generation} did not form", missing)
            worlds.bound(old)
            return None
        left = LeftWorld(old, coming, self.batch, self.source)
        rescue([rank for _, rank in calls])
        client.send({"type": "quiesced", "generation": coming.generation, **position})
        drop()
        old.owned.leave(later=True)
        if new is None:
            client.taken(coming)
        else:
            self._settle(coming)
            self._use(new)
        return left, new

    def take_batch(self, coming: ComingWorld, position: Message) -> bool:
        """Go on in the group as it is, with the coming batch and under the coming number; every member calls this at
        the same step. False: the change was called off, on some rank at least, and nothing has changed on any."""
        client, old = self.client, self.world
        if client is None or old is None:
            raise AssertionError("only a world under the supervisor changes")
        committed = client.commit(coming)
        with self.ending_when_broken():
            calls = worlds.gather(old, int(committed))
        client.taken(coming)
        if not all(answer for (answer,) in calls):
            self.stayed(coming, f"world {coming.generation} was called off")
            return False
        client.send({"type": "quiesced", "generation": coming.generation, **position})
        self.world, self.batch = dataclasses.replace(old, generation=coming.generation), coming.batch
        return True

    def _formed(self, gate: Gate) -> World:
        """The group of those who have arrived, not in use yet. Raises WorldNotFormed."""
        client, generation = self.client, gate.coming.generation
        self._choose_interface(gate)
        called_off = (lambda: client.lost or client.called_off(generation)) if client is not None else lambda: False
        return worlds.laid_out(worlds.form(gate, called_off), self.layout)

    def _use(self, world: World) -> None:
        world.owned.settle()
        groups.use(world.groups)
        self.world = world

    @property
    def _reached(self) -> str:
        return self.client.supervisor_address if self.client is not None and not self.client.is_local else ""

    def _choose_interface(self, gate: Gate) -> None:
        """Have gloo use the network that leads to the supervisor, and the loopback where all members are on one host.
        By itself it takes what the host's own name means. What the user has set stays."""
        if self.client is None or self._interface_set:
            return
        own = gate.reached() if interfaces.is_loopback(self.client.own_address) else self.client.own_address
        if gate.coming.one_host:
            own = interfaces.LOOPBACK
        if found := interfaces.with_address(own):
            os.environ[GLOO_INTERFACE] = found
        else:
            os.environ.pop(GLOO_INTERFACE, None)

    def back(self, left: LeftWorld, patience_s: float) -> None:
        """The old world again, in this process and under its old number; each of its members calls this.

        patience_s: how much later than this rank another may find out. Raises WorldNotFormed.
        """
        if self.world is not None:
            self.world.owned.leave(later=True, broken=True)
        self.batch, self.source = left.batch, left.source
        gate = left.gate(patience_s)
        gate.arrive(self._reached)
        gate.wait_open(lambda: self.client is not None and self.client.lost)
        self._use(self._formed(gate))

    def wait_dismissed(self, left: LeftWorld) -> str:
        """Somebody who leaves waits until the new world has done a step, and goes; when the others form their old world
        again, this returns why. The supervisor's word or its end bounds the wait."""
        client, generation = self.client, left.coming.generation
        self.on_leave()
        gate: Gate | None = left.gate(0.0)
        while True:
            if client is None or client.lost:
                self.exit_process(EXIT_LOST)
            if client.dismissed(generation):
                self.exit_process()
            try:
                if gate is not None and gate.begun():
                    return f"world {generation} did not come about"
            except RuntimeError:
                gate = None  # rank 0 has let go of the old world's store, or is gone: there is no way back
            time.sleep(LOOK_S)

    def stayed(self, coming: ComingWorld, reason: str, missing: Sequence[int] = ()) -> None:
        """Report that the coming world cannot be formed, as these ranks have not come, and the old one goes on."""
        if self.client is not None:
            fields = {"generation": coming.generation, "error": reason, "survived": True, "missing": list(missing)}
            self.client.send({"type": "failed", **fields})

    def await_end(self, client: WorkerClient) -> NoReturn:
        """What has been trained is saved, and the supervisor, or Slurm, ends this process."""
        while not client.lost:
            time.sleep(LOOK_S)
        self.kill_children()
        leave_lost()

    def fail(self, generation: int, error: str, **more: bool | list[int]) -> NoReturn:
        """This worker's world cannot be formed: report it, and `more` of it, and leave; the supervisor starts another
        generation."""
        sys.stderr.write(f"selastic: {self.worker}: {error}\n")
        if self.client is None:
            raise TrainingError(error)
        self.client.send({"type": "failed", "generation": generation, "error": error, **more})
        self.exit_process(EXIT_LOST)

    def what_broke(self, error: RuntimeError) -> str:
        """In one line, when this error is a collective's in a world that changes; else nothing."""
        text = str(error).lower()
        if self.client is None or self.world is None or self.world.size == 1:
            return ""
        if self.world.owned.broken:
            return self.world.owned.broken
        known = isinstance(error, (torch.distributed.DistError, Forged))
        if not known and not any(word in text for word in BROKEN_WORDS):
            return ""
        return f"world {self.world.generation} broke: {str(error).splitlines()[0]}"

    @contextlib.contextmanager
    def ending_when_broken(self) -> Iterator[None]:
        """Under the supervisor this worker leaves when a collective in here fails; elsewhere the error is raised."""
        try:
            yield
        except RuntimeError as error:
            why = self.what_broke(error)
            if why and self.world is not None:
                self.fail(self.world.generation, why)
            raise

    def problem_in(self, run: Callable[[], object]) -> str:
        """Why no world came of `run`, in one line; "" when it succeeds. The error's frames, which hold on to the group,
        are gone when this returns."""
        try:
            run()
        except WorldNotFormed as error:
            return str(error)
        except RuntimeError as error:
            problem = self.what_broke(error)
            if not problem:
                raise
            return problem
        return ""

    def exit_process(self, code: int = 0) -> NoReturn:
        """Leave at once: what a torch process does at exit takes longer than many a resize."""
        self.on_leave()
        if self.client is not None:
            self.client.flush()
        self.kill_children()
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)

    @staticmethod
    def kill_children() -> None:
        """End this process's own loader workers, which would notice only seconds later."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # DataLoader's handler takes this for an accident
        for child in multiprocessing.active_children():
            child.kill()
