"""One thread, one selector: sockets, child processes, signals and timers of a supervisor or an agent.

Callbacks run one after another and must not block. Signals and other threads only wake the loop; nothing of the
program runs inside a signal handler. `signals` need the main thread.
"""

import contextlib
import functools
import heapq
import itertools
import os
import selectors
import signal
import socket
import subprocess
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .background_writer import BackgroundWriter

Callback = Callable[[], None]
KEEP = 1 << 20
KEEP_OF_LOGGED = 4096
"""Bytes of a child's output."""


class Loop:
    """Run until `stop`; see the module's promise."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._timers: list[tuple[float, int, Callback]] = []
        self._serial = itertools.count()
        self._calls: deque[Callback] = deque()
        self._stopped = False
        self._handlers: dict[int, Callback] = {}
        self.watch(self._wake_in, self._woken)

    def watch(self, source: Any, readable: Callback | None, writable: Callback | None = None) -> None:
        """Call back when the file or socket can be read or written; both None: forget it."""
        events = (selectors.EVENT_READ if readable else 0) | (selectors.EVENT_WRITE if writable else 0)
        with contextlib.suppress(KeyError):
            self._selector.unregister(source)
        if events:
            self._selector.register(source, events, (readable, writable))

    def after(self, seconds: float, callback: Callback) -> None:
        heapq.heappush(self._timers, (time.monotonic() + seconds, next(self._serial), callback))

    def call(self, callback: Callback) -> None:
        """From any thread: run this in the loop soon."""
        self._calls.append(callback)
        self._wake()

    def on_signal(self, number: int, callback: Callback) -> None:
        signal.set_wakeup_fd(self._wake_out.fileno(), warn_on_full_buffer=False)
        self._handlers[number] = callback
        signal.signal(number, lambda seen, frame: self._calls.append(self._handlers[seen]))

    def stop(self) -> None:
        self._stopped = True
        self._wake()

    def run(self) -> None:
        while not self._stopped:
            self.turn()

    def turn(self, longest_s: float = 60.0) -> None:
        """Wait for something to happen, at most this long, and handle it."""
        if self._timers:
            longest_s = min(longest_s, self._timers[0][0] - time.monotonic())
        if self._calls:
            longest_s = 0
        for key, events in self._selector.select(max(0.0, longest_s)):
            readable, writable = key.data
            if events & selectors.EVENT_READ and readable:
                readable()
            if events & selectors.EVENT_WRITE and writable and key.fileobj in self._selector.get_map():
                writable()
        while self._calls:
            self._calls.popleft()()
        while self._timers and self._timers[0][0] <= time.monotonic():
            heapq.heappop(self._timers)[2]()

    def leave_in_child(self) -> None:
        """After a fork, in the child: give up the signals and the selector, touching nothing of the parent's."""
        signal.set_wakeup_fd(-1)
        for number in self._handlers:
            signal.signal(number, signal.SIG_DFL)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_out.send(b"\0")

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._wake_in.recv(4096):
                pass


@dataclass(frozen=True, slots=True)
class Ended:
    """A child that has ended: exit code (negative: signal), and what it wrote."""

    code: int
    out: str
    err: str


@dataclass(slots=True)
class _Stream:
    """One output of a child, as far as it has come."""

    loop: Loop
    descriptor: int
    log: Callable[[bytes], None] | None
    kept: bytearray = field(default_factory=bytearray)

    def take(self) -> None:
        """Everything that has come. Of a logged output the end is kept, of others the beginning."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.descriptor, 1 << 16):
                self.kept += data
                if self.log is None:
                    del self.kept[KEEP:]
                else:
                    self.log(data)
                    del self.kept[:-KEEP_OF_LOGGED]
            self.loop.watch(self.descriptor, None)


class Children:
    """Child processes that report their end to the loop. At most 1 MB of what each writes is kept."""

    def __init__(self, loop: Loop, disk: BackgroundWriter) -> None:
        self._loop, self._disk = loop, disk
        self._running: dict[subprocess.Popen[bytes], tuple[list[_Stream], Path | None, Callable[[Ended], None]]] = {}
        loop.on_signal(signal.SIGCHLD, self._reap)

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        ended: Callable[[Ended], None],
        log: Path | None = None,
        inherit: bool = False,
    ) -> subprocess.Popen[bytes] | None:
        """Start a command. `log`: both outputs are appended there, and their last 4 kB kept as `out`. inherit: they are
        ours, and nothing is kept.

        A command that cannot be started ends at once with code 127 and the reason in `err`; None is returned.
        """
        try:
            process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=None if inherit else subprocess.PIPE,
                stderr=None if inherit else subprocess.STDOUT if log else subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            text = str(error)
            self._loop.call(lambda: ended(Ended(127, "", text)))
            return None
        take = functools.partial(self._disk.append, log) if log else None
        streams = [
            _Stream(self._loop, pipe.fileno(), take) for pipe in (process.stdout, process.stderr) if pipe is not None
        ]
        for stream in streams:
            os.set_blocking(stream.descriptor, False)
            self._loop.watch(stream.descriptor, stream.take)
        self._running[process] = (streams, log, ended)
        return process

    def running(self) -> list[subprocess.Popen[bytes]]:
        return list(self._running)

    def _reap(self) -> None:
        for process in [process for process in self._running if process.poll() is not None]:
            streams, log, ended = self._running.pop(process)
            texts = []
            for stream in streams:
                stream.take()  # a process that it has left behind may keep it open
                self._loop.watch(stream.descriptor, None)
                texts.append(stream.kept.decode(errors="replace"))
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
            if log is not None:
                self._disk.end(log)
            ended(Ended(process.returncode, *[*texts, "", ""][:2]))
