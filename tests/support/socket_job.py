"""A real supervisor, with its real sockets, in the test's own thread: the test is its agents and workers."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from malformed import line
from patience import Patience

from slurm_elastic.protocol.json_lines import Message
from slurm_elastic.protocol.messages import Piece
from slurm_elastic.protocol.version import build
from slurm_elastic.trainer_shim.allocation.launchers import LocalLauncher, Options
from slurm_elastic.trainer_shim.allocation.pieces.machine import Machine
from slurm_elastic.trainer_shim.control import handshake
from slurm_elastic.trainer_shim.supervisor.driver import Supervisor
from slurm_elastic.trainer_shim.supervisor.state_machine.context import Mode, SupervisorContext
from slurm_elastic.trainer_shim.supervisor.state_machine.parts import PARTS

BASE = Piece(1, "base", ("n1",), 2)


class NoAgents(LocalLauncher):
    """The test is the agents."""

    def launch(self, piece: Piece, number: int) -> None:
        """Nothing is started."""


class Job:
    """A supervisor whose loop the test turns; what it raises, the test gets."""

    def __init__(self, folder: Path) -> None:
        options = Options(("train.py",), folder, "127.0.0.1", "127.0.0.1", {})
        self.machine = Machine(SupervisorContext((BASE,), 64), PARTS)
        self.supervisor = Supervisor(options, self.machine, lambda *given: NoAgents(BASE, *given), None)
        self.supervisor._perform(self.machine.start(time.monotonic()))

    def peer(self) -> socket.socket:
        peer = socket.create_connection(("127.0.0.1", self.supervisor._server.port))
        peer.setblocking(False)
        return peer

    def until(self, condition: Callable[[], object]) -> None:
        patience = Patience(60)
        while not condition():
            assert not patience.over()
            self.supervisor._loop.turn(0.01)

    def say(self, peer: socket.socket, data: bytes) -> None:
        """Send all of it and be read to the end, or be cut off."""
        for start in range(0, len(data), 1 << 14):
            with contextlib.suppress(OSError):
                peer.send(data[start : start + (1 << 14)])
            self.supervisor._loop.turn(0)

    def ends(self, peer: socket.socket) -> None:
        """Nothing more is sent; the supervisor reads what was, and closes its end."""
        with contextlib.suppress(OSError):
            peer.shutdown(socket.SHUT_WR)
        self.until(lambda: closed(peer))
        peer.close()

    def hello(self, peer: socket.socket, kind: str, name: str) -> bytes:
        node = {"slurm_job_id": 1, "node": "n1", "gpus": ["0", "1"], "build": build()}
        return self.proven(peer, {"kind": kind, kind: name, **node})

    def proven(self, peer: socket.socket, fields: Message) -> bytes:
        """A hello that answers the challenge of this connection."""
        self.until(lambda: b"\n" in received(peer))
        return line(**handshake.hello(self.supervisor._key, json.loads(peer.recv(1 << 12)), fields))

    def trains(self) -> dict[str, socket.socket]:
        """An agent and two workers connect, and their world runs; their sockets."""
        peers = {"agent": self.peer(), "1.n1.0": self.peer(), "1.n1.1": self.peer()}
        self.say(peers["agent"], self.hello(peers["agent"], "agent", "1.n1"))
        self.until(lambda: len(self.machine.context.workers) == 2)
        for name in ("1.n1.0", "1.n1.1"):
            self.say(peers[name], self.hello(peers[name], "worker", name) + line(type="ready"))
        self.until(lambda: self.machine.context.mode is Mode.FORMING)
        self.say(peers["1.n1.0"], line(type="store", generation=1, host="", port=1))
        self.say(peers["1.n1.0"], line(type="running", generation=1, step=1, samples=64, batch=64))
        self.until(lambda: self.machine.context.mode is Mode.RUNNING)
        return peers

    def answers(self) -> None:
        """Another agent is heard, and told what to do: to quit, if there is nothing for it."""
        peer = self.peer()
        self.say(peer, self.hello(peer, "agent", "1.n1"))
        self.until(lambda: received(peer).count(b"\n") > 1)
        peer.close()

    def close(self) -> None:
        self.supervisor._server.close()
        self.supervisor._disk.close(5)
        self.supervisor._output.close(5)


def received(peer: socket.socket) -> bytes:
    try:
        return peer.recv(1 << 16, socket.MSG_PEEK)
    except BlockingIOError:
        return b""


def closed(peer: socket.socket) -> bool:
    try:
        while peer.recv(1 << 16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def job() -> Iterator[Job]:
    before = {number: signal.getsignal(number) for number in (signal.SIGCHLD,)}
    with tempfile.TemporaryDirectory() as folder:
        made = Job(Path(folder))
        try:
            yield made
        finally:
            made.close()
            made.supervisor._loop.leave_in_child()
            for number, handler in before.items():
                signal.signal(number, handler)
