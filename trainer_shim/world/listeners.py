"""gloo's listening sockets, which torch leaves open as long as a group lives, for whoever connects.

gloo keeps every connection that says nothing, and aborts the process that has no descriptor left for one. Once all
ranks have made a group nobody else has to connect: its listeners then hear nothing more. Limit: Linux; until then
anybody may connect; a group that the script makes itself is left as torch makes it. NCCL's own listeners have to hear
on: a communicator whose do not waits for ever in its end (seen on a GPU).
"""

import contextlib
import ctypes
import os
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

_ATTACH_FILTER = 26
_DROP = struct.pack("HBBI", 0x06, 0, 0, 0)
"""The program of a socket's filter that lets nothing through: return 0."""


@contextlib.contextmanager
def deaf_when_made(only_gloo: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Groups are made in here, by all ranks: when this ends their listeners drop what comes. only_gloo: whether NCCL
    has made nothing meanwhile, as it does at once where a group is bound to its device."""
    before = {inode for inode, _ in _listening()}
    yield
    lazy = os.environ.get("TORCH_GLOO_LAZY_INIT", "0").lower() in ("1", "true", "yes", "on", "y", "t")
    if lazy or not only_gloo():  # members connect when they first speak
        return
    program = ctypes.create_string_buffer(_DROP)
    for inode, number in _listening():
        if inode not in before:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(number)) as listener:
                listener.setsockopt(socket.SOL_SOCKET, _ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(program)))


def _listening() -> Iterator[tuple[str, int]]:
    """Inode and descriptor of each of this process's listening TCP sockets."""
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            inode, number = str(entry.readlink()), int(entry.name)
            if inode.startswith("socket:"):
                with socket.socket(fileno=os.dup(number)) as sock:
                    tcp = sock.family != socket.AF_UNIX and sock.type == socket.SOCK_STREAM
                    if tcp and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        yield inode, number
