"""Checkpoints on disk: written beside, synced, verified, then renamed; the last two are kept.

A directory `step-<step>` is complete or absent. Its `checkpoint.json` names every file with size and BLAKE2b digest;
loading checks them and falls back to the older checkpoint. What fails leaves nothing behind; where the disk is full the
older checkpoint gives way (disk_space.py). Written by one process at a time, read by any.
"""

import contextlib
import hashlib
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from slurm_elastic.protocol import own_files
from slurm_elastic.protocol.errors import TrainingError

from . import contents, disk_space
from .contents import Globals

Entry = dict[str, Any]
KEEP = 2
INDEX = "checkpoint.json"
STATE = "state.pt"
BESIDE_BYTES = 1 << 20
"""What is written at once is hashed meanwhile from this size on."""
LEFTOVER_S = 3600.0
"""Age at which an unfinished or damaged checkpoint is removed: nobody is writing it any more."""


@dataclass(frozen=True, slots=True)
class Saved:
    path: Path
    step: int
    samples: int
    parts: bool
    """Whether its tensors lie in parts as ranks wrote them: see sharded.py."""


Found = tuple[Saved, dict[str, Any]]
"""A checkpoint and what it holds; of one in parts, the tensors' places instead of the tensors."""


class _Hashing:
    """A file opened for writing whose content is hashed on its way; torch.save only ever appends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None
        """torch hides it behind an error of its own."""
        self.digest = hashlib.blake2b(digest_size=32)
        self.size = 0

    def write(self, data: bytes) -> int:
        beside = threading.Thread(target=self.digest.update, args=(data,))  # which lets go of the GIL
        beside.start() if len(data) >= BESIDE_BYTES else beside.run()
        self.size += len(data)
        try:
            self._file.write(data)
        except OSError as error:
            self.error = error
            raise
        finally:
            if beside.ident is not None:
                beside.join()
        return len(data)

    def flush(self) -> None:
        self._file.flush()


def write(directory: Path, captured: dict[str, Any], safe: Globals = ()) -> Saved:
    """Write a capture. When this returns it is on disk under its final name and has been read back.

    safe: types that it may hold besides plain ones. Raises TrainingError for another one.
    """
    contents.check(captured, safe)
    try:
        return _write(directory, captured)
    except (OSError, RuntimeError) as error:
        if not disk_space.is_full(error) or not make_room(directory):
            raise
    return _write(directory, captured)


def _write(directory: Path, captured: dict[str, Any]) -> Saved:
    partial = partial_of(directory, captured["progress"]["step"])
    try:
        prepare(partial)
        return seal(directory, partial, captured, {STATE: dump(partial / STATE, captured)})
    except (OSError, RuntimeError):
        shutil.rmtree(partial, ignore_errors=True)
        raise


def partial_of(directory: Path, step: int) -> Path:
    """Where this process writes the checkpoint of a step."""
    return directory / f".step-{step:012d}.{os.getpid()}.partial"


def prepare(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    own_files.make_own(partial)


def make_room(directory: Path) -> bool:
    """Remove what is not needed for a restart: leftovers, and the older checkpoints if the newest one verifies. Whether
    there was anything."""
    gone = [*directory.glob(".step-*"), *directory.glob("damaged-*")]
    newest, *older = all_of(directory) or [directory]
    if older:
        with contextlib.suppress(TrainingError):
            check(newest)
            gone += older
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
    if gone:
        sys.stderr.write(f"selastic: the disk of {directory} is full: {', '.join(one.name for one in gone)} removed\n")
    return bool(gone)


def dump(path: Path, value: Any) -> Entry:
    """Write any object and sync it; its entry in the index."""
    with open(path, "wb") as file:
        hashing = _Hashing(file)
        try:
            torch.save(value, hashing)  # type: ignore[arg-type]
        except RuntimeError:
            if hashing.error is not None:
                raise hashing.error from None
            raise
        file.flush()
        os.fsync(file.fileno())
    return {"size": hashing.size, "blake2b": hashing.digest.hexdigest()}


def digest_of(path: Path) -> Entry:
    """A file's entry in the index, from what can be read of it."""
    digest, size = hashlib.blake2b(digest_size=32), 0
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            size += len(chunk)
    return {"size": size, "blake2b": digest.hexdigest()}


def seal(
    directory: Path, partial: Path, captured: dict[str, Any], files: dict[str, Entry], parts: bool = False
) -> Saved:
    """Make what lies in `partial` the checkpoint: index written, everything verified and synced, renamed."""
    progress = captured["progress"]
    final = directory / f"step-{progress['step']:012d}"
    index = {
        "format": captured["format"],
        "step": progress["step"],
        "samples": progress["samples"],
        "finished": progress["finished"],
        "parts": parts,
        "files": files,
    }
    with open(partial / INDEX, "w") as text:
        text.write(json.dumps(index))  # json.dump leaves cycles behind
        text.flush()
        os.fsync(text.fileno())
    for path in partial.iterdir():  # the umask may have given them to a group
        own_files.make_own(path)
    check(partial)
    _sync(partial)
    if final.exists():  # the same step again, after a restart or at the end of the training
        older = directory / f".{final.name}.{os.getpid()}.replaced"
        final.rename(older)
        partial.rename(final)
        shutil.rmtree(older, ignore_errors=True)
    else:
        partial.rename(final)
    _sync(directory)
    _prune(directory)
    return Saved(final, progress["step"], progress["samples"], parts)


