"""The daemons of one sandbox: how each is started, when it counts as ready, what it said when it was not.

Nothing here decides about order or clean-up: see lifecycle. A daemon runs in the foreground in a session of its own,
so that no key press meant for the starter reaches it, and carries the sandbox's id in its environment.
"""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.protocol.errors import SandboxError

from . import host
from .config import Layout, SandboxSpec, node_names

LOG_LINES = 15
PATIENCE_S = 300.0
"""How long a daemon may take that neither ends nor answers; where many start at a time it needs it."""


class Daemons:
    """Starts, watches and stops single daemons of the sandbox that lives in `at`.

    Names: munged, mariadbd, slurmdbd, slurmctld and one slurmd-nK for each node.
    """

    def __init__(self, spec: SandboxSpec, at: Layout, id: str) -> None:
        self._spec, self._at, self._id = spec, at, id
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def names(self) -> list[str]:
        """Every daemon this sandbox should have."""
        accounting = ["mariadbd", "slurmdbd"] if self._spec.with_accounting else []
        return ["munged", *accounting, "slurmctld", *(f"slurmd-{node}" for node in node_names(self._spec))]

    def pid(self, name: str) -> int:
        """Pid of a living daemon, 0 when it does not run."""
        self._reap(name)
        with contextlib.suppress(OSError, ValueError):
            pid, started = map(int, self._pid_file(name).read_text().split())
            if host.started_at(pid) == started:
                return pid
        return 0

    def start(self, name: str) -> None:
        """Start a daemon; does nothing when it runs."""
        if not self.pid(name):
            self.spawn(name, self.command(name))

    def spawn(self, name: str, command: list[str]) -> None:
        """Run a program of the sandbox in the background, its output in log/<name>.out."""
        with open(self._at.dir / "log" / f"{name}.out", "ab") as log:
            try:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._at.dir,
                    env=self._environment(name),
                    start_new_session=True,
                )
            except OSError as error:
                raise SandboxError(f"{name} of the sandbox cannot be run: {error}.") from error
        self._children[name] = child
        self._note(name, child.pid)

    def _note(self, name: str, pid: int) -> None:
        self._pid_file(name).write_text(f"{pid} {host.started_at(pid)}")

    def wait(self, name: str, ready: Callable[[], bool]) -> None:
        """Wait until the daemon is ready. SandboxError with its last words when it ends first or takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not ready():
            child = self._children.get(name)
            if child is not None and child.poll() is not None:
                raise SandboxError(self._last_words(name, f"did not start (exit status {child.returncode})"))
            if time.monotonic() >= deadline:
                raise SandboxError(self._last_words(name, f"was not ready after {PATIENCE_S:g} s"))
            time.sleep(0.03)

    def wait_for_end(self, name: str) -> None:
        """Wait until a program that does its work and ends has ended well."""
        try:
            status = self._children[name].wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            raise SandboxError(self._last_words(name, f"had not ended after {PATIENCE_S:g} s")) from None
        if status != 0:
            raise SandboxError(self._last_words(name, f"failed (exit status {status})"))
        self._pid_file(name).unlink(missing_ok=True)

    def reap_all(self) -> None:
        """Collect children that have ended, so that none stays behind as a zombie."""
        for child in self._children.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(5)

    def command(self, name: str) -> list[str]:
        at = self._at
        program, _, which = name.partition("-")
        if program == "munged":
            files = {"key-file": "munge.key", "pid-file": f"{name}.pid", "log-file": f"log/{name}.log"}
            options = [f"--{option}={at.dir}/{file}" for option, file in files.items()]
            # --force: a directory under /tmp is not what munged would choose.
            return [
                host.program(self._spec, program),
                "--foreground",
                "--force",
                f"--socket={at.munge_socket}",
                f"--seed-file={at.dir}/{name}.seed",
                "--num-threads=4",
                *options,
            ]
        if name == "mariadbd":
            return [host.program(self._spec, name), f"--defaults-file={at.dir}/my.cnf"]
        if name == "slurmdbd":
            return [host.program(self._spec, name), "-D"]
        if program == "slurmctld":
            log = ["-L", f"{at.dir}/log/{name}.log"]
            return [host.program(self._spec, program), "-D", "-f", str(at.slurm_conf), *log]
        return [host.program(self._spec, program), "-D", "-f", str(at.slurm_conf), "-N", which]

    def _environment(self, name: str) -> dict[str, str]:
        environment = {
            "PATH": host.PATH,
            "LANG": "C.UTF-8",
            "SLURM_CONF": str(self._at.slurm_conf),
            host.ID_VARIABLE: self._id,
        }
        if name == "slurmdbd":
            # Neither slurmdbd.conf nor Slurm's source has a setting for it; the client library reads this.
            environment["MYSQL_UNIX_PORT"] = f"{self._at.dir}/db/mysql.sock"
        return environment

    def _pid_file(self, name: str) -> Path:
        return self._at.dir / "pids" / name

    def _reap(self, name: str) -> None:
        child = self._children.get(name)
        if child is not None:
            child.poll()

    def _last_words(self, name: str, what: str) -> str:
        lines: list[str] = []
        for file in (f"{name}.out", f"{name}.log"):
            with contextlib.suppress(OSError):
                text = (self._at.dir / "log" / file).read_text(errors="replace")
                lines = text.splitlines()[-LOG_LINES:]
            if lines:
                break
        log = "\n".join(f"  {line}" for line in lines) or "  (nothing)"
        return f"{name} of the sandbox {what}; the last lines of its log:\n{log}"


def listens(pid: int, port: int) -> bool:
    """Does something listen on that TCP port, in the network of that process?"""
    for family in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/net/{family}").read_text().splitlines()[1:]
            if any(words[3] == "0A" and words[1].endswith(f":{port:04X}") for words in map(str.split, lines)):
                return True
    return False


def accepts_unix(path: Path) -> bool:
    """Does something listen on that socket?"""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1)
        return probe.connect_ex(str(path)) == 0
