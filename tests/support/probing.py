"""`selastic probe` in a process of its own that is an ordinary user's."""

from __future__ import annotations

import os
import pwd
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slurm_elastic.client import main as selastic
from slurm_elastic.daemon.probe import checks as checks
from slurm_elastic.daemon.probe import command as command
from slurm_elastic.protocol.api import client as client  # imported by root: the user need not be able to read it


@dataclass
class Probe:
    """It runs, or has ended."""

    pid: int
    folder: Path
    status: int | None = field(default=None)

    @property
    def out(self) -> str:
        return (self.folder / "out").read_text()

    @property
    def said(self) -> str:
        """On stderr."""
        return (self.folder / "err").read_text()

    def ended(self) -> int:
        """Its exit status, once it is over."""
        if self.status is None:
            self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.status

    def rows(self) -> dict[str, tuple[str, str, str]]:
        """Outcome, seconds and words by name; started with -P -n."""
        lines = (line.split("|", 3) for line in self.out.splitlines() if line.count("|") >= 3)
        return {name: (outcome, seconds, said) for name, outcome, seconds, said in lines}


@contextmanager
def probing(*words: str, user: str = "games", ignored: int = signal.SIGUSR2) -> Iterator[Probe]:
    """Start it, with this process's environment. ignored: a signal that it inherits so."""
    account = pwd.getpwnam(user)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file in ("out", "err"):
            (folder / file).touch()
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for number, file in ((1, "out"), (2, "err")):
                    os.dup2(os.open(folder / file, os.O_WRONLY), number)
                os.setsid()
                signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup's tests ignore it
                signal.signal(ignored, signal.SIG_IGN)
                os.setgroups([])
                os.setgid(account.pw_gid)
                os.setuid(account.pw_uid)
                os.environ |= {"HOME": "/tmp", "USER": user, "PATH": "/usr/bin:/bin:/usr/sbin:/sbin"}
                status = _main(["probe", *words])
            finally:
                os._exit(status)
        probe = Probe(pid, folder)
        try:
            yield probe
        finally:
            if probe.status is None:
                os.kill(pid, 9)
                probe.ended()


def _main(words: list[str]) -> int:
    """With streams that pytest has not taken."""
    import sys

    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    try:
        return selastic.main(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
