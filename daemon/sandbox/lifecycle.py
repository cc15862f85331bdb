"""A private real Slurm on this host: up, status, down; in which order its daemons start, and when each one answers.

Promise: `up` returns a cluster that runs jobs or raises SandboxError saying which daemon failed and what it logged;
`down` removes every process and the directory and may be called twice, also where `up` was killed.
Limit: one host; everything runs as root; jobs' own output files in other directories are not removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pwd
import secrets
import shutil
import socket
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

from slurm_elastic.protocol.errors import SandboxError

from . import host, registry
from .config import ACCOUNT, CLUSTER, USERS, Layout, SandboxSpec, node_names, ports_needed, render
from .daemons import Daemons, accepts_unix, listens

USABLE = frozenset({"idle", "mixed", "allocated", "completing"})
"""States of a node that takes jobs, as sinfo's %T spells them."""


class Startup:
    """Starts what one sandbox consists of. run: a Slurm command; nodes: name -> state, as Slurm has it now."""

    def __init__(
        self,
        spec: SandboxSpec,
        at: Layout,
        daemons: Daemons,
        run: Callable[[list[str]], subprocess.CompletedProcess[str]],
        nodes: Callable[[], dict[str, str]],
    ) -> None:
        self._spec, self._at, self._daemons, self._run, self._nodes = spec, at, daemons, run, nodes

    def all(self) -> None:
        """Start everything and wait until every node takes jobs. SandboxError names the daemon that failed."""
        self._daemons.start("munged")
        if self._spec.with_accounting:
            self._start_accounting()
        self.wait_ready("munged")
        if self._spec.with_accounting:
            self._sacctmgr("add", "cluster", CLUSTER)
        nodes = [f"slurmd-{node}" for node in node_names(self._spec)]
        # One after the other: the first one finds an empty folder for its state.
        for name in (name for name in self._daemons.names() if name.startswith("slurmctld")):
            self._daemons.start(name)
            self.wait_ready(name)
        for name in nodes:
            self._daemons.start(name)
        if self._spec.with_accounting:
            self._sacctmgr("add", "account", ACCOUNT, f"cluster={CLUSTER}")
            self._sacctmgr("add", "user", ",".join(USERS), f"account={ACCOUNT}", f"cluster={CLUSTER}")
        for name in nodes:
            self.wait_ready(name)

    def _start_accounting(self) -> None:
        data = self._at.dir / "db"
        data.mkdir()
        shutil.chown(data, "mysql", "mysql")
        install = [
            host.program(self._spec, "mariadb-install-db"),
            f"--defaults-file={self._at.dir}/my.cnf",
            "--user=mysql",
            "--skip-test-db",
            "--skip-name-resolve",
            "--auth-root-authentication-method=socket",
        ]
        self._daemons.spawn("mariadb-install-db", install)
        self._daemons.wait_for_end("mariadb-install-db")
        self._daemons.start("mariadbd")
        self.wait_ready("mariadbd")
        self.wait_ready("munged")  # slurmdbd gives up without it
        self._daemons.start("slurmdbd")
        self.wait_ready("slurmdbd")

    def wait_ready(self, name: str) -> None:
        """Wait until one daemon, just started, answers."""
        # A stranger on the port would answer too: the daemon itself has to be alive as well.
        self._daemons.wait(name, lambda: bool(self._daemons.pid(name)) and self._answers(name))

    def _answers(self, name: str) -> bool:
        at = self._at
        program, _, where = name.partition("-")
        pid = self._daemons.pid(name)
        if program == "munged":
            # As the daemon itself sees it, whose root may be another one.
            return accepts_unix(Path(f"/proc/{pid}/root{at.munge_socket}"))
        if name == "mariadbd":
            return accepts_unix(at.dir / "db" / "mysql.sock")
        if name == "slurmdbd":
            return listens(pid, at.slurmdbd_port)
        if program == "slurmctld":
            return listens(pid, at.slurmctld_port) and "UP" in self._run(["scontrol", "ping"]).stdout
        return self._nodes().get(where) in USABLE

    def _sacctmgr(self, *words: str) -> None:
        answer = self._run([host.program(self._spec, "sacctmgr"), "-i", *words])
        if answer.returncode != 0:
            said = (answer.stderr or answer.stdout).strip()
            raise SandboxError(f"slurmdbd of the sandbox refused 'sacctmgr {' '.join(words)}': {said}")


ID_FILE = "sandbox.id"
"""Marks a directory as made by a sandbox: only such a one is ever removed."""


@dataclasses.dataclass(frozen=True)
class Status:
    """What runs of a sandbox. daemons: name -> pid, 0 = not running. nodes: name -> Slurm's state, {} = no answer."""

    daemons: dict[str, int]
    nodes: dict[str, str]

    @property
    def ready(self) -> bool:
        """All daemons run, and every node can take jobs."""
        return all(self.daemons.values()) and bool(self.nodes) and all(s in USABLE for s in self.nodes.values())


