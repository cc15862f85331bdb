"""What this machine offers a sandbox: root, Slurm's programs, a directory, device files that stand for GPUs.

Every function either answers or raises SandboxError with one sentence that says what to do.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
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
