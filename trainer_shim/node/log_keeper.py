"""The agent's log files, written by a process of their own: a disk that is slow, full or gone never holds up the agent.

The agent forks and so can have no threads. The keeper is forked first, before torch is there, and ends when the agent's
end of the connection is closed, with everything written that could be. Limit: more than MAX_WAITING bytes that the disk
does not take are lost; how many lines is told in the file.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..control.background_writer import TOO_SLOW, GuardedOutput, lines_in
from ..control.connection import Connection
from ..control.event_loop import Loop

MAX_WAITING = 4 << 20
LAST_LINES_S = 3.0
"""How long the agent's end waits for the last lines to be written."""
MARK_S = 5.0
"""How long a shared file system may take to show what another node has written."""
PROCESS_NAME = b"selastic-log"
PR_SET_NAME = 15


class LogKeeper:
    """The agent's side. Made before anything else of the agent, for the keeper keeps what is open then."""

    def __init__(self, folder: Path, own: str, mark: str = "") -> None:
        """own: name of the log that takes what the agent itself writes after `take_own_output`. mark: of the job
        directory, which the folder is in; "" where it has none."""
        here, there = socket.socketpair()
        reading, self._own = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                here.close()
                os.close(self._own)
                _keep(folder, there, reading, own, mark)
            finally:
                os._exit(0)
        there.close()
        os.close(reading)
        self._socket = here
        self._connection: Connection | None = None
        self._lost: dict[str, int] = {}

    def begin(self, loop: Loop, unmarked: Callable[[], None]) -> None:
        """unmarked: called when the job directory lacks the mark, so is another one than the supervisor's."""
        self._connection = Connection(
            loop, self._socket, lambda connection, message: unmarked(), lambda connection: None, lambda line: None
        )

    def take_own_output(self) -> None:
        """What this process writes goes to its log from here on."""
        os.dup2(self._own, 1)
        os.dup2(self._own, 2)

    def write(self, log: str, data: bytes) -> None:
        """Append to a log; the file is made with its first line."""
        if self._connection is None or not self._connection.open:
            return
        if self._connection.backlog() > MAX_WAITING:
            self._lost[log] = self._lost.get(log, 0) + lines_in(data)
            return
        self._connection.send({"log": log, "text": data.decode("latin-1"), "lost": self._lost.pop(log, 0)})

    def end_log(self, log: str) -> None:
        """Nothing more comes for this log."""
        if self._connection is not None:
            self._connection.send({"log": log, "text": "", "lost": self._lost.pop(log, 0), "end": True})

    def forget(self) -> None:
        """After a fork, in the child: drop the descriptors."""
        if self._connection is not None:
            self._connection.forget()
        os.close(self._own)

    def close(self, loop: Loop) -> None:
        """Wait, in bounded time, until everything is written; then the keeper ends one way or the other."""
        deadline = time.monotonic() + LAST_LINES_S
        connection = self._connection
        while connection is not None and connection.open and connection.backlog() and time.monotonic() < deadline:
            loop.turn(0.05)
        if connection is not None:
            connection.close()
        null = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):  # else the keeper waits for more of our own
            os.dup2(null, descriptor)
        os.close(self._own)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(self._pid, os.WNOHANG)[0] == 0:
                if time.monotonic() >= deadline:
                    os.kill(self._pid, signal.SIGKILL)
                    return
                time.sleep(0.01)


def _keep(folder: Path, source: socket.socket, own_output: int, own: str, mark: str) -> None:
    """The keeper: write what comes until nothing more can come."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # Slurm's go to every process of a step
    ctypes.CDLL(None).prctl(PR_SET_NAME, PROCESS_NAME, 0, 0, 0)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    reader = threading.Thread(target=_keep_own, args=(own_output, GuardedOutput(folder / f"{own}.log")))
    reader.start()
    if mark:
        threading.Thread(target=_look_for, args=(folder.parent / mark, source), daemon=True).start()
    outputs: dict[str, GuardedOutput] = {}
    for line in source.makefile("rb"):
        message = json.loads(line)
        name = message["log"]
        output = outputs.setdefault(name, GuardedOutput(folder / f"{name}.log"))
        if message["lost"]:
            output.lose(message["lost"], TOO_SLOW)
        if message["text"]:
            output.write(message["text"].encode("latin-1"))
        if message.get("end"):
            outputs.pop(name).close()
    for output in outputs.values():
        output.close()
    reader.join()


def _look_for(mark: Path, agent: socket.socket) -> None:
    """The other end hears something when the mark is not there."""
    deadline = time.monotonic() + MARK_S
    while not mark.exists():
        if time.monotonic() >= deadline:
            with contextlib.suppress(OSError):
                agent.sendall(b"{}\n")
            return
        time.sleep(0.2)


def _keep_own(source: int, output: GuardedOutput) -> None:
    while data := os.read(source, 1 << 16):
        output.write(data)
    output.close()
