"""The checkpoint that selasticd asks for before it puts a job back into the queue. Pure, like the machine.

The training goes on meanwhile and afterwards: nothing waits for selasticd, which may never come to the requeue. Limit:
which steps a checkpoint holds is known from its number alone; one that was under way when the order came counts when
it is no older than the last report.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurm_elastic.protocol.messages import Directive

from .events import Say, Send

if TYPE_CHECKING:
    from .machine import Machine


class Saving:
    """The part of the machine that answers a directive which keeps nothing."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._directive = 0
        """For which a checkpoint is to be written; 0: none."""
        self._from = 0
        """The step before which no checkpoint is good enough for it."""

    def begin(self, directive: Directive) -> None:
        """Take the order."""
        machine = self._machine
        machine.tell(directive.id, "accepted")
        machine.do(Say(f"directive {directive.id}: writing a checkpoint, to start anew on {directive.gpus} GPUs"))
        self._directive, self._from = directive.id, machine.reporting.step
        self.ask()

    def ask(self) -> None:
        """Ask for the checkpoint; every new world is asked again."""
        world = self._machine.world
        if self._directive and world is not None and world.members[0] in self._machine.fleet.workers:
            self._machine.do(Send(world.members[0], {"type": "checkpoint"}))

    def saved(self, step: int) -> None:
        """A checkpoint of this step is on disk."""
        if self._directive and step >= self._from:
            number, self._directive = self._directive, 0
            self._machine.tell(number, "saved")

    def forget(self, directive: int = 0) -> None:
        """The order was withdrawn, or (0) another one has come."""
        if directive in (0, self._directive):
            self._directive = 0
