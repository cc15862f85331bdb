"""The sandbox of several hosts: every node on one of its own, slurmctld on another.

Limits: one machine carries all of them; it needs namespaces and /dev/net/tun.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from own_sandbox import OwnDaemons, OwnSandbox
from patience import Patience

from slurm_elastic.daemon.sandbox import SandboxSpec, host
from slurm_elastic.daemon.sandbox.config import Layout, node_names
from slurm_elastic.daemon.sandbox.lifecycle import Startup, becoming
from slurm_elastic.protocol.errors import SandboxError

from . import init, links, names, namespaces
from .links import Links


@dataclass(frozen=True)
class HostsSpec(SandboxSpec):
    """What differs from a sandbox of this host alone."""

    hosts: str = "full"
    """Which names the hosts know: full, loopback or private."""
    primary: str = ""
    """The node whose host runs the primary slurmctld; head's is then the backup. Empty: head's is the only one."""


def check(spec: HostsSpec) -> None:
    """Raise SandboxError unless such hosts can be started here."""
    host.check(spec)
    with contextlib.suppress(OSError):
        if subprocess.run([*namespaces.UNSHARE, "true"], capture_output=True, check=False).returncode:
            raise SandboxError("A sandbox of several hosts needs namespaces, and 'unshare' is refused on this machine.")
        os.close(os.open("/dev/net/tun", os.O_RDWR))
        return
    raise SandboxError(
        "A sandbox of several hosts needs unshare and /dev/net/tun, which cannot be used on this machine."
    )


def host_names(spec: HostsSpec) -> list[str]:
    """head, n1, n2, …"""
    return [names.HEAD, *node_names(spec)]


class HostDaemons(OwnDaemons):
    """Also switch, host-head, host-nK (process 1 of a host) and munged-nK; and slurmctld-nK where head's is the
    backup."""

    _spec: HostsSpec

    def names(self) -> list[str]:
        nodes = node_names(self._spec)
        hosts, munged = [f"host-{name}" for name in host_names(self._spec)], [f"munged-{node}" for node in nodes]
        primary = [f"slurmctld-{self._spec.primary}"] if self._spec.primary else []
        return [*hosts, "switch", *munged, *primary, *super().names()]

    def on_host(self, host: str, command: list[str]) -> list[str]:
        """The command, as it has to be called from here to run on that host of the sandbox."""
        pid = self.pid(f"host-{host}")
        if not pid:
            raise SandboxError(f"No host {host} of the sandbox runs; it has: {', '.join(host_names(self._spec))}.")
        return namespaces.command_on(pid, command)

    def spawn(self, name: str, command: list[str]) -> None:
        place = self._place(name)
        super().spawn(name, self.on_host(place, command) if place else command)

    def command(self, name: str) -> list[str]:
        program, _, which = name.partition("-")
        if program == "host":
            python = [sys.executable, "-m", f"{__package__}.init"]
            return [*namespaces.UNSHARE, *python, str(self._at.dir / "hosts" / f"{which}.json")]
        if program == "switch":
            return [sys.executable, "-m", f"{__package__}.switch", str(self._at.dir)]
        words = super().command(name)
        # On a host of its own slurmd finds its node by the host's name.
        return [*words[:-2], *self._boot(which)] if program == "slurmd" else words

    def _place(self, name: str) -> str:
        """The host that a daemon belongs on; "" for the machine that carries them."""
        program, _, host = name.partition("-")
        if program in ("host", "switch"):
            return ""
        return host if program in ("munged", "slurmctld", "slurmd") and host else names.HEAD

    def _note(self, name: str, pid: int) -> None:
        # nsenter and unshare stay, and wait for what they started.
        super()._note(name, _only_child(pid) if name != "switch" else pid)
        if name.startswith("host-"):
            (self._at.dir / "plugged" / name.partition("-")[2]).write_text(str(self.pid(name)))

    def _boot(self, host: str) -> list[str]:
        """What tells slurmd that its host has booted, not only slurmd: the machine that carries it has not."""
        booted = self._pid_file(f"host-{host}").stat().st_mtime
        try:
            return ["-b"] if self._pid_file(f"slurmd-{host}").stat().st_mtime < booted else []
        except FileNotFoundError:
            return ["-b"]

    def _environment(self, name: str) -> dict[str, str]:
        python = {"PYTHONPATH": namespaces.python_path()} if name.startswith(("host-", "switch")) else {}
        return {**super()._environment(name), **python}


def _only_child(pid: int, patience_s: float = 20.0) -> int:
    """Pid of the one process that this one starts, once it has; of itself when it ends without."""
    patience = Patience(patience_s)
    while host.started_at(pid) and not patience.over():
        with contextlib.suppress(OSError):
            found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            if found:
                return int(found[0])
        time.sleep(0.002)
    return pid


class HostStartup(Startup):
    """First every host with its network and its munged."""

    _spec: HostsSpec

    def all(self) -> None:
        hosts = host_names(self._spec)
        for name in hosts:
            self.start_host(name)
        for name in hosts:
            self.wait_ready(f"host-{name}")
        for name in hosts[1:]:
            self._daemons.start(f"munged-{name}")
        for name in hosts[1:]:
            self.wait_ready(f"munged-{name}")
        super().all()

    def start_host(self, name: str) -> None:
        """Begin to start one host, and the switch with it; nothing of Slurm."""
        software = {sys.prefix, sys.base_prefix, *filter(None, sys.path), str(self._at.dir)}
        everything = host_names(self._spec)
        private = "" if name == names.HEAD else str(self._at.dir / "run")
        record = init.Host(name, names.hosts_file(name, everything, self._spec.hosts), tuple(sorted(software)), private)
        (self._at.dir / "hosts" / f"{name}.json").write_text(json.dumps(asdict(record)))
        self._daemons.start(f"host-{name}")
        self._daemons.start("switch")

    def _answers(self, name: str) -> bool:
        program, _, where = name.partition("-")
        if program == "host":
            ready = not (self._at.dir / "hosts" / f"{where}.json").exists()
            return ready and "eth0" in Path(f"/proc/{self._daemons.pid(name)}/net/route").read_text()
        return program == "switch" or super()._answers(name)


class HostsSandbox(OwnSandbox):
    """Get it from `HostsSandbox.up(HostsSpec(...))`."""

    spec_kind, daemons_kind, startup_kind = HostsSpec, HostDaemons, HostStartup
    spec: HostsSpec
    daemons: HostDaemons

    @classmethod
    def laid_out(cls, path: Path, first_port: int) -> Layout:
        return Layout(path, names.HEAD, first_port, (), names.address(names.HEAD))

    def run(
        self,
        command: Sequence[str],
        *,
        user: str | None = None,
        timeout_s: float = 300,
        env: dict[str, str] | None = None,
        on: str = names.HEAD,
    ) -> subprocess.CompletedProcess[str]:
        """As of any sandbox. on: the host."""
        words = self.daemons.on_host(on, [*becoming(user), *command])
        return super().run(words, timeout_s=timeout_s, env=env)

    @property
    def home(self) -> Path:
        """A folder for jobs that every host sees, as home is on most clusters; anybody may write there."""
        return self.dir / "home"

    @property
    def links(self) -> Links:
        """What happens now to packets between the hosts."""
        return links.read(self.dir / links.FILE)

    @links.setter
    def links(self, new: Links) -> None:
        """In force after some tenths of a second."""
        links.write(self.dir / links.FILE, new)

    def network(self) -> contextlib.AbstractContextManager[None]:
        """Until it is left, this thread has the network of slurmctld's host, and so has what it starts."""
        return namespaces.network_of(self.daemons.pid(f"host-{names.HEAD}"))

    def start_host(self, host: str) -> None:
        """Start a host of a node again, with its munged and slurmd."""
        startup = self._startup()
        assert isinstance(startup, HostStartup)
        startup.start_host(host)
        startup.wait_ready(f"host-{host}")
        self.start_daemon(f"munged-{host}")
        self.start_daemon(f"slurmd-{host}")

    def _write_files(self) -> None:
        super()._write_files()
        for folder in ("home", "hosts", "plugged"):
            (self.dir / folder).mkdir()
        self.home.chmod(0o1777)
        links.write(self.dir / links.FILE, Links())

    def _files(self) -> dict[str, tuple[str, int]]:
        files, spec, at = super()._files(), self.spec, self.layout
        conf, mode = files["slurm.conf"]
        primary = f"SlurmctldHost={spec.primary}({names.address(spec.primary)})\n" if spec.primary else ""
        changes = {
            f" NodeHostname={at.host} NodeAddr={at.address}": names.node_addr(spec.nodes, spec.hosts),
            "SlurmctldHost=": f"{primary}SlurmctldHost=",
            # A slurmctld kills the one that the file names: hosts must not share it.
            f"SlurmctldPidFile={at.dir}": "SlurmctldPidFile=/run",
        }
        for old, new in changes.items():
            assert conf.count(old) == 1, old
            conf = conf.replace(old, new)
        return {**files, "slurm.conf": (conf, mode)}
