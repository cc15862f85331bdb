"""Finds and ends the processes of one sandbox, and no others.

A process belongs to a sandbox when its environment carries the sandbox's random id; or it is a Slurm, MUNGE or MariaDB
program that works inside the sandbox's directory; or it is a task of one of its jobs; or it descends from one of these.
Pids are looked up at the moment of the kill, so a recycled one is never hit, and no record has to survive a crash.
Limit: reads /proc, hence Linux, and root, to see the processes of other users.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ID_VARIABLE = "SELASTIC_SANDBOX_ID"
PROGRAMS = frozenset({"munged", "mariadbd", "mysqld", "slurmctld", "slurmdbd", "slurmd", "slurmstepd", "slurmscriptd"})


@dataclass(frozen=True)
class Process:
    """One line of /proc. started: clock ticks since boot."""

    pid: int
    parent: int
    started: int
    program: str


def started_at(pid: int) -> int:
    """Start time of a living process in clock ticks since boot; 0 when there is none (a zombie counts as none)."""
    process = _read(pid)
    return process.started if process else 0


def members(directory: Path, id: str) -> list[Process]:
    """Living processes of the sandbox in that directory, whatever started them."""
    everything = {process.pid: process for process in _all()}
    chosen = {pid for pid, process in everything.items() if _belongs(process, directory, id)}
    children: dict[int, list[int]] = {}
    for process in everything.values():
        children.setdefault(process.parent, []).append(process.pid)
    front = list(chosen)
    while front:
        for child in children.get(front.pop(), ()):
            if child not in chosen:
                chosen.add(child)
                front.append(child)
    # Never the caller, even if it runs inside a job of the sandbox that it takes down.
    return [everything[pid] for pid in sorted(chosen - {os.getpid()})]


def end_all(directory: Path, id: str, patience_s: float = 60.0) -> list[Process]:
    """SIGKILL every process of the sandbox until none is found. Returns those left after patience_s seconds.

    No grace: all that they could save lies in a directory that is about to be removed.
    """
    deadline = time.monotonic() + patience_s
    while left := members(directory, id):
        if time.monotonic() >= deadline:
            return left
        for process in left:
            kill(process)
        time.sleep(0.02)
    return []


def kill(process: Process, number: int = signal.SIGKILL) -> None:
    """Signal this very process; nothing happens when it has ended and its pid went to another one."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        handle = os.pidfd_open(process.pid)
        try:
            if started_at(process.pid) == process.started:
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)


def _belongs(process: Process, directory: Path, id: str) -> bool:
    environment = _words(process.pid, "environ")
    if f"{ID_VARIABLE}={id}" in environment:
        return True
    if process.program in PROGRAMS:
        inside = f"{directory}/"
        # Slurm's daemons write their title over their environment: look at arguments and open files as well.
        return any(inside in word for word in _words(process.pid, "cmdline")) or any(
            target.startswith(inside) for target in _open_files(process.pid)
        )
    # salloc and srun set SLURM_JOB_ID for their callers too; SLURMD_NODENAME exists in tasks on a node only.
    return f"SLURM_CONF={directory}/slurm.conf" in environment and any(
        word.startswith("SLURMD_NODENAME=") for word in environment
    )


def _all() -> Iterator[Process]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            process = _read(int(entry.name))
            if process is not None:
                yield process


def _read(pid: int) -> Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    fields = rest.split()
    if fields[0] in "ZX":
        return None
    with contextlib.suppress(OSError):
        name = Path(f"/proc/{pid}/exe").readlink().name
    return Process(pid, int(fields[1]), int(fields[19]), name)


def _words(pid: int, file: str) -> list[str]:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _open_files(pid: int) -> Iterator[str]:
    links = [Path(f"/proc/{pid}/cwd")]
    with contextlib.suppress(OSError):
        links += Path(f"/proc/{pid}/fd").iterdir()
    for link in links:
        with contextlib.suppress(OSError):
            yield str(link.readlink())
