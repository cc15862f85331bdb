"""Which sandboxes are on this host, and which ports each has. Two that start at once never get the same ports.

One small file per sandbox under /run, written before anything is started, removed last. Limit: ports are proven free
by binding them at the moment of the choice; a stranger may still take one before the daemon does, and then the daemon
says so in its log.
"""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from slurm_elastic.protocol.errors import SandboxError

FIRST, LAST = 21000, 32000
"""Ports looked at: below the range from which Linux picks a client's port (32768 and up)."""


def registry_dir() -> Path:
    """/run/selastic-sandbox, or what SELASTIC_SANDBOX_REGISTRY says (tests)."""
    return Path(os.environ.get("SELASTIC_SANDBOX_REGISTRY", "/run/selastic-sandbox"))


@dataclass(frozen=True)
class Entry:
    """One sandbox that was started and not yet taken down."""

    name: str
    dir: str
    id: str
    """Random; every daemon of the sandbox carries it in its environment."""
    first_port: int
    ports: int


def entries() -> list[Entry]:
    """All sandboxes on this host; files that cannot be read are skipped."""
    found = []
    for file in sorted(registry_dir().glob("*.json")):
        with contextlib.suppress(OSError, ValueError, TypeError):
            found.append(Entry(**json.loads(file.read_text())))
    return found


def find(name: str) -> Entry | None:
    return next((entry for entry in entries() if entry.name == name), None)


def register(name: str, dir: Path, id: str, ports: int, first_port: int | None = None) -> Entry:
    """Choose free ports and write the entry. SandboxError when the name is taken or no block of ports is free.

    first_port: use these, unchecked.
    """
    with _locked() as folder:
        if find(name) is not None:
            raise SandboxError(
                f"A sandbox named {name!r} is up already: 'selastic sandbox down --name {name}' ends it, "
                "--name starts another one beside it."
            )
        first = first_port if first_port is not None else _free_block(ports)
        entry = Entry(name, str(dir), id, first, ports)
        temporary = folder / f".{name}.tmp"
        temporary.write_text(json.dumps(asdict(entry)))
        temporary.rename(folder / f"{name}.json")
        return entry


def unregister(entry: Entry) -> None:
    """Forget a sandbox; the registry itself goes with the last one. Calling it twice is fine."""
    if not registry_dir().exists():
        return
    with _locked() as folder:
        current = find(entry.name)
        if current is None or current.id == entry.id:
            (folder / f"{entry.name}.json").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _free_block(ports: int) -> int:
    taken = [(e.first_port, e.first_port + e.ports) for e in entries()]
    first = FIRST
    while first + ports <= LAST:
        clash = next((end for start, end in taken if start < first + ports and first < end), None)
        if clash is None:
            busy = next((port for port in range(first, first + ports) if not _is_free(port)), None)
            if busy is None:
                return first
            clash = busy + 1
        first = clash
    raise SandboxError(f"No {ports} adjacent TCP ports are free between {FIRST} and {LAST}, which the sandbox needs.")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        # As Slurm does it: a port whose last connection is only in TIME_WAIT counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
        return True


@contextlib.contextmanager
def _locked() -> Iterator[Path]:
    folder = registry_dir()
    while True:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:
            continue
        fcntl.flock(handle, fcntl.LOCK_EX)
        # The one who held the lock before may have removed the folder with its last entry.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == folder.stat().st_ino:
                break
        os.close(handle)
    try:
        yield folder
    finally:
        os.close(handle)
