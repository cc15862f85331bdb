"""A sandbox that ends with its starter: where that dies, however it dies, a small process beside it takes it down.

It learns of the death by the end of a pipe that only the starter holds, so a SIGKILL is noticed as surely as an exit.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from slurm_elastic.daemon.sandbox import Sandbox, processes, registry

DISMISS = b"."


class OwnSandbox(Sandbox):
    """Of this process; see the module."""

    _guard: subprocess.Popen[bytes] | None = None

    def _write_files(self) -> None:
        # The id marks processes of the sandbox, to be killed with it: the guard must not look like one.
        environment = {name: value for name, value in os.environ.items() if name != processes.ID_VARIABLE}
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

    def down(self) -> None:
        super().down()
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
