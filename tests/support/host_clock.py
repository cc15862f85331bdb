"""A clock that a test sets, for running programs: what they ask for the time of day is answered by host_clock.c.

Limit: it holds for the programs that are started with its `env`, and for what these start. MUNGE's and Slurm's daemons
have the machine's clock unless they are among them.
"""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sandbox_of_hosts.sandbox import HostsSandbox

SOURCE = Path(__file__).with_name("host_clock.c")


class HostClock:
    """A host's clock, so many seconds ahead of the machine's. A program sees each change at once."""

    def __init__(self, file: Path, library: Path, seen: str = "") -> None:
        """library: where the programs find it. seen: where they find the file, if they run on a host of their own."""
        self.file = file
        self.env = {"LD_PRELOAD": str(library), "CLOCK_FILE": seen or str(file)}
        self.file.write_bytes(struct.pack("d", 0.0))

    def set(self, ahead: float) -> None:
        with self.file.open("r+b") as file:
            file.write(struct.pack("d", ahead))


def build(folder: Path) -> Path:
    """The library that is preloaded."""
    library = folder / "host_clock.so"
    command = ["gcc", "-shared", "-fPIC", "-O2", "-Wall", "-Werror", "-o", str(library), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True)
    return library


@contextmanager
def clock_of(hosts: HostsSandbox, name: str) -> Iterator[HostClock]:
    """The clock of one of a sandbox's hosts, its munged and slurmd included; jobs there need its environment."""
    seen = "/run/clock"  # each host has a /run of its own: on the others the programs find none
    inside = Path(f"/proc/{hosts.daemons.pid(f'host-{name}')}/root{seen}")
    clock = HostClock(inside, build(hosts.home), seen)
    words = ["env", *(f"{key}={value}" for key, value in clock.env.items())]
    both = (f"munged-{name}", f"slurmd-{name}")
    try:
        for each in both:
            hosts.daemons.stop(each)
            hosts.daemons.spawn(each, [*words, *hosts.daemons.command(each)])
            hosts.start_daemon(each)
        yield clock
    finally:
        clock.set(0)
        for each in both:
            hosts.daemons.stop(each)
            hosts.start_daemon(each)


@pytest.fixture
def host_clock(tmp_path: Path) -> HostClock:
    """The clock of the programs that a test starts with its environment."""
    return HostClock(tmp_path / "clock", build(tmp_path))
