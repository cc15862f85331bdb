"""A record of which sample was trained on in which step, and the check that none was lost or repeated.

With SELASTIC_AUDIT=<directory> every worker appends to a file of its own, one JSON line per step, before it contributes
its gradient: a step that any rank has finished is on every rank's record. Limit: one line per step is for tests and
for proofs, not for production.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurm_elastic.protocol.errors import TrainingError

Line = dict[str, Any]


class Recorder:
    """Appends lines to `<directory>/<worker>.jsonl`, each in one write. What a full disk does not take is missing from
    the record, and the check says so; the training goes on."""

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


@dataclass(frozen=True, slots=True)
class AuditResult:
    """What the record of one training says."""

    ok: bool
    epochs_seen: int
    missing: int
    """Samples of finished or begun epochs that no step has trained on."""
    repeated: int
    """Times a sample was trained on again within its epoch."""
    steps: int
    steps_lost: int
    """Steps of the count that are not recorded by every rank."""
    steps_repeated: int
    """Steps taken in two worlds, none of which was set back by a restart."""
    worlds: int
    restarts: int = 0
    problems: tuple[str, ...] = ()


def check(directory: str | Path, samples: int, epochs: int) -> AuditResult:
    """Check a record of `epochs` passes over `samples` samples.

    A world restored from step s supersedes every line of an older generation beyond s, and one that did not come about
    counts for nothing. Raises TrainingError when there is no record.
    """
    lines = list(read(Path(directory)))
    if not lines:
        raise TrainingError(f"no audit record in {directory}; run with SELASTIC_AUDIT={directory}")
    restored = _restored(lines)
    steps = effective(lines)
    by_step: dict[int, list[Line]] = defaultdict(list)
    for entry in steps:
        by_step[int(entry["step"])].append(entry)
    seen: dict[int, Counter[int]] = {epoch: Counter() for epoch in range(epochs)}
    for entry in steps:
        seen.setdefault(int(entry["epoch"]), Counter()).update(entry["indices"])
    missing = sum(samples - len(counts) for counts in seen.values())
    repeated = sum(counts.total() - len(counts) for counts in seen.values())
    last = max(by_step, default=0)
    lost = [step for step in range(1, last + 1) if not _whole(by_step.get(step, []))]
    twice = [step for step, entries in by_step.items() if len({entry["generation"] for entry in entries}) > 1]
    strange = sorted({index for counts in seen.values() for index in counts if not 0 <= index < samples})
    problems = [f"step {step} is not recorded by every rank" for step in lost[:5]]
    problems += [f"step {step} was taken in two worlds" for step in sorted(twice)[:5]]
    problems += [f"sample {index} does not exist" for index in strange[:5]]
    undone = _undone(lines)
    generations = {int(e["generation"]) for e in lines if "indices" in e and e["generation"] not in undone}
    ok = not (missing or repeated or lost or twice or strange) and len(seen) == epochs
    return AuditResult(
        ok=ok,
        epochs_seen=sum(1 for counts in seen.values() if counts),
        missing=missing,
        repeated=repeated,
        steps=len(by_step),
        steps_lost=len(lost),
        steps_repeated=len(twice),
        worlds=len(generations),
        restarts=max(0, len(restored) - 1),
        problems=tuple(problems),
    )


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
    restored, undone = _restored(lines), _undone(lines)
    kept = [entry for entry in lines if "indices" in entry and entry["generation"] not in undone]
    return [entry for entry in kept if not _superseded(entry, restored)]


def _undone(lines: Iterable[Line]) -> set[int]:
    return {int(entry["undone"]) for entry in lines if "undone" in entry}


def _restored(lines: Iterable[Line]) -> list[tuple[int, int]]:
    return [(int(e["generation"]), int(e["restored_from_step"])) for e in lines if "restored_from_step" in e]


def _superseded(entry: Line, restored: list[tuple[int, int]]) -> bool:
    generation, step = int(entry["generation"]), int(entry["step"])
    return any(generation < later and step > start for later, start in restored)


def _whole(entries: list[Line]) -> bool:
    """One line from each rank of one world, and of every rank as many."""
    ranks = Counter((entry["generation"], entry["rank"]) for entry in entries)
    return bool(entries) and len(ranks) == int(entries[0]["size"]) and len(set(ranks.values())) == 1
