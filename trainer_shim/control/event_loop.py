"""One thread, one selector: sockets, child processes, signals and timers of a supervisor or an agent.

Callbacks run one after another and must not block. Signals and other threads only wake the loop; nothing of the
program runs inside a signal handler. `signals` need the main thread.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

Callback = Callable[[], None]


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


class Children:
    """Child processes that report their end to the loop. At most 1 MB of what each writes is kept."""

    KEEP = 1 << 20

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._running: dict[subprocess.Popen[bytes], tuple[IO[bytes], IO[bytes], Callable[[Ended], None]]] = {}
        loop.on_signal(signal.SIGCHLD, self._reap)

    def start(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        ended: Callable[[Ended], None],
        log: Path | None = None,
    ) -> subprocess.Popen[bytes] | None:
        """Start a command. `log`: both outputs are appended there instead of being kept.

        A command that cannot be started ends at once with code 127 and the reason in `err`; None is returned.
        """
        out: IO[bytes] = log.open("ab") if log else tempfile.TemporaryFile()  # noqa: SIM115
        err: IO[bytes] = out if log else tempfile.TemporaryFile()  # noqa: SIM115
        try:
            process = subprocess.Popen(
                command,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        except OSError as error:
            text = str(error)
            self._loop.call(lambda: ended(Ended(127, "", text)))
            return None
        self._running[process] = (out, err, ended)
        return process

    def running(self) -> list[subprocess.Popen[bytes]]:
        return list(self._running)

    def _reap(self) -> None:
        for process in [process for process in self._running if process.poll() is not None]:
            out, err, ended = self._running.pop(process)
            texts = []
            for stream in (out, err):
                texts.append("")
                if stream.readable():
                    stream.seek(0)
                    texts[-1] = stream.read(self.KEEP).decode(errors="replace")
            out.close()
            err.close()
            ended(Ended(process.returncode, *texts))
