"""One supervisor per job directory: a lock on a file in it, and in that file a lease that is renewed every few seconds.

Promise: the kernel gives the lock back with the process, however that ends: a killed supervisor is followed at once on
its host. Elsewhere the lock may not be seen (a mount without locks), or be seen for ever (NFS 3, when its holder's host
has crashed): there the lease counts as long as it is renewed. Who finds another's in place of its own ends.
Limit: on a mount without locks two that begin in the same second on two hosts both run until the next renewal.
"""

import contextlib
import fcntl
import json
import os
import secrets
import socket
import time
from pathlib import Path
from typing import Any

from slurm_elastic.protocol.errors import ConfigError

FILE = ".supervisor"
RENEW_S = 5.0
SILENT_S = 20.0
"""A lease that is not renewed for so long has no holder any more."""
DYING_S = 2.0
"""How long a process of this host that was killed may still hold the lock."""
SIZE = 512
"""Bytes of a lease; always the same, so that a write is seen whole and needs no new room on the disk."""


class Lease:
    """The lease of this supervisor on one job directory."""

    def __init__(self, place: Path, job: str = "", restarts: int = 0, silent_s: float = SILENT_S) -> None:
        """job: Slurm's id; "" without Slurm. restarts: how often Slurm has started it again, so that its earlier runs
        are over. Waits up to silent_s seconds; raises ConfigError when another supervisor has the directory."""
        self._path = place / FILE
        self._lease: dict[str, Any] = {
            "token": secrets.token_hex(8),
            "boot": _boot(),
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "job": job,
            "restarts": restarts,
            "count": 0,
            "over": False,
        }
        try:
            self._file = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
            self._wait_until_free(silent_s)
            self._write()
        except OSError as error:
            raise ConfigError(
                f"the job directory {place} cannot be leased ({error.strerror}); "
                "accepted: --job-dir on a file system that all nodes share and you can write to"
            ) from None

    def renew(self) -> bool:
        """Whether the directory is still this supervisor's. Raises OSError."""
        if self._read().get("token", self._lease["token"]) != self._lease["token"]:
            return False
        self._write()
        return True

    def give_back(self) -> None:
        """Nobody has to wait until it is silent. Raises OSError."""
        if self._read().get("token") == self._lease["token"]:
            self._lease["over"] = True
            self._write()

    def _wait_until_free(self, silent_s: float) -> None:
        first, began = self._read(), time.monotonic()
        while True:
            locked, held = self._lock(), self._read()
            waited, here = time.monotonic() - began, held.get("boot") == self._lease["boot"]
            over = held.get("over", True) or (here and locked is True)
            restarted = held.get("job") and held["job"] == self._lease["job"]
            if (over and locked is not False) or waited >= silent_s:
                return
            if restarted and held["restarts"] < self._lease["restarts"]:  # Slurm ends a run before it starts the next
                return
            if (held != first and not over) or (here and locked is False and waited >= DYING_S):
                whose = f"of job {held['job']} " if held.get("job") else ""
                raise ConfigError(
                    f"the job directory {self._path.parent} is in use by the supervisor {whose}on {held.get('host')} "
                    f"(process {held.get('pid')}); accepted: one selastic run at a time, or another --job-dir"
                )
            time.sleep(0.1)

    def _lock(self) -> bool | None:
        """Whether it is ours now; None where the file system has no locks."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:
            return None
        return True

    def _read(self) -> dict[str, Any]:
        """The lease in the file, opened anew: what another host has written is seen then. {} if there is none."""
        try:
            held = json.loads(self._path.read_bytes() or b"{}")
        except (FileNotFoundError, ValueError):
            return {}
        return held if isinstance(held, dict) else {}

    def _write(self) -> None:
        self._lease["count"] += 1
        with contextlib.suppress(FileNotFoundError):  # somebody has removed the directory
            file = os.open(self._path, os.O_WRONLY)
            try:
                os.pwrite(file, json.dumps(self._lease).ljust(SIZE).encode(), 0)
            finally:
                os.close(file)


def _boot() -> str:
    """What tells this start of this host from all others."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()
