"""The worker's connection to the supervisor: one daemon thread that reads what comes and writes what is queued. Where
this worker is rank 0 of a coming world, the same thread serves that world's store.

Nothing here blocks training: sending puts a line in a queue, and a full queue of reports loses its oldest. The thread
never touches a process group; it only remembers which world was announced. Losing the connection means that the
supervisor is gone: the worker leaves with code 75 after its next step, or after LOST_GRACE_S by force.
No torch here.
"""

import math
import os
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from slurm_elastic.protocol.errors import TrainingError
from slurm_elastic.protocol.json_lines import Message, seconds, text, whole

from . import handshake, interfaces
from .connection import Connection
from .event_loop import Loop
from .world_store import KeyStore, WorldStore

EXIT_LOST = 75
"""EX_TEMPFAIL: try again. Also the code of a worker whose world did not form."""
LOST_GRACE_S = 30.0
CONNECT_S = 30.0
MAX_REPORTS = 64
TICK_S = 0.25


@dataclass(eq=False)
class ComingWorld:
    generation: int
    rank: int = -1
    size: int = 0
    batch: int = 0
    leave: bool = False
    source: str = "survivor"
    timeout_s: float = 60.0
    """For everyone's arrival."""
    forming_s: float = 30.0
    """For one communication while the group forms and state is handed over."""
    first_step_s: float = 600.0
    """For one communication in the first step."""
    joiners: int = 0
    """How many of its members come from outside the old world."""
    in_place: bool = False
    """The old world as it is, with another batch: no store, no group, nobody comes or goes."""
    one_host: bool = False
    """Whether all of its members are on one host."""
    since: float = field(default_factory=time.monotonic)
    key: str = field(default="", repr=False)
    """The job's, with which its members seal what they tell each other."""
    store: tuple[str, int] | None = None
    server: KeyStore | None = field(default=None, repr=False)
    """The store itself, where this worker is the new rank 0."""

    @property
    def complete(self) -> bool:
        """Whether this worker could switch now. Only a group that is to form needs a store."""
        return self.leave or self.in_place or self.store is not None


def _world(message: Message) -> ComingWorld:
    """What a supervisor's message says of a world."""
    given = ComingWorld(whole(message, "generation"))
    return ComingWorld(
        given.generation,
        rank=whole(message, "rank", -1, default=given.rank),
        size=whole(message, "size", default=given.size),
        batch=whole(message, "batch", default=given.batch),
        leave=bool(message.get("leave")),
        source=text(message, "source", given.source),
        timeout_s=seconds(message, "timeout_s", given.timeout_s),
        forming_s=seconds(message, "forming_s", given.forming_s),
        first_step_s=seconds(message, "first_step_s", given.first_step_s),
        joiners=whole(message, "joiners", default=given.joiners),
        in_place=bool(message.get("in_place")),
        one_host=bool(message.get("one_host")),
    )


