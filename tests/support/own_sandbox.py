"""A sandbox whose daemons can be stopped and started again, and that ends with its starter: where that dies, however it
dies, a small process beside it takes it down.

It learns of the death by the end of a pipe that only the starter holds, so a SIGKILL is noticed as surely as an exit.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time

from slurm_elastic.daemon.sandbox import Sandbox, host, registry
from slurm_elastic.daemon.sandbox.daemons import Daemons

DISMISS = b"."


class OwnDaemons(Daemons):
    """Single ones can be stopped."""

    def stop(self, name: str, patience_s: float = 60.0) -> None:
        """SIGTERM a daemon and wait until it is gone; SIGKILL after patience_s. Does nothing when it does not run."""
        number = signal.SIGTERM
        while pid := self.pid(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
            deadline = time.monotonic() + patience_s
            while self.pid(name) and time.monotonic() < deadline:
                time.sleep(0.02)
            number = signal.SIGKILL


class OwnSandbox(Sandbox):
    """Of this process; see the module."""

    daemons_kind = OwnDaemons
    daemons: OwnDaemons
    _guard: subprocess.Popen[bytes] | None = None

    def _write_files(self) -> None:
        # The id marks processes of the sandbox, to be killed with it: the guard must not look like one.
        environment = {name: value for name, value in os.environ.items() if name != host.ID_VARIABLE}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._guard = subprocess.Popen(
            [sys.executable, __file__, self.entry.name, self.entry.id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
        super()._write_files()

    def start_daemon(self, name: str) -> None:
        """Start one daemon (munged, mariadbd, slurmdbd, slurmctld, slurmd-n1…) again and wait until it answers."""
        self.daemons.start(name)
        self._startup().wait_ready(name)

    def down(self) -> None:
        super().down()
        self.let_go()

    def let_go(self) -> None:
        """From now on it outlives its starter."""
        guard, self._guard = self._guard, None
        if guard is not None and guard.stdin is not None:
            with contextlib.suppress(OSError), guard.stdin as pipe:
                pipe.write(DISMISS)
            guard.wait(30)


def main(name: str, identity: str) -> None:
    """Wait until the starter dismisses this process; take the sandbox down when the starter died before that."""
    if sys.stdin.buffer.read(1) != DISMISS:
        entry = registry.find(name)
        if entry is not None and entry.id == identity:
            Sandbox.attach(name).down()


if __name__ == "__main__":
    main(*sys.argv[1:3])
