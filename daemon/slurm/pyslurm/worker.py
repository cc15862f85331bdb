"""The process in which pyslurm lives. process.py starts it and holds the other end.

It answers (call, arguments) on the connection FD, one at a time, with (True, value) or (False, errno, text), until that
closes. A process of its own, because libslurm ends the process at what it calls fatal, reads slurm.conf once, keeps
Python's lock while it waits for slurmctld, and has no timeout that its caller could set.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import time
from multiprocessing.connection import Connection
from typing import Any

from slurm_elastic.protocol.errors import SlurmUnparsable

from ..held_gpus import with_nodes
from ..model import Snapshot
from . import records

UNPARSABLE = -1000
"""In place of an errno: the answer is in no known form."""
UNTRACKED = -1001
"""In place of an errno: the site does not count GPUs, and pyslurm then does not tell them."""
NOT_IMPORTABLE = -1002
"""In place of an errno: there is no pyslurm, or it does not load."""


class Calls:
    """What may be asked, by name. pyslurm raises RPCError with Slurm's errno."""

    def __init__(self, pyslurm: Any) -> None:
        self._pyslurm = pyslurm
        self._tracked = False

    def about(self) -> tuple[str, bool]:
        """(pyslurm's version, whether it tells what a job holds and asks for: only 25.11 does)."""
        return self._pyslurm.__version__, hasattr(self._pyslurm.Job, "requested_tres")

    def snapshot(self) -> Snapshot:
        """All jobs, nodes and partitions, by one request for each; jobs first."""
        slurm, at = self._pyslurm, time.time()
        if not self._tracked:
            self._tracked = records.tracks_gpus(slurm.slurmctld.Config.load().accounting_storage_tres)
            if not self._tracked:
                raise NotTracked
        jobs = [found for one in slurm.Jobs.load().values() if (found := records.job(one, at)) is not None]
        nodes = {one.name: records.node(one) for one in slurm.Nodes.load().values()}
        used = {name for node in nodes.values() for name in node.partitions}
        partitions = [records.partition(one) for one in slurm.Partitions.load().values()]
        by_id = with_nodes({job.job_id: job for job in jobs}, nodes)
        return Snapshot(at, by_id, nodes, {one.name: one for one in partitions if one.name in used})

    def modify(self, job_id: int, changes: dict[str, Any]) -> None:
        """`scontrol update` of these attributes of a JobSubmitDescription. Never `nodes`, which silently does nothing:
        `required_nodes` is what shrinks. Nor anything empty, which pyslurm takes for unset."""
        self._pyslurm.Job(job_id).modify(self._pyslurm.JobSubmitDescription(**changes))

    def requeue(self, job_id: int) -> None:
        """`scontrol requeue`."""
        self._pyslurm.Job(job_id).requeue()


class NotTracked(Exception):
    """AccountingStorageTRES does not name gres/gpu."""


def answer(calls: Calls, name: str, arguments: tuple[Any, ...], rpc_error: type[Exception]) -> tuple[Any, ...]:
    """The reply to one call; what is not Slurm's own error ends the process, and with it the caller's wait."""
    try:
        return True, getattr(calls, name)(*arguments)
    except rpc_error as error:
        return False, int(getattr(error, "errno", 0) or 0), str(error)
    except SlurmUnparsable as error:
        return False, UNPARSABLE, str(error)
    except NotTracked:
        return False, UNTRACKED, "AccountingStorageTRES does not name gres/gpu"


def main(fd: int) -> None:
    """Answer until the connection closes."""
    # The daemon's end is the end of the connection: a signal to its whole group must not come first.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    connection = Connection(fd)
    os.dup2(2, 1)  # pyslurm prints
    calls, missing = None, ""
    try:
        pyslurm = importlib.import_module("pyslurm")
        calls = Calls(pyslurm)
    except ImportError as error:
        missing = f"pyslurm not importable ({error})"
    with contextlib.suppress(EOFError, OSError):  # the caller has closed
        while True:
            name, *arguments = connection.recv()
            if calls is None:
                connection.send((False, NOT_IMPORTABLE, missing))
            else:
                connection.send(answer(calls, name, tuple(arguments), pyslurm.RPCError))
