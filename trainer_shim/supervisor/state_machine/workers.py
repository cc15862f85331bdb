"""The workers of one job, and the order of their ranks. Pure bookkeeping: it decides nothing.

Rank order is by piece (base first), by node in the piece's own order (its batch host first), by GPU: so rank 0 is
always the first GPU of the batch host, the one place a job never gives up, and neighbours in rank share a node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from slurm_elastic.protocol.bottleneck import Pace
from slurm_elastic.protocol.messages import Piece

from ...allocation.pieces.table import NodeKey, nodes_of


@dataclass(slots=True)
class Worker:
    """One process, one GPU."""

    name: str
    agent: NodeKey
    index: int
    ready: bool = False
    ending: bool = False
    """It was killed or dismissed; only its exit is awaited."""
    quiesced: bool = False
    done: bool = False
    """Its training loop is over, or was left."""
    finished: bool = False
    """... and every epoch was done."""
    exited: bool = False
    error: str = ""
    config: dict[str, object] = field(default_factory=dict)
    pace: Pace | None = None
    """Its latest, in the current world."""

    @property
    def unit(self) -> int:
        """Ranks that hold one replica of its model together, as its script said."""
        size = self.config.get("unit")
        return size if isinstance(size, int) and size > 0 else 1

    @property
    def takes_batches(self) -> bool:
        """Whether it takes another batch in the world that it is in; 0.2.0's do not."""
        return self.config.get("takes_batches") is True


@dataclass(frozen=True, slots=True)
class WorkerGroup:
    """One process group: its members in rank order."""

    generation: int
    members: tuple[str, ...]
    batch: int
    source: str
    in_place: bool = False
    """It is the group before it, with another batch."""


def ranked(workers: Sequence[Worker], pieces: Iterable[Piece]) -> tuple[str, ...]:
    """Names of the workers in rank order. Those outside the pieces are left out, and the last ones that make up no
    whole model-parallel unit."""
    place = {key: position for position, key in enumerate(nodes_of(pieces))}
    inside = [worker for worker in workers if worker.agent in place]
    unit = max((worker.unit for worker in inside), default=1)
    inside.sort(key=lambda worker: (place[worker.agent], worker.index))
    return tuple(worker.name for worker in inside[: len(inside) // unit * unit])
