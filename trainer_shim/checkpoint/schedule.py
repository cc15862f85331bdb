"""When to save, and who does: periodically, on request, on a signal. A handler only sets a flag.

What is due here goes to the other ranks with the next step, so all of them know at which step it happens.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from slurm_elastic.protocol.errors import TrainingError

from .contents import Globals
from .files import Found, Saved, Writer, load_newest

LAST_S = 1800.0
"""How long the end of a training waits for its last checkpoint."""


def in_background(function: Callable[[], dict[str, Any]]) -> Future[dict[str, Any]]:
    """Run a function on a thread of its own."""
    future: Future[dict[str, Any]] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="selastic-snapshot", daemon=True).start()
    return future


class Saving:
    """See the module. Without a directory nothing is saved."""

    def __init__(
        self,
        directory: str | os.PathLike[str] | None,
        every_s: float,
        on_saved: Callable[[Saved], None],
        safe: Globals = (),
    ) -> None:
        job_dir = os.environ.get("SELASTIC_JOB_DIR")
        where = directory or (Path(job_dir) / "checkpoints" if job_dir else None)
        self.writer = Writer(Path(where), on_saved, safe) if where else None
        self._every_s = every_s
        self._signal = 0

    def memory(self) -> Path | None:
        """The file with the micro batches that this job's workers have found to fit; beside the checkpoints."""
        return self.writer.directory.parent / "micro_batch.json" if self.writer is not None else None

    def handle_signals(self) -> None:
        """SIGUSR1: save. SIGTERM: save, then end. Only without a supervisor, which handles both itself."""
        if self.writer is not None and threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, self._on_signal)

    def _on_signal(self, number: int, _frame: Any) -> None:
        if self._signal != signal.SIGTERM:
            self._signal = number

    def ask(self) -> None:
        """Save with the next step."""
        self._signal = self._signal or signal.SIGUSR1

    def due(self, rank: int) -> bool:
        """Whether this rank wants a checkpoint. Rank 0 looks at the clock for all."""
        if self.writer is None:
            return False
        wanted = self._signal != 0
        if self._signal != signal.SIGTERM:
            self._signal = 0
        overdue = time.monotonic() - self.writer.last_at >= self._every_s
        return wanted or (rank == 0 and overdue and not self.writer.busy)

    @property
    def ending(self) -> bool:
        """Whether this rank has been asked to end."""
        return self._signal == signal.SIGTERM

    def wait(self, timeout_s: float) -> None:
        """Wait until what was put is on disk, or has failed; no longer than this."""
        if self.writer is not None:
            self.writer.wait(timeout_s)

    def finish(self) -> str:
        """Wait for the last checkpoint. Why it is not on disk; "" if it is."""
        if self.writer is None:
            return ""
        if not self.writer.wait(LAST_S):
            return f"the file system does not answer: not written after {LAST_S:.0f} s"
        return self.writer.problem

    def newest(self, must: bool) -> Found | None:
        """The newest readable checkpoint. Raises TrainingError when there `must` be one and is none."""
        found = load_newest(self.writer.directory, self.writer.safe) if self.writer is not None else None
        if found is None and must:
            where = self.writer.directory if self.writer is not None else "an unset directory"
            raise TrainingError(f"the supervisor asked to restore a checkpoint, and there is none in {where}")
        return found
