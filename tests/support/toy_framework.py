"""A framework over allocation/, in one file: it counts the nodes that its job holds, and says so when that changes.

Usage: toy_framework.py JOB_DIR. The recipe "Adding a framework" in CONTRIBUTING was tried with it.
"""

from __future__ import annotations

import os
import sys

from slurm_elastic.trainer_shim.allocation import start
from slurm_elastic.trainer_shim.allocation.driver import Driver
from slurm_elastic.trainer_shim.allocation.parent import Parent
from slurm_elastic.trainer_shim.allocation.pieces import events
from slurm_elastic.trainer_shim.allocation.pieces.actions import Print
from slurm_elastic.trainer_shim.allocation.pieces.changes import Changes
from slurm_elastic.trainer_shim.allocation.pieces.holding import Handlers, Holding, Part
from slurm_elastic.trainer_shim.allocation.pieces.machine import Machine
from slurm_elastic.trainer_shim.allocation.pieces.nodes import Nodes
from slurm_elastic.trainer_shim.allocation.pieces.table import nodes_of


class Count(Part[Holding]):
    """The part of the machine that is the framework."""

    def handlers(self) -> Handlers:
        return {
            events.NodesSettled: lambda event: self._begin(),
            events.PiecesReady: lambda event: self._go_over(),
            events.PiecesLeaving: lambda event: self._go_over(),
            events.PiecesGone: lambda event: self._do_without(),
            events.BaseGone: lambda event: self._context.close(event.code),
            events.JobTerminating: lambda event: self._context.close(event.code) if event.stop else None,
        }

    def _begin(self) -> None:
        if not self._context.awaited:
            self._context.settled = True
            self._say()

    def _go_over(self) -> None:
        context, change = self._context, self._context.begin()
        context.go_over()
        context.tell(change.id, "running", change.reason)
        self._say()
        context.emit(events.BeginWaitingResize())

    def _do_without(self) -> None:
        self._context.do_without_lost()
        self._say()

    def _say(self) -> None:
        self._context.register()
        self._context.do(Print(f"nodes: {len(nodes_of(self._context.pieces))}"))


def count() -> int:
    job, lease = start.find(dict(os.environ), ("count",), sys.argv[1], nproc=1).take_directory()
    machine = Machine(Holding(job.pieces), (Nodes, Changes, Count))
    return Driver(job.options, machine, job.launcher(), job.connect(), lease).run()


if __name__ == "__main__":
    sys.exit(Parent().run(count, [sys.executable, *sys.orig_argv[1:]]))