class Sandbox:
    """One private Slurm. Get it from `up` or `attach`; use it as a context manager to have it taken down."""

    spec_kind, daemons_kind, startup_kind = SandboxSpec, Daemons, Startup

    def __init__(self, entry: registry.Entry, spec: SandboxSpec, layout: Layout) -> None:
        self.entry, self.spec, self.layout = entry, spec, layout
        self.daemons = self.daemons_kind(spec, layout, entry.id)

    @classmethod
    def up(
        cls,
        spec: SandboxSpec | None = None,
        *,
        name: str | None = None,
        directory: Path | None = None,
        first_port: int | None = None,
    ) -> Sandbox:
        """Start a sandbox and wait until all its nodes are idle (a few seconds).

        name: to find it again; random by default. directory: new or empty; default /tmp/selastic-sandbox-<name>.
        first_port: first of its ports, unchecked; by default a free block is found.
        """
        spec = spec or SandboxSpec()
        host.check(spec)
        name = name or f"{os.getpid()}-{secrets.token_hex(3)}"
        path = host.directory_path(name, directory)
        entry = registry.register(name, path, secrets.token_hex(8), ports_needed(spec), first_port)
        sandbox = cls(entry, spec, cls.laid_out(path, entry.first_port))
        try:
            sandbox._write_files()
            sandbox._startup().all()
        except BaseException:
            sandbox.down()
            raise
        return sandbox

    @classmethod
    def attach(cls, name: str) -> Sandbox:
        """The sandbox of that name, started by whatever process. SandboxError when there is none."""
        entry = registry.find(name)
        if entry is None:
            known = ", ".join(e.name for e in registry.entries()) or "none"
            raise SandboxError(f"No sandbox is named {name!r}; there are: {known}.")
        spec, layout = SandboxSpec(), Layout(Path(entry.dir), "", entry.first_port, ())
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # a start that was cut short
            record = json.loads((layout.dir / "sandbox.json").read_text())
            record["spec"]["extra_slurm_conf"] = tuple(record["spec"]["extra_slurm_conf"])
            spec = cls.spec_kind(**record["spec"])
            at = {"host": record["host"], "address": record["address"], "gpu_files": tuple(record["gpu_files"])}
            layout = dataclasses.replace(layout, **at)
        return cls(entry, spec, layout)

    @classmethod
    def laid_out(cls, path: Path, first_port: int) -> Layout:
        return Layout(path, socket.gethostname().split(".")[0], first_port, ())

    @property
    def dir(self) -> Path:
        """The directory that holds everything of this sandbox."""
        return self.layout.dir

    @property
    def env(self) -> dict[str, str]:
        """What Slurm's commands need in their environment; everything else they read from slurm.conf."""
        return {"SLURM_CONF": str(self.layout.slurm_conf)}

    def run(
        self,
        command: Sequence[str],
        *,
        user: str | None = None,
        timeout_s: float = 300,
        env: dict[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a Slurm command against this sandbox, from / and with a clean environment; never raises for its status.

        user: run it as that user (a name), in place of root.
        """
        environment = {"PATH": host.PATH, "HOME": "/", "LANG": "C.UTF-8", **self.env, **(env or {})}
        return subprocess.run(
            [*becoming(user), *command],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            cwd="/",
            env=environment,
            stdin=subprocess.DEVNULL,
            check=False,
        )

    def status(self) -> Status:
        """What runs now; never raises for a sandbox that is broken."""
        return Status({name: self.daemons.pid(name) for name in self.daemons.names()}, self._node_states())

    def _node_states(self) -> dict[str, str]:
        with contextlib.suppress(subprocess.TimeoutExpired, OSError):
            answer = self.run(["sinfo", "-h", "-N", "-o", "%N %T"], timeout_s=60)
            if answer.returncode == 0:
                return dict(line.split(maxsplit=1) for line in answer.stdout.splitlines())
        return {}

    def down(self) -> None:
        """End every process of the sandbox and remove its directory. May be called twice, on ruins too."""
        if os.geteuid() != 0:
            raise SandboxError("Taking a sandbox down needs root, as starting it did: run this with sudo.")
        current = registry.find(self.entry.name)
        # Once it is gone, its name and its directory may belong to another one.
        if current is not None and current.id == self.entry.id:
            self._remove()
        self.daemons.reap_all()

    def _remove(self) -> None:
        left = host.end_all(self.dir, self.entry.id)
        if left:
            names = ", ".join(f"{p.program} ({p.pid})" for p in left)
            raise SandboxError(
                f"The sandbox {self.entry.name!r} still has processes that SIGKILL does not end: {names}."
            )
        if self._is_ours():
            shutil.rmtree(self.dir)
        else:
            with contextlib.suppress(OSError):  # made, and killed before it was marked; another's is not empty
                self.dir.rmdir()
        registry.unregister(self.entry)

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.down()

    def _startup(self) -> Startup:
        return self.startup_kind(self.spec, self.layout, self.daemons, self.run, self._node_states)

    def _is_ours(self) -> bool:
        try:
            return (self.dir / ID_FILE).read_text() == self.entry.id
        except OSError:
            return False

    def _write_files(self) -> None:
        at = self.layout
        host.make_directory(at.dir)
        (at.dir / ID_FILE).write_text(self.entry.id)
        for folder in ("log", "pids", "state", "spool", "run"):
            (at.dir / folder).mkdir()
        self.layout = at = dataclasses.replace(at, gpu_files=host.gpu_files(self.spec, at.dir / "dev"))
        place = {"host": at.host, "address": at.address, "gpu_files": at.gpu_files}
        record = {"spec": dataclasses.asdict(self.spec), **place}
        (at.dir / "sandbox.json").write_text(json.dumps(record))
        self.daemons = self.daemons_kind(self.spec, at, self.entry.id)
        for name, (text, mode) in self._files().items():
            (at.dir / name).write_text(text)
            (at.dir / name).chmod(mode)
        key = os.open(at.dir / "munge.key", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
        with os.fdopen(key, "wb") as file:
            file.write(secrets.token_bytes(128))

    def _files(self) -> dict[str, tuple[str, int]]:
        return render(self.spec, self.layout, host.slurm_release(self.spec))


def becoming(user: str | None) -> list[str]:
    """What a command as that user begins with. Names only, no shell: the environment is left as it is given."""
    if user is None:
        return []
    return ["setpriv", f"--reuid={user}", f"--regid={pwd.getpwnam(user).pw_gid}", "--clear-groups", "--"]
