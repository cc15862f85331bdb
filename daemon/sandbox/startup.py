"""In which order the daemons of a sandbox start, and when each one answers."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from slurm_elastic.protocol.errors import SandboxError

from . import host
from .config import ACCOUNT, CLUSTER, USERS, Layout, SandboxSpec, node_names
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