class WorkerClient:
    """See the module. Methods may be called from any thread."""

    def __init__(self, address: str, key: str, worker: str, listen: str = "") -> None:
        """listen: the address on which stores listen; "" for all of this host's."""
        self.worker = worker
        self.on_tick: Callable[[], None] = lambda: None
        host, _, port = address.rpartition(":")
        self._host = host.strip("[]")
        self._listen, self._key = listen, key
        self._changed = threading.Condition()
        self._coming: ComingWorld | None = None
        self._stores: dict[int, tuple[str, int]] = {}
        self.save_wanted = False
        """The supervisor asks for a checkpoint."""
        self.stalled = False
        """No step comes any more, and the supervisor is about to end the world."""
        self.ends_at: float | None = None
        """When this process will be killed (time.monotonic): the training is to stop. None: it is not."""
        self._end_s = LOST_GRACE_S
        """From Slurm's SIGTERM to that, where nobody says it any more."""
        self._last_generation = self._off = self._committed = self._dismissed = -1
        self.lost = False
        self.report_s = 0.0
        """Seconds between two reports, as the supervisor wants it; 0: it has not said."""
        self._closing = False
        self._out: deque[Message] = deque()
        self._reports: deque[Message] = deque(maxlen=MAX_REPORTS)
        hello = {"kind": "worker", "worker": worker, "pid": os.getpid()}
        self._socket = _connect(self._host, int(port), key, hello)
        self.own_address = str(self._socket.getsockname()[0])
        """Of this host, on the network that leads to the supervisor."""
        self.supervisor_address = str(self._socket.getpeername()[0])
        self._loop = Loop()
        self._connection = Connection(self._loop, self._socket, self._take, lambda connection: self._loop.stop(), _tell)
        self._thread = threading.Thread(target=self._run, name="selastic-link", daemon=True)
        self._thread.start()

    # -- what the training thread asks --------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether nothing is wanted of this worker, as nearly always: asked in every step, and without the lock."""
        return self._coming is None and not self.save_wanted and self.ends_at is None

    @property
    def is_local(self) -> bool:
        """Whether this worker is on the supervisor's host."""
        return interfaces.is_loopback(self.own_address) or self.own_address == self.supervisor_address

    def held(self) -> ComingWorld | None:
        """The announced world, once this worker holds all it needs to switch to it."""
        with self._changed:
            coming = self._coming
            return coming if coming is not None and coming.complete else None

    def wait_held(self) -> ComingWorld:
        """Block until there is a world to enter. Leaves the process when the supervisor is lost."""
        with self._changed:
            while True:
                if self.lost:
                    leave_lost()
                if self._coming is not None and self._coming.complete:
                    return self._coming
                self._changed.wait()

    def taken(self, coming: ComingWorld) -> None:
        """This world is now the worker's own (or has failed): it is not coming any more."""
        with self._changed:
            self._last_generation = max(self._last_generation, coming.generation)
            if self._coming is not None and self._coming.generation <= coming.generation:
                self._coming = None

    def still_coming(self, coming: ComingWorld) -> bool:
        """Whether nobody has called this world off."""
        with self._changed:
            return self._coming is coming

    def commit(self, coming: ComingWorld) -> bool:
        """Leave for this world, unless it has been called off. From here on only a lost member calls it off: were each
        member to turn back wherever the word meets it, some would wait for others."""
        with self._changed:
            if self._coming is not coming:
                return False
            self._committed = coming.generation
            return True

    def called_off(self, generation: int) -> bool:
        """Whether the supervisor wants nothing more of a world, even of one already left for."""
        with self._changed:
            return generation == self._off

    def dismissed(self, generation: int) -> bool:
        """Whether this world, in which this worker has no place, has come."""
        with self._changed:
            return self._dismissed >= generation

    def send(self, message: Message) -> None:
        """Queue a message; it is sent in order."""
        with self._changed:
            self._out.append(message)
        self._loop.call(self._write)

    def report(self, message: Message) -> None:
        """Queue a report; of more than MAX_REPORTS unsent ones the oldest are lost."""
        with self._changed:
            self._reports.append(message)
        self._loop.call(self._write)

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Wait until everything queued has been handed to the kernel; False when that took too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self.lost or self._all_sent(), timeout_s)

    def close(self) -> None:
        """Send what is queued, then close. It does not matter if the supervisor is gone afterwards."""
        self.flush()
        self._closing = True
        self._loop.stop()

    # -- the thread ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._connection.open and not self._closing:
                self._loop.turn(TICK_S)
                self._write()
                self.on_tick()
        finally:
            self._connection.close()
        if not self._closing:
            self._lose()

    def _all_sent(self) -> bool:
        return not (self._out or self._reports or self._connection.backlog())

    def _write(self) -> None:
        """Reports come last, and only while the supervisor reads: those that wait lose their oldest."""
        with self._changed:
            while self._out:
                self._connection.send(self._out.popleft())
            while self._reports and self._connection.open and not self._connection.backlog():
                self._connection.send(self._reports.popleft())
            if self._all_sent():
                self._changed.notify_all()

    def _take(self, connection: Connection, message: Message) -> None:
        kind = message.get("type")
        if kind == "world":
            self._announced(message)
        elif kind == "store":
            host, port = text(message, "host") or self._host, whole(message, "port", 1, 65535)
            self._store_known(whole(message, "generation"), (host, port))
        elif kind == "abort":
            self._aborted(whole(message, "generation"), bool(message.get("lost")))
        elif kind == "dismiss":
            generation = whole(message, "generation")
            with self._changed:
                self._dismissed = generation
        elif kind == "stalled":
            self.stalled = True
        elif kind == "report_every":
            self.report_s = seconds(message, "seconds", 0.0)
        elif kind in ("checkpoint", "hurry"):
            if message.get("stop"):
                self.ends_at = time.monotonic() + seconds(message, "deadline_s")
            self.save_wanted = True
        # Anything else is from a newer supervisor, which does not rely on it being understood.

    def _announced(self, message: Message) -> None:
        coming = _world(message)
        coming.key = self._key
        report_s, end_s = seconds(message, "report_s", 0.0), seconds(message, "end_s", 0.0) or LOST_GRACE_S
        self.report_s, self._end_s = report_s, end_s
        with self._changed:
            if coming.generation <= self._last_generation:
                return
            coming.store = self._stores.get(coming.generation)
        if coming.rank == 0 and not coming.complete:
            # Rank 0 lives where the supervisor does: everybody knows an address that leads there.
            elsewhere = "" if self.is_local else self.own_address
            host = self._listen or (interfaces.LOOPBACK if coming.one_host else elsewhere)
            coming.server = server = WorldStore(self._loop, self._key, host, _tell)
            coming.store = (host or self._host, server.port)
            self.send({"type": "store", "generation": coming.generation, "host": host, "port": server.port})
        with self._changed:
            self._coming = coming
            self._changed.notify_all()

    def _store_known(self, generation: int, store: tuple[str, int]) -> None:
        with self._changed:
            self._stores = {generation: store}
            if self._coming is not None and self._coming.generation == generation and self._coming.server is None:
                self._coming.store = store
            self._changed.notify_all()

    def _aborted(self, generation: int, lost: bool) -> None:
        """The answer tells the supervisor that this world cannot come any more. lost: a member of it cannot come."""
        with self._changed:
            if generation == self._committed and not lost:
                return
            self._last_generation = max(self._last_generation, generation)
            self._off = generation
            if self._coming is not None and self._coming.generation == generation:
                self._coming = None
            self._changed.notify_all()
        self.send({"type": "called_off", "generation": generation})

    def _lose(self) -> None:
        """The job may be ending, and the supervisor was the first to go: what has been trained is to be written."""
        with self._changed:
            self.ends_at = min(self.ends_at or math.inf, time.monotonic() + self._end_s)
            self.lost = True
            self._changed.notify_all()
        _tell(f"the supervisor is gone; {self.worker} leaves after this step")
        deadline = time.monotonic() + LOST_GRACE_S
        while time.monotonic() < deadline and not self._closing:
            self.on_tick()
            self._loop.turn(TICK_S)  # a store may still be asked
        if not self._closing:
            os._exit(EXIT_LOST)


def _tell(line: str) -> None:
    sys.stderr.write(f"selastic: {line}\n")
    sys.stderr.flush()


def leave_lost() -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_LOST)


def _connect(host: str, port: int, key: str, hello: Message) -> socket.socket:
    try:
        return handshake.call(host, port, key, hello, CONNECT_S)
    except OSError as error:
        raise _unreached(host, port, error) from None


def _unreached(host: str, port: int, error: OSError) -> TrainingError:
    return TrainingError(
        f"SELASTIC_CONTROL={host}:{port} cannot be reached ({error.strerror or error}); it has to name the running "
        "supervisor"
    )
