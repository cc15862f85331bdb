"""Carries packets between the hosts of a sandbox: `python -m slurm_elastic.daemon.sandbox.hosts.switch DIR`.

One TUN device per host, all held here; so delay and loss need nothing of the kernel (netem is missing in many). DIR
holds `links.json` (see links) and a file per host under `plugged` with the pid of its process 1; both are looked at
often, so a host that was started again is plugged in again. Limit: IPv4, and what one processor can copy.
"""

from __future__ import annotations

import fcntl
import heapq
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


class Switch:
    """See the module."""

    def __init__(self, directory: Path) -> None:
        self._dir = directory
        self._links, self._read_at = links.Links(), 0
        self._tried: dict[str, int] = {}
        """Host -> pid of the process 1 that was plugged in last."""
        self._ports: dict[str, int] = {}
        self._host_of: dict[int, str] = {}
        self._port_to: dict[bytes, str] = {}
        self._late: list[tuple[float, int, str, bytes]] = []
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
                self._unplug(plugged.name)
                self._plug(plugged.name, pid)

    def _plug(self, host: str, pid: int) -> None:
        """A device for the host, moved into its network under the name eth0."""
        device = f"se{os.getpid()}-{next(self._count)}"[:15]
        descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        fcntl.ioctl(descriptor, TUNSETIFF, struct.pack("16sH14x", device.encode(), IFF_TUN | IFF_NO_PI))
        try:
            _ip("link", "set", device, "netns", str(pid), "name", "eth0")
            inside = namespaces.command_in_network(pid, ["ip"])
            address = names.address(host)
            _ip("addr", "add", f"{address}/{names.PREFIX_LENGTH}", "dev", "eth0", prefix=inside)
            _ip("link", "set", "eth0", "mtu", str(MTU), "txqueuelen", "5000", "up", prefix=inside)
        except subprocess.CalledProcessError as error:  # the host died just now
            print(f"{host}: {error.stderr}", file=sys.stderr, flush=True)
            os.close(descriptor)
            return
        self._ports[host] = descriptor
        self._host_of[descriptor] = host
        self._port_to[bytes(int(part) for part in address.split("."))] = host
        self._poll.register(descriptor, select.EPOLLIN)

    def _forward(self, descriptor: int) -> None:
        sender = self._host_of.get(descriptor, "")
        for _ in range(256):
            try:
                packet = os.read(descriptor, 65535)
            except BlockingIOError:
                return
            except OSError:  # the host is gone, and its device with it
                self._unplug(sender)
                return
            receiver = self._port_to.get(packet[16:20], "") if packet[0] >> 4 == 4 else ""
            link = self._links.between(sender, receiver)
            if not receiver or (link.loss and random.random() < link.loss):
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

    def _deliver(self, receiver: str, packet: bytes) -> None:
        descriptor = self._ports.get(receiver)
        if descriptor is None:
            return
        try:
            os.write(descriptor, packet)
        except BlockingIOError:  # its queue is full: lost, as in any switch
            pass
        except OSError:
            self._unplug(receiver)

    def _unplug(self, host: str) -> None:
        descriptor = self._ports.pop(host, None)
        if descriptor is not None:
            self._poll.unregister(descriptor)
            del self._host_of[descriptor]
            os.close(descriptor)


def _ip(*words: str, prefix: list[str] | None = None) -> None:
    subprocess.run([*(prefix or ["ip"]), *words], check=True, capture_output=True, text=True)


if __name__ == "__main__":
    Switch(Path(sys.argv[1])).run()
