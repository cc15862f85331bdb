"""Writes to disk on a thread of its own: who hands something over does not wait for the disk, and gets no error.

What is written is in order. Lines for a person are counted where they cannot be written (a full disk, a job directory
that went read-only): their number and the reason come first when writing works again. Limit: a disk that answers slower
than lines come loses lines, and says how many.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

MAX_WAITING = 4 << 20
"""Bytes of lines that wait for the disk."""
Failed = Callable[[OSError], None]


class BackgroundWriter:
    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Callable[[], None], int]] = deque()
        self._bytes = 0
        self._busy = self._closing = False
        self._outputs: dict[Path | int, GuardedOutput] = {}
        self._cut: dict[GuardedOutput, int] = {}
        """Lines that were not even taken, until others are."""
        self._thread = threading.Thread(target=self._run, name="selastic-disk", daemon=True)
        self._thread.start()

    def append(self, target: Path | int, data: bytes) -> None:
        """Append lines to a file or a descriptor."""
        output = self._outputs.setdefault(target, GuardedOutput(target))
        with self._changed:
            if self._bytes + len(data) > MAX_WAITING:
                self._cut[output] = self._cut.get(output, 0) + lines_in(data)
                return
        self._tell_cut(output)
        self._put(lambda: output.write(data), len(data))

    def end(self, target: Path | int) -> None:
        """Nothing more comes for this file, or not soon."""
        if (output := self._outputs.pop(target, None)) is not None:
            self._tell_cut(output)
            self._put(output.close, 0)

    def do(self, work: Callable[[], None], failed: Failed, wait_s: float) -> None:
        """Have this done; the OSError that it raises goes to `failed`, on the thread. Waits for it, but no longer than
        `wait_s`, and not at all while something else keeps the disk busy."""
        done = threading.Event()

        def guarded() -> None:
            try:
                work()
            except OSError as error:
                failed(error)
            finally:
                done.set()

        with self._changed:
            at_once = not self._busy and not self._waiting
        self._put(guarded, 0)
        if at_once:
            done.wait(wait_s)

    def close(self, wait_s: float) -> None:
        """Have what waits written, if that is possible in this time."""
        for target in list(self._outputs):
            self.end(target)
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join(wait_s)

    def _tell_cut(self, output: GuardedOutput) -> None:
        with self._changed:
            cut = self._cut.pop(output, 0)
        if cut:
            self._put(lambda: output.lose(cut, TOO_SLOW), 0)

    def _put(self, work: Callable[[], None], size: int) -> None:
        with self._changed:
            self._waiting.append((work, size))
            self._bytes += size
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                work, size = self._waiting.popleft()
                self._busy = True
            work()
            with self._changed:
                self._bytes -= size


TOO_SLOW = "the disk is too slow"


class GuardedOutput:
    """Appends to a file, which is opened with its first line, or to a descriptor that is open already."""

    def __init__(self, target: Path | int) -> None:
        self._path = target if isinstance(target, Path) else None
        self._descriptor = target if isinstance(target, int) else -1
        self._lost = 0
        self._why = ""
        self._torn = False
        """The last line that was begun has no end."""

    def write(self, data: bytes) -> None:
        """Write this if that is possible; `data` may be any number of lines, the last one unfinished."""
        try:
            self._open()
            if self._lost:
                self._put(self._notice())
                self._lost = 0
            self._put(data)
        except OSError as error:
            self.lose(lines_in(data), error.strerror or str(error))
            self._close_file()  # a file handle that went stale does so for good

    def lose(self, lines: int, why: str) -> None:
        """Count these as lost."""
        self._lost += lines
        self._why = why

    def close(self) -> None:
        """A last try to tell what was lost."""
        if self._lost:
            self.write(b"")
        self._close_file()

    def _notice(self) -> bytes:
        lines = "1 line" if self._lost == 1 else f"{self._lost} lines"
        start = "\n" if self._torn else ""
        return f"{start}selastic: {lines} could not be written here ({self._why})\n".encode()

    def _open(self) -> None:
        if self._descriptor < 0 and self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _put(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            written = os.write(self._descriptor, rest)
            self._torn = rest[written - 1] != ord("\n")
            rest = rest[written:]

    def _close_file(self) -> None:
        if self._path is not None and self._descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1


def lines_in(data: bytes) -> int:
    """How many lines are missing without this."""
    return max(1, data.count(b"\n")) if data else 0
