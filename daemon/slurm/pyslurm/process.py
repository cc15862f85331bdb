"""Runs worker.py in one process, and says in Slurm's errors that it did not answer.

Promise: a call ends within its time limit, whatever libslurm does; threads take turns.
Limit: whether a call that ended in SlurmUnreachable had an effect is not known.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from slurm_elastic.protocol.errors import SlurmUnreachable

from ...processes.worker_process import Busy, Unanswered, WorkerProcess

_MAIN = "import sys; from slurm_elastic.daemon.slurm.pyslurm import worker; worker.main(int(sys.argv[1]))"
WORKER = (sys.executable, "-c", _MAIN)


class NoReply(SlurmUnreachable):
    """The process ended instead of answering, or did not answer in time."""


class PySlurmProcess:
    """`command` and the number of its connection start it. `accept` is shown what each new one says about itself, and
    raises for one that must not be used; it is ended then."""

    def __init__(
        self, command: Sequence[str], slurm_conf: str, timeout_s: float, accept: Callable[[tuple[Any, ...]], None]
    ) -> None:
        # As for commands: SLURM_CLUSTERS and the like would change what libslurm does.
        kept = ("HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "SLURM_CONF")
        environment = {name: os.environ[name] for name in kept if name in os.environ}
        environment |= {"PATH": os.defpath, "LANG": "C.UTF-8"}
        if slurm_conf:
            environment["SLURM_CONF"] = slurm_conf
        self._worker = WorkerProcess(command, environment, lambda ask: accept(ask("about")))
        self._timeout_s = timeout_s

    def call(self, *request: Any) -> Any:
        """The worker's reply. NoReply without one within timeout_s, SlurmUnreachable when others kept it busy."""
        try:
            return self._worker.call(*request, within_s=self._timeout_s)
        except Busy:
            raise SlurmUnreachable(f"pyslurm has been busy with another call for {self._timeout_s:g} s.") from None
        except Unanswered as error:
            raise NoReply(f"pyslurm gave no answer: {error}.") from None

    def close(self) -> None:
        """End the process."""
        self._worker.close()
