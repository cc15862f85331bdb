"""Process 1 of a host of a sandbox: `python -m sandbox_of_hosts.init FILE`, under `unshare`.

It gives the host a name, an /etc/hosts and a /tmp, /var/tmp, /run and /dev/shm of its own, then buries the dead until
it is killed, and the host with it. All else is the machine's: programs, users, and the sandbox's directory, where the
site's shared files are. FILE says what differs (`Host`), and disappears when the host is ready.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
OWN = ("/tmp", "/var/tmp", "/run", "/dev/shm")


@dataclass(frozen=True)
class Host:
    """What makes a host."""

    name: str
    hosts_file: str
    kept: tuple[str, ...]
    """Folders that stay visible though they lie below one of OWN."""
    private: str = ""
    """A folder in which every host sees files of its own."""


def main(file: str) -> None:
    """Become the host that the file describes."""
    host = Host(**json.loads(Path(file).read_text()))
    # Process 1 gets no signal that it does not handle.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    mount("none", "/", "", MS_REC | MS_PRIVATE)
    mount("proc", "/proc", "proc")
    kept = {path: os.open(path, os.O_PATH) for path in host.kept if path.startswith(tuple(f"{own}/" for own in OWN))}
    for folder in OWN:
        mount("tmpfs", folder, "tmpfs")
        Path(folder).chmod(0o755 if folder == "/run" else 0o1777)
    for path, descriptor in kept.items():
        Path(path).mkdir(parents=True, exist_ok=True)
        mount(f"/proc/self/fd/{descriptor}", path, "", MS_BIND | MS_REC)
        os.close(descriptor)
    if host.private:
        mount("tmpfs", host.private, "tmpfs")
        Path(host.private).chmod(0o755)
    files = {"/etc/hosts": host.hosts_file, "/etc/hostname": f"{host.name}\n", "/etc/resolv.conf": ""}
    for path, text in files.items():
        own = Path("/run", Path(path).name)
        own.write_text(text)
        with contextlib.suppress(FileNotFoundError):  # a link to a file below /run that is not there any more
            mount(str(own), os.path.realpath(path), "", MS_BIND)
    socket.sethostname(host.name)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    Path(file).unlink()
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigtimedwait([signal.SIGCHLD], 5)


def mount(source: str, target: str, kind: str, flags: int = 0) -> None:
    """mount(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), None):
        number = ctypes.get_errno()
        raise OSError(number, f"mount {source} on {target}: {os.strerror(number)}")


if __name__ == "__main__":
    main(sys.argv[1])
