"""What this machine offers a sandbox: root, Slurm's programs, a directory, device files that stand for GPUs; and which
of its processes are those of one sandbox, to end them and no others.

Every function either answers or raises SandboxError with one sentence that says what to do. A process belongs to a
sandbox when its environment carries the sandbox's random id; or it is a Slurm, MUNGE or MariaDB program that works
inside the sandbox's directory; or it is a task of one of its jobs; or it descends from one of these. Pids are looked up
at the moment of the kill, so a recycled one is never hit, and no record has to survive a crash.
Limit: reads /proc, hence Linux, and root, to see the processes of other users.
"""

import contextlib
import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from slurm_elastic.protocol import own_files
from slurm_elastic.protocol.errors import SandboxError

from .config import SandboxSpec

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,31}")
LONGEST_DIR = 64
"""Bytes: sockets inside the directory must fit the 107 that Linux allows for a socket's path."""

_ALWAYS = ("munged", "slurmctld", "slurmd", "scontrol", "sinfo", "squeue", "sbatch", "srun")
_ACCOUNTING = ("slurmdbd", "sacctmgr", "mariadbd", "mariadb-install-db")


def check(spec: SandboxSpec) -> None:
    """Raise SandboxError unless a sandbox can be started here: root, and every program present."""
    if os.geteuid() != 0:
        raise SandboxError("A sandbox needs root, because slurmd starts each job as its user: run this with sudo.")
    wanted = _ALWAYS + (_ACCOUNTING if spec.with_accounting else ())
    missing = [name for name in wanted if name not in spec.binaries and shutil.which(name, path=PATH) is None]
    if missing:
        raise SandboxError(
            f"A sandbox needs {', '.join(missing)}, not found on this machine: packaging/install-slurm-debian installs "
            "them without enabling any service."
        )


def program(spec: SandboxSpec, name: str) -> str:
    """Path of a program: the one the spec names, or the installed one."""
    return spec.binaries.get(name) or shutil.which(name, path=PATH) or name


def slurm_release(spec: SandboxSpec) -> tuple[int, int]:
    """(22, 5) for Slurm 22.05.8, asked of slurmctld itself."""
    try:
        answer = subprocess.run(
            [program(spec, "slurmctld"), "-V"], capture_output=True, text=True, timeout=20, check=False
        ).stdout
    except OSError as error:
        raise SandboxError(f"slurmctld of the sandbox cannot be run: {error}.") from error
    found = re.search(r"(\d+)\.(\d+)", answer)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def directory_path(name: str, wanted: Path | None) -> Path:
    """Where a sandbox of that name goes; nothing is made. SandboxError for a name or a path that cannot be used."""
    if not NAME.fullmatch(name):
        raise SandboxError(f"name={name!r} of the sandbox must be 1-32 letters, digits, '-' or '_'.")
    path = (wanted or Path(f"/tmp/selastic-sandbox-{name}")).absolute()
    if len(os.fsencode(path)) > LONGEST_DIR:
        raise SandboxError(f"dir={path} of the sandbox is longer than {LONGEST_DIR} bytes, too long for its sockets.")
    if re.search(r"[^A-Za-z0-9_./+-]", str(path)):
        raise SandboxError(f"dir={path} of the sandbox has characters that slurm.conf cannot hold.")
    return path


def make_directory(path: Path) -> None:
    """Make the directory, 0755 so that other users' commands can read slurm.conf; one's own empty one is taken over.

    Programs that run as root read their configuration and find their sockets in it, so nobody else may have made it,
    nor be able to rename it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for parent in (path.parent.resolve(), *path.parent.resolve().parents):
        found = parent.stat()
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWOTH | stat.S_ISVTX) == stat.S_IWOTH:
            raise SandboxError(f"dir={path} of the sandbox is not safe: others can rename what is in {parent}.")
    try:
        path.mkdir()
    except FileExistsError:
        if why := own_files.foreign(path):
            raise SandboxError(f"dir={path} of the sandbox is there and {why}: choose another.") from None
        if not path.is_dir() or any(path.iterdir()):
            raise SandboxError(
                f"dir={path} of the sandbox is there and not empty: remove it, or choose another."
            ) from None
    path.chmod(0o755)


def gpu_files(spec: SandboxSpec, inside: Path) -> tuple[str, ...]:
    """Character devices that stand for one node's GPUs; all nodes share them.

    Own copies of /dev/null where the machine lets us make device files, else terminals that exist.
    """
    if not spec.gpus_per_node:
        return ()
    made = []
    with contextlib.suppress(OSError):
        inside.mkdir(exist_ok=True)
        for index in range(spec.gpus_per_node):
            file = inside / f"gpu{index}"
            os.mknod(file, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            file.chmod(0o666)
            made.append(str(file))
        return tuple(made)
    terminals = [f"/dev/tty{i}" for i in range(1, 64) if Path(f"/dev/tty{i}").is_char_device()]
    if len(terminals) < spec.gpus_per_node:
        raise SandboxError(
            f"gpus_per_node={spec.gpus_per_node} of the sandbox needs as many character devices: none can be made in "
            f"{inside} (mknod is refused) and /dev has {len(terminals)} terminals to take instead."
        )
    return tuple(terminals[: spec.gpus_per_node])


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
