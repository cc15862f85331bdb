"""What a job does for itself while selasticd stays silent: it grows to what its script asks Slurm for. Pure.

Had selasticd not been there, it would have started with that. What was got alone is as any other companion for a
selasticd that comes back. Bounded: one request at a time, never beyond the script's size, a few tries.
"""

from dataclasses import replace
from itertools import count

from slurm_elastic.protocol.messages import Grant, Resize, Shape

from . import events
from .actions import Print
from .holding import Handlers, Holding, Part
from .table import ALONE

TRIES = 8
WAIT_S = 3600.0
"""How long a request stays in Slurm's queue, behind those of others (--nice)."""
PAUSE_S = 60.0
"""From the first request to the next, and twice as long from each further one."""


class Alone(Part[Holding]):
    """The part of the machine that asks for companions by itself."""

    def __init__(self, context: Holding) -> None:
        super().__init__(context)
        self._grant: Grant | None = None
        self._ids, self._tries, self._not_before = count(ALONE), 0, 0.0

    def handlers(self) -> Handlers:
        return {events.Registered: self._registered, events.Silent: self._silent}

    def _registered(self, event: events.Registered) -> None:
        self._grant, self._tries, self._not_before = event.grant, 0, 0.0

    def _silent(self, event: events.Silent) -> None:
        context, grant = self._context, self._grant
        if grant is None or not grant.script or not 0 < grant.alone_after_s <= event.seconds:
            return
        held = sum(piece.gpus for piece in context.pieces)
        shape, busy = next_part(grant.script[0], held), context.change is not None or not context.settled
        if shape is None or busy or context.ending or self._tries == TRIES or context.now < self._not_before:
            return
        self._not_before = context.now + PAUSE_S * 2**self._tries
        self._tries += 1
        why = f"selasticd is silent for {event.seconds:.0f} s, and the script asks for {grant.script[0].gpus} GPUs"
        order = Resize(next(self._ids), 0, context.pieces, (shape,), held + shape.gpus, 0, why, WAIT_S)
        context.do(Print(f"{why}: asking Slurm for {shape.gpus} more"))
        context.emit(events.ResizeCame(order))


def next_part(script: Shape, held: int) -> Shape | None:
    """The companion to ask for next: part of a node first, so that the rest is whole nodes, which Slurm grants
    together; None: no more is missing."""
    if script.gpus <= held:
        return None
    nodes, gpus = divmod(script.gpus - held, script.gpus_per_node)
    if not gpus:
        return replace(script, nodes=nodes)
    share = gpus / script.gpus_per_node
    cpus, mem_mb = max(1, round(script.cpus_per_node * share)), round(script.mem_mb_per_node * share)
    return replace(script, nodes=1, gpus_per_node=gpus, cpus_per_node=cpus, mem_mb_per_node=mem_mb)
