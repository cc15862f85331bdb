"""What a job's workers report, made one report of the job: rank 0's, with what only all ranks together tell.

Pure. Limit: ranks report at their own times, so what is compared are stretches that overlap, not the same steps.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from slurm_elastic.protocol import bottleneck
from slurm_elastic.protocol.bottleneck import Pace

from .events import Forward, Message, Send
from .workers import Mode, Worker

if TYPE_CHECKING:
    from .machine import Machine


class Reporting:
    """The part of the machine that reports to selasticd."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.every_s = 0.0
        """Seconds between two reports, as selasticd wants it; 0: it has not said."""
        self.step = 0
        """The training's last step that was reported."""

    def registered(self, every_s: float) -> None:
        """selasticd has said how often it wants a report."""
        if every_s == self.every_s:
            return
        self.every_s = every_s
        for worker in self._machine.fleet.workers.values():
            self._machine.do(Send(worker.name, {"type": "report_every", "seconds": every_s}))

    def entered(self) -> None:
        """Another world: what was measured before does not describe it."""
        for worker in self._machine.fleet.workers.values():
            worker.pace = None

    def pace(self, worker: Worker, message: Message) -> None:
        """What a rank says of its own steps."""
        world = self._machine.world
        if world is not None and message.get("generation") == world.generation:
            worker.pace = _pace(message.get("pace"))

    def report(self, worker: Worker, message: Message) -> None:
        """Rank 0's report: forward it as the job's."""
        machine = self._machine
        if machine.mode not in (Mode.RUNNING, Mode.FINISHING) or machine.world is None:
            return
        self.pace(worker, message)
        step = message.get("step")
        self.step = step if isinstance(step, int) else 0
        report = {name: value for name, value in message.items() if name not in ("type", "pace")}
        nodes = len({node for piece in machine.pieces for node in piece.nodes})
        machine.do(Forward(report | self._compared(), len(machine.world.members), nodes))

    def _compared(self) -> Message:
        """What holds the steps back; nothing until every rank has said how it fares."""
        members = self._machine.members()
        paces = [worker.pace for worker in members if worker.pace is not None]
        world = self._machine.world
        if world is None or not paces or len(paces) < len(world.members):
            return {}
        compared: Message = {"comm_share": bottleneck.exposed_communication(paces)}
        found = bottleneck.find(paces)
        if found is None:
            return compared
        node = next((worker.agent[1] for worker in members if worker.pace and worker.pace.rank == found.rank), "")
        named = {"bottleneck": found.kind, "bottleneck_share": found.share}
        where = {"bottleneck_rank": found.rank, "bottleneck_node": node}
        return compared | named | ({} if found.kind == bottleneck.COMMUNICATION else where)


def _pace(value: object) -> Pace | None:
    """A worker's message is not trusted to have its form: a report is no reason to stop a job."""
    if not isinstance(value, dict):
        return None
    try:
        numbers = {name: float(value[name]) for name in Pace.__dataclass_fields__}
    except (KeyError, TypeError, ValueError):
        return None
    if not all(math.isfinite(number) and number >= 0 for number in numbers.values()):
        return None
    return Pace(int(numbers.pop("rank")), **numbers)
