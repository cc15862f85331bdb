"""Where lines go for a person to read: written if that is possible, counted if not, and never an error.

When writing works again after it has failed (a full disk, a job directory that went read-only), the number of lines
that are missing and the reason come first. Limit: what was lost stays lost.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

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
