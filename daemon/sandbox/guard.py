"""A small process beside the starter of a sandbox: when the starter dies, however it dies, it takes the sandbox down.

It learns of the death by the end of a pipe that only the starter holds, so a SIGKILL is noticed as surely as an exit.
Limit: when both are killed, the next start of any sandbox cleans up (lifecycle.sweep).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

from . import processes, registry

DISMISS = b"."


class Guard:
    """The guard of one sandbox, as its starter sees it."""

    def __init__(self, entry: registry.Entry) -> None:
        # The id marks processes of the sandbox, to be killed with it: the guard must not look like one.
        environment = {name: value for name, value in os.environ.items() if name != processes.ID_VARIABLE}
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"{__package__}.guard_process", entry.name, entry.id],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=environment,
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """It is no longer needed. Calling it twice is fine."""
        stdin = self._process.stdin
        if stdin is not None and not stdin.closed:
            with contextlib.suppress(OSError):
                stdin.write(DISMISS)
                stdin.flush()
            with contextlib.suppress(OSError):
                stdin.close()
        self._process.wait(30)