def check(path: Path) -> Saved:
    """Read a checkpoint's index, verify its files, and that nobody else can write them. Raises TrainingError."""
    try:
        if why := own_files.foreign_below(path):
            raise TrainingError(f"checkpoint {path} is not used: {why}; accepted: what only its owner can write")
        index = json.loads((path / INDEX).read_text())
        for name, expected in index["files"].items():
            if digest_of(path / name)["blake2b"] != expected["blake2b"]:
                raise TrainingError(f"checkpoint {path} is damaged: {name} is not what was written")
        return Saved(path, int(index["step"]), int(index["samples"]), bool(index.get("parts")))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise TrainingError(f"checkpoint {path} is damaged: {error}") from None


def all_of(directory: Path) -> list[Path]:
    """Complete checkpoints, newest first. Nothing is verified."""
    return sorted((path for path in directory.glob("step-*") if (path / INDEX).exists()), reverse=True)


def load_newest(directory: Path, safe: Globals = ()) -> Found | None:
    """The newest checkpoint that verifies, in host memory (of one in parts, all but its tensors); None: there is none.

    Raises TrainingError when checkpoints exist and none can be read: starting over unasked would throw work away; and
    when the newest one holds what is not accepted: it may be the job's own.
    """
    problems: list[str] = []
    damaged: list[Path] = []
    for path in sorted(directory.glob("step-*"), reverse=True):
        if not (path / INDEX).exists():
            sys.stderr.write(f"selastic: checkpoint {path} is skipped: it has no {INDEX}\n")
    for path in all_of(directory):
        try:
            saved = check(path)
            with open(path / STATE, "rb") as file:
                captured = contents.load(file, path / STATE, safe)
        except contents.NotAccepted:
            raise
        except (TrainingError, RuntimeError, OSError) as error:
            problems.append(str(error))
            sys.stderr.write(f"selastic: {error}; trying the one before\n")
            damaged.append(path)
            continue
        for path in damaged:  # not counted among those kept, but there for whoever wants to know why
            with contextlib.suppress(OSError):
                path.rename(path.with_name(f"damaged-{path.name}"))
        return saved, captured
    if problems:
        raise TrainingError(f"no checkpoint in {directory} can be read ({problems[0]}); remove them to start over")
    return None


@dataclass(frozen=True, slots=True)
class Work:
    """Something to write, and what to do with its memory afterwards."""

    write: Callable[[], Saved | None]
    free: Callable[[], None]


class Writer:
    """Writes snapshots on a thread of its own. One waits at most: a newer snapshot replaces an unwritten older one."""

    def __init__(self, directory: Path, on_saved: Callable[[Saved], None], safe: Globals = ()) -> None:
        """safe: types that checkpoints may hold besides plain ones."""
        self.safe = safe
        self.on_failed: Callable[[str], None] = lambda problem: None
        self.problem = ""
        """Why what was handed over last is not on disk; "" if it is."""
        self.on_free: Callable[[dict[str, Any]], None] = lambda snapshot: None
        """Called with a snapshot that is written, or was replaced by a newer one: its memory is free."""
        self.directory = directory
        self._on_saved = on_saved
        self._changed = threading.Condition()
        self._next: Work | None = None
        self._busy = False
        self._thread: threading.Thread | None = None
        self.last_at = time.monotonic()
        self.took_s = 0.0
        """How long the last checkpoint was written."""

    @property
    def busy(self) -> bool:
        with self._changed:
            return self._busy or self._next is not None

    def put(self, snapshot: dict[str, Any]) -> None:
        self._hand_over(Work(lambda: write(self.directory, snapshot, self.safe), lambda: self.on_free(snapshot)))

    def put_parts(self, job: Callable[[], Saved | None]) -> None:
        """Hand over a function that writes together with other ranks' writers; each of them has to call it.

        wait() first: what was handed over before has to be written by then.
        """
        self._hand_over(Work(job, lambda: None))

    def _hand_over(self, work: Work) -> None:
        with self._changed:
            replaced, self._next = self._next, work
            self.last_at = time.monotonic()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="selastic-checkpoint", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if replaced is not None:
            replaced.free()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until everything handed over is on disk; False after the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._busy and self._next is None, timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._next is not None)
                work, self._next, self._busy = self._next, None, True
            try:
                began = time.monotonic()
                saved = work.write() if work is not None else None
                self.took_s = time.monotonic() - began
                self.problem = ""
                if saved is not None:
                    self._on_saved(saved)
            except Exception as error:  # a full disk must not end the training; the older checkpoint is still there
                self.problem = disk_space.said(error)
                sys.stderr.write(f"selastic: checkpoint in {self.directory} failed: {self.problem}\n")
                self.on_failed(self.problem)
            finally:
                if work is not None:
                    work.free()
                work = saved = None
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()


def megabytes(path: Path) -> float:
    """Size of a checkpoint; 0 where it cannot be read."""
    with contextlib.suppress(OSError):
        return sum(file.stat().st_size for file in path.iterdir()) / 1e6
    return 0.0


def _prune(directory: Path) -> None:
    for path in all_of(directory)[KEEP:]:
        shutil.rmtree(path, ignore_errors=True)
    leftovers = [*directory.glob(".step-*"), *sorted(directory.glob("damaged-*"), reverse=True)[1:]]
    for path in leftovers:
        with contextlib.suppress(OSError):
            if time.time() - path.stat().st_mtime > LEFTOVER_S:
                shutil.rmtree(path, ignore_errors=True)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
