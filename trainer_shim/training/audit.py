"""A record of which sample was trained on in which step.

With SELASTIC_AUDIT=<directory> every worker appends to a file of its own, one JSON line per step, before it contributes
its gradient: a step that any rank has finished is on every rank's record. Limit: one line per step is for tests and
for proofs, not for production.
"""

import errno
import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Line = dict[str, Any]


class Recorder:
    """Appends lines to `<directory>/<worker>.jsonl`, each in one write. What a full disk does not take is missing from
    the record; the training goes on."""

    def __init__(self, directory: str, worker: str) -> None:
        self._path = Path(directory, f"{worker.replace('/', '_')}.jsonl")
        self._file = -1
        self._torn = b""
        self._told = False

    def write(self, line: Line) -> None:
        data = self._torn + json.dumps(line, separators=(",", ":")).encode() + b"\n"
        try:
            if self._file < 0:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            if os.write(self._file, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self._torn = b""
        except OSError as error:
            self._torn = b"\n"  # ends what may have been begun
            if not self._told:
                print(f"selastic: {self._path} lacks steps from here on ({error.strerror})", file=sys.stderr)
            self._told = True


def read(directory: Path) -> Iterable[Line]:
    """Every complete line of every worker; one torn by a kill is left out."""
    for path in sorted(directory.glob("*.jsonl")):
        for raw in path.read_bytes().split(b"\n"):
            try:
                entry = json.loads(raw) if raw else None
            except ValueError:
                entry = None
            if isinstance(entry, dict):
                yield entry


def effective(lines: Iterable[Line]) -> list[Line]:
    """The lines of steps that count: those that no restart, and no return to an older world, has set back."""
    lines = list(lines)
    begun, void = restored(lines), undone(lines)
    kept = [entry for entry in lines if "indices" in entry and entry["generation"] not in void]
    return [entry for entry in kept if not _superseded(entry, begun)]


def undone(lines: Iterable[Line]) -> set[int]:
    """Generations that did not come about."""
    return {int(entry["undone"]) for entry in lines if "undone" in entry}


def restored(lines: Iterable[Line]) -> list[tuple[int, int]]:
    """Generations that began from a checkpoint, each with its step."""
    return [(int(e["generation"]), int(e["restored_from_step"])) for e in lines if "restored_from_step" in e]


def _superseded(entry: Line, begun: list[tuple[int, int]]) -> bool:
    generation, step = int(entry["generation"]), int(entry["step"])
    return any(generation < later and step > start for later, start in begun)
