"""Entering the namespaces of a host of a sandbox, from the machine that carries it.

Limit: Linux, and root.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from collections.abc import Iterator

CLONE_NEWNET = 0x40000000
UNSHARE = ("unshare", "--mount", "--uts", "--ipc", "--pid", "--net", "--fork", "--kill-child", "--")
"""What a host consists of. The command after it is the host's process 1."""


def command_on(init: int, command: list[str]) -> list[str]:
    """The command, on the host whose process 1 has this pid here."""
    return ["nsenter", f"--target={init}", "--mount", "--uts", "--ipc", "--pid", "--net", "--", *command]


def command_in_network(init: int, command: list[str]) -> list[str]:
    """The command, here, but with that host's network."""
    return ["nsenter", f"--target={init}", "--net", "--", *command]


@contextlib.contextmanager
def network_of(init: int) -> Iterator[None]:
    """This thread has that host's network, and so has what it starts: threads and processes."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(descriptor: int) -> None:
        if libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")

    with open("/proc/thread-self/ns/net") as own, open(f"/proc/{init}/ns/net") as theirs:
        enter(theirs.fileno())
        try:
            yield
        finally:
            enter(own.fileno())


def python_path() -> str:
    """PYTHONPATH of a Python process that is to find this package."""
    return os.pathsep.join(path for path in sys.path if path)
