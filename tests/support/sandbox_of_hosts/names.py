"""Names and addresses of a sandbox's hosts, and which of them each host knows. Pure."""

from __future__ import annotations

HEAD = "head"
"""The host of slurmctld and slurmdbd; selasticd belongs there too."""
KINDS = {
    "full": "every host knows every name",
    "loopback": "the own name is 127.0.1.1, as Debian and Ubuntu install it; the others' are known",
    "private": "the own name is real, the others' are unknown",
}
_NETWORK = "10.77.0"
PREFIX_LENGTH = 24
_SECOND_NETWORK = "fd77"
SECOND_PREFIX_LENGTH = 64
FIRST, SECOND = "eth0", "ib0"
"""The interfaces of every host, as Ethernet and InfiniBand are called."""


def address(host: str) -> str:
    """The address of head, n1, n2, …; it means something inside the sandbox only."""
    return f"{_NETWORK}.{254 if host == HEAD else int(host.removeprefix('n'))}"


def second_address(host: str) -> str:
    """Its address on the second network, which speaks IPv6 alone and has no names."""
    return f"{_SECOND_NETWORK}::{address(host).rpartition('.')[2]}"


def node_addr(nodes: int, kind: str) -> str:
    """What slurm.conf says of the addresses of n1, n2, …: nothing where names lead to them, as most sites have it."""
    if kind != "private":
        return ""
    return " NodeAddr=" + (address("n1") if nodes == 1 else f"{_NETWORK}.[1-{nodes}]")


def hosts_file(own: str, hosts: list[str], kind: str) -> str:
    """/etc/hosts of one host."""
    known = {"localhost": "127.0.0.1"}
    if kind != "private":
        known |= {host: address(host) for host in hosts}
    known[own] = "127.0.1.1" if kind == "loopback" else address(own)
    return "".join(f"{where} {name}\n" for name, where in known.items())
