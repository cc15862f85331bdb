"""Carries packets between the hosts of a sandbox: `python -m sandbox_of_hosts.switch DIR`.

Two TUN devices per host, one for each network, all held here; so delay and loss need nothing of the kernel (netem is
missing in many). DIR holds `links.json` (see links) and a file per host under `plugged` with the pid of its process 1;
both are looked at often, so a host that was started again is plugged in again. Limits: what one processor can copy;
without IPv6 in the kernel there is no second network.
"""

from __future__ import annotations

import fcntl
import heapq
import ipaddress
import itertools
import os
import random
import select
import struct
import subprocess
import sys
import time
from pathlib import Path

from . import links, names, namespaces

TUNSETIFF, IFF_TUN, IFF_NO_PI = 0x400454CA, 0x0001, 0x1000
MTU = 9000
LOOK_S = 0.05
Port = tuple[str, str]
"""A host, and one of its interfaces."""


class Switch:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        self._links, self._read_at = links.Links(), 0
        self._tried: dict[str, int] = {}
        """Host -> pid of the process 1 that was plugged in last."""
        self._ports: dict[Port, int] = {}
        self._port_of: dict[int, Port] = {}
        self._port_to: dict[bytes, Port] = {}
        self._late: list[tuple[float, int, Port, bytes]] = []
        self._count = itertools.count()
        self._poll = select.epoll()

    def run(self) -> None:
        """For ever."""
        looked = 0.0
        while True:
            now = time.monotonic()
            if now - looked >= LOOK_S:
                looked = now
                self._look()
            wait = min(LOOK_S, self._late[0][0] - now) if self._late else LOOK_S
            for descriptor, _ in self._poll.poll(max(wait, 0)):
                self._forward(descriptor)
            self._deliver_late()

    def _look(self) -> None:
        file = self._dir / links.FILE
        changed = file.stat().st_mtime_ns
        if changed != self._read_at:
            self._links, self._read_at = links.read(file), changed
        for plugged in (self._dir / "plugged").iterdir():
            pid = int(plugged.read_text() or 0)
            if pid and self._tried.get(plugged.name) != pid:
                self._tried[plugged.name] = pid
                first, second = names.address(plugged.name), names.second_address(plugged.name)
                self._plug((plugged.name, names.FIRST), pid, first, names.PREFIX_LENGTH)
                if Path(f"/proc/{pid}/net/if_inet6").exists():
                    self._plug((plugged.name, names.SECOND), pid, second, names.SECOND_PREFIX_LENGTH)

    def _plug(self, port: Port, pid: int, address: str, length: int) -> None:
        """A device for the host, moved into its network under the interface's name."""
        self._unplug(port)
        host, interface = port
        device = f"se{os.getpid()}-{next(self._count)}"[:15]
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH14x", device.encode(), IFF_TUN | IFF_NO_PI))
        try:
            _ip("link", "set", device, "netns", str(pid), "name", interface)
            inside = namespaces.command_in_network(pid, ["ip"])
            _ip("addr", "add", f"{address}/{length}", "dev", interface, prefix=inside)
            _ip("link", "set", interface, "mtu", str(MTU), "txqueuelen", "5000", "up", prefix=inside)
        except subprocess.CalledProcessError as error:  # the host died just now
            print(f"{host}: {error.stderr}", file=sys.stderr, flush=True)
            os.close(descriptor)
            return
        self._ports[port] = descriptor
        self._port_of[descriptor] = port
        self._port_to[ipaddress.ip_address(address).packed] = port
        self._poll.register(descriptor, select.EPOLLIN)

    def _forward(self, descriptor: int) -> None:
        port = self._port_of.get(descriptor)
        if port is None:
            return
        sender, interface = port
        for _ in range(256):
            try:
                packet = os.read(descriptor, 65535)
            except BlockingIOError:
                return
            except OSError:  # the host is gone, and its device with it
                self._unplug(port)
                return
            receiver = self._port_to.get(packet[16:20] if packet[0] >> 4 == 4 else packet[24:40])
            if receiver is None or receiver[1] != interface:
                continue
            link = self._links.between(sender, receiver[0], interface)
            if link.loss and random.random() < link.loss:
                continue
            if link.delay_s:
                heapq.heappush(self._late, (time.monotonic() + link.delay_s, next(self._count), receiver, packet))
            else:
                self._deliver(receiver, packet)

    def _deliver_late(self) -> None:
        now = time.monotonic()
        while self._late and self._late[0][0] <= now:
            _, _, receiver, packet = heapq.heappop(self._late)
            self._deliver(receiver, packet)

    def _deliver(self, receiver: Port, packet: bytes) -> None:
        descriptor = self._ports.get(receiver)
        if descriptor is None:
            return
        try:
            os.write(descriptor, packet)
        except BlockingIOError:  # its queue is full: lost, as in any switch
            pass
        except OSError:
            self._unplug(receiver)

    def _unplug(self, port: Port) -> None:
        descriptor = self._ports.pop(port, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            del self._port_of[descriptor]
            os.close(descriptor)


def _ip(*words: str, prefix: list[str] | None = None) -> None:
    subprocess.run([*(prefix or ["ip"]), *words], check=True, capture_output=True, text=True)


if __name__ == "__main__":
    Switch(Path(sys.argv[1])).run()
