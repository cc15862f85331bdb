"""This host's network interfaces and their addresses, as getifaddrs(3) lists them.

Limit: Linux.
"""

import ctypes
import ipaddress
import socket
from collections.abc import Iterator
from contextlib import contextmanager

LOOPBACK = "127.0.0.1"


class _Interface(ctypes.Structure):
    pass


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.POINTER(ctypes.c_ubyte)),
]


def addresses() -> list[tuple[str, str]]:
    """(interface, address) of this host, IPv4 before IPv6; addresses that hold on one cable only are left out."""
    with _listed() as first:
        found = [(name, address) for name, address in _walk(first) if not ipaddress.ip_address(address).is_link_local]
    return sorted(found, key=lambda pair: ":" in pair[1])


def with_address(address: str) -> str:
    """The interface that has this address; "" when none has."""
    return next((name for name, own in addresses() if own == address), "")


def family(address: str) -> socket.AddressFamily:
    """Of a socket for this address."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def is_loopback(address: str) -> bool:
    """Whether this address means, on every host, that host itself."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


@contextmanager
def _listed() -> Iterator[object]:
    libc = ctypes.CDLL(None, use_errno=True)
    first = ctypes.POINTER(_Interface)()
    if libc.getifaddrs(ctypes.byref(first)):
        raise OSError(ctypes.get_errno(), "getifaddrs")
    try:
        yield first
    finally:
        libc.freeifaddrs(first)


def _walk(entry: object) -> Iterator[tuple[str, str]]:
    while entry:
        interface = entry.contents  # type: ignore[attr-defined]
        if interface.address:
            family = ctypes.cast(interface.address, ctypes.POINTER(ctypes.c_ushort)).contents.value
            # struct sockaddr_in and sockaddr_in6: where the address is in them, and how long.
            where = {int(socket.AF_INET): (4, 4), int(socket.AF_INET6): (8, 16)}.get(family)
            if where is not None:
                packed = bytes(interface.address[where[0] : sum(where)])
                yield interface.name.decode(), socket.inet_ntop(family, packed)
        entry = interface.next
