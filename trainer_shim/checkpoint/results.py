"""Calls that are made once before there is a world: by the first worker that comes to them, while the others wait.

For a whole job the result lies beside its checkpoints, so that workers which join, or start again, have it too. A claim
is a file that only one can make, and whose text changes while its maker is alive; where it stands still somebody else
makes the next one. On one node a lock of the kernel does the same. Limit: what two file systems' clocks or caches make
of a dead worker takes STALE_S, and that long nobody else begins.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from slurm_elastic.protocol import own_files
from slurm_elastic.protocol.errors import TrainingError

from . import contents
from .contents import Globals

BEAT_S = 2.0
STALE_S = 30.0
POLL_S = 0.1


def file_name(call: Callable[..., Any], number: int) -> str:
    """Of the result of a call, the `number`-th one before the loop."""
    name = re.sub(r"\W+", "-", str(getattr(call, "__name__", type(call).__name__))).strip("-")
    return f"once-{number}-{name}"


def once(directory: Path, name: str, call: Callable[[], Any], safe: Globals = ()) -> Any:
    """What call() returns, made by one of the processes that ask for it in this directory, now or later."""
    directory.mkdir(parents=True, exist_ok=True)
    result, number = directory / f"{name}.pt", 0
    while not result.exists():
        claim = directory / f".{name}.claim{number}"
        try:
            os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            _wait(result, claim)
            number += 1
            continue
        with _alive(claim):
            if not result.exists():
                _write(result, call(), name, safe)
    return _read(result, safe)


def once_on_node(key: str, name: str, call: Callable[[], Any], safe: Globals = ()) -> Any:
    """The same for the processes of one node that share a temporary directory; key: of their job."""
    whose = hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    directory = Path(tempfile.gettempdir()) / f"selastic-{os.geteuid()}-{whose}"
    with contextlib.suppress(FileExistsError):
        directory.mkdir(mode=0o700)
    if why := own_files.foreign(directory):
        raise TrainingError(f"{directory} {why}; remove it, or set TMPDIR to a directory of your own")
    result = directory / f"{name}.pt"
    with (directory / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not result.exists():
            _write(result, call(), name, safe)
    return _read(result, safe)


def _wait(result: Path, claim: Path) -> None:
    """Until there is a result, or whoever is making it has failed or does not go on."""
    text, since = "", time.monotonic()
    while not result.exists() and time.monotonic() < since + STALE_S:
        with contextlib.suppress(OSError):
            now = claim.read_text()
            if now == "failed":
                return
            if now != text:
                text, since = now, time.monotonic()
        time.sleep(POLL_S)


@contextmanager
def _alive(claim: Path) -> Iterator[None]:
    """While this lasts the claim's text changes; where it fails others may claim."""
    over = threading.Event()

    def beat() -> None:
        number = 0
        while not over.wait(BEAT_S):
            number += 1
            with contextlib.suppress(OSError):
                claim.write_text(str(number))

    beating = threading.Thread(target=beat, daemon=True)
    beating.start()
    outcome = "failed"
    try:
        yield
        outcome = "done"
    finally:
        over.set()
        beating.join()
        claim.write_text(outcome)


def _write(result: Path, value: Any, name: str, safe: Globals) -> None:
    if what := contents.refusal(value, safe):
        raise TrainingError(f"{name} returned {what}, which is not kept; accepted: {contents.ACCEPTED}")
    partial = result.with_name(f".{result.name}.{os.getpid()}.partial")
    try:
        torch.save(value, partial)
        partial.replace(result)
    finally:
        partial.unlink(missing_ok=True)


def _read(result: Path, safe: Globals) -> Any:
    with result.open("rb") as file:
        return contents.load(file, result, safe)
