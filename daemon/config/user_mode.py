"""What `selasticd --user` takes from where it runs: an address that compute nodes reach, a local disk for its database.

Promise: finding out changes nothing. client.json stays in the home directory, where jobs on every host read it; what
SQLite writes does not go to a network file system.
Limit: the address is the one that packets to the nodes leave from; what a firewall does with those coming back is not
seen. A database on a local disk stays behind when the daemon is started on another host.
"""

import os
import socket
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from slurm_elastic.protocol.errors import ConfigError

AUTO = "auto"
"""The host in `listen` that stands for the address of this host that the compute nodes reach."""
LOCAL = Path("/var/tmp")
TRIES = 8
"""Nodes whose names may be unknown here before it is given up: each can take seconds."""


def defaults() -> dict[str, Any]:
    """Settings of a user's own daemon, where their file says nothing else."""
    from slurm_elastic.db.engine import file_system, is_network

    home = Path(os.path.expanduser("~")) / ".slurm-elastic"  # noqa: PTH111 - no error without a home
    found: dict[str, Any] = {"listen": f"{AUTO}:0", "state_dir": str(home), "mode": "act", "fairness": "job"}
    found |= {"max_weight": 1000.0, "supervisor_requests": True}
    if is_network(file_system(home)):
        found["database_url"] = f"sqlite:///{local_folder() / 'selastic.db'}"
    return found


def local_folder() -> Path:
    """Where a user's database goes when their home directory is on a network file system."""
    return LOCAL / f"slurm-elastic-{os.geteuid()}"


def make_local_folder(database_url: str) -> None:
    """Make it if the database lies in it. /var/tmp is open to everyone: raises ConfigError unless it is ours alone."""
    folder = local_folder()
    if not database_url.startswith(f"sqlite:///{folder}/"):
        return
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}); set database_url") from None
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise ConfigError(
            f"{folder} is not a directory that is yours alone (mode 0700); remove it, or set database_url"
        )


def own_address_towards(nodes: Iterable[str]) -> str:
    """The address of this host from which these hosts are reached: of the first that is not this very host, or a
    loopback address when all are. Nothing is sent. Raises ConfigError when none of them is known here."""
    loopback, unknown = "", 0
    for node in dict.fromkeys(nodes):
        try:
            family, _, _, _, where = socket.getaddrinfo(node, 9, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(where)
                found = str(probe.getsockname()[0])
        except OSError:
            unknown += 1
            if unknown == TRIES:
                break
            continue
        if not found.startswith("127.") and found != "::1":
            return found
        loopback = loopback or found
    if not loopback:
        raise ConfigError(f"listen={AUTO}: no node of Slurm's is known by name here; accepted: an address as HOST:PORT")
    return loopback
