"""The agents and workers of one job, and the order of their ranks. Pure bookkeeping: it decides nothing.

Rank order is by piece (base first), by node in the piece's own order (its batch host first), by GPU: so rank 0 is
always the first GPU of the batch host, the one place a job never gives up, and neighbours in rank share a node.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from slurm_elastic.protocol.bottleneck import Pace
from slurm_elastic.protocol.messages import Piece

from ...allocation.pieces.events import AgentKey


@dataclass(slots=True)
class ConnectedAgent:
    """One node of one piece."""

    gpus: tuple[str, ...]
    listens: tuple[str, int] = ("", 0)
    """Address and port for the agents of other hosts; port 0: none."""
    quitting: bool = False


@dataclass(slots=True)
class Worker:
    """One process, one GPU."""

    name: str
    agent: AgentKey
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


def agents_of(pieces: Iterable[Piece]) -> list[AgentKey]:
    """The agents of these pieces' nodes, in rank order."""
    return [(piece.slurm_job_id, node) for piece in pieces for node in piece.nodes]


def ranked(workers: Sequence[Worker], pieces: Iterable[Piece]) -> tuple[str, ...]:
    """Names of the workers in rank order. Those outside the pieces are left out, and the last ones that make up no
    whole model-parallel unit."""
    place = {key: position for position, key in enumerate(agents_of(pieces))}
    inside = [worker for worker in workers if worker.agent in place]
    unit = max((worker.unit for worker in inside), default=1)
    inside.sort(key=lambda worker: (place[worker.agent], worker.index))
    return tuple(worker.name for worker in inside[: len(inside) // unit * unit])


def taken_back(used: Sequence[Piece], keep: Sequence[Piece], had: Collection[AgentKey]) -> tuple[Piece, ...]:
    """Of `keep` the nodes that the training has left, of Slurm jobs that it uses: Slurm still holds them. `had`: every
    node that it ever had workers on."""
    ids, there = {piece.slurm_job_id for piece in used}, set(agents_of(used))
    again = [(p, [key[1] for key in agents_of([p]) if key[0] in ids and key in had and key not in there]) for p in keep]
    return tuple(replace(piece, nodes=tuple(nodes)) for piece, nodes in again if nodes)


def without(pieces: Iterable[Piece], gone: Iterable[Piece]) -> tuple[Piece, ...]:
    """The pieces less the nodes of others."""
    keys = set(agents_of(gone))
    left = (replace(p, nodes=tuple(node for node in p.nodes if (p.slurm_job_id, node) not in keys)) for p in pieces)
    return tuple(piece for piece in left if piece.nodes)


def joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The same nodes, with one piece for each Slurm job."""
    found: dict[int, Piece] = {}
    for piece in pieces:
        before = found.get(piece.slurm_job_id)
        found[piece.slurm_job_id] = replace(before, nodes=before.nodes + piece.nodes) if before else piece
    return tuple(found.values())


def kept(held: Sequence[Piece], keep: Sequence[Piece]) -> tuple[Piece, ...]:
    """`keep` in the order (of pieces and nodes) of `held`. Raises ValueError with one sentence when it is no part."""
    wanted = {piece.slurm_job_id: piece for piece in keep}
    result: list[Piece] = []
    for piece in held:
        part = wanted.pop(piece.slurm_job_id, None)
        if part is None:
            continue
        foreign = [node for node in part.nodes if node not in piece.nodes]
        if foreign:
            raise ValueError(f"node {foreign[0]} of job {piece.slurm_job_id} is not in use")
        if part.gpus_per_node != piece.gpus_per_node:
            raise ValueError(
                f"job {piece.slurm_job_id} uses {piece.gpus_per_node} GPUs per node, not {part.gpus_per_node}; "
                "accepted: whole nodes"
            )
        result.append(replace(piece, nodes=tuple(node for node in piece.nodes if node in part.nodes)))
    if wanted:
        raise ValueError(f"job {next(iter(wanted))} is not in use")
    first = held[0]
    if not result or result[0].slurm_job_id != first.slurm_job_id or first.nodes[0] not in result[0].nodes:
        raise ValueError(f"the batch host {first.nodes[0]} cannot be given up")
    return tuple(piece for piece in result if piece.nodes)
