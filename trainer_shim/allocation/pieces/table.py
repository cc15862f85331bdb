"""The nodes of a job in one table, each with its state, from the wish for it to the time when Slurm has it back. Pure.

| state    | the node                                                                | next                      |
|----------|-------------------------------------------------------------------------|---------------------------|
| ASKED    | has no name yet: Slurm is asked for it                                  | GRANTED                   |
| GRANTED  | is the job's; others that were asked for with it are not                | (STARTING, by its name)   |
| STARTING | is added: its agent was started, and has not connected                  | TRYING, READY, LEFT       |
| TRYING   | ... has connected, and tries whether it reaches the other hosts         | READY, LEAVING, LEFT      |
| READY    | ... is there; the framework may use it                                  | USED, LEAVING, LEFT       |
| AWAITED  | is in use: its agent was started, and has not connected                 | USED, LOST                |
| USED     | is in use, and there                                                    | LEAVING, LOST             |
| LOST     | is in use, and its agent is gone: it is left out, or started again      | AWAITED, LEFT             |
| LEAVING  | is used no more: its agent was told to quit                             | STARTING, LEFT            |
| LEFT     | is used no more, and Slurm may still hold it with others of its job     | STARTING                  |

A node begins as ASKED, or STARTING where Slurm has it for the job already, or AWAITED where the job begins with it.
From every state but USED it may also be forgotten: as soon as nothing of its Slurm job is in use, a node that would be
LEFT is. Any other step is a mistake of ours, and raises.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from slurm_elastic.protocol.messages import Piece

NodeKey = tuple[int, str]
"""(Slurm job id, node name); the job id is 0 without Slurm. What is asked for has (-resize, index) until then."""
ALONE = 4_000_000_000
"""From here on ids are of changes that the job has chosen for itself: selasticd's are far below."""


class State(Enum):
    ASKED = "asked"
    GRANTED = "granted"
    STARTING = "starting"
    TRYING = "trying"
    READY = "ready"
    AWAITED = "awaited"
    USED = "used"
    LOST = "lost"
    LEAVING = "leaving"
    LEFT = "left"


NEXT: dict[State, frozenset[State]] = {
    State.ASKED: frozenset({State.GRANTED}),
    State.GRANTED: frozenset(),
    State.STARTING: frozenset({State.TRYING, State.READY, State.LEFT}),
    State.TRYING: frozenset({State.READY, State.LEAVING, State.LEFT}),
    State.READY: frozenset({State.USED, State.LEAVING, State.LEFT}),
    State.AWAITED: frozenset({State.USED, State.LOST}),
    State.USED: frozenset({State.LEAVING, State.LOST}),
    State.LOST: frozenset({State.AWAITED, State.LEFT}),
    State.LEAVING: frozenset({State.STARTING, State.LEFT}),
    State.LEFT: frozenset({State.STARTING}),
}
FIRST = frozenset({State.ASKED, State.STARTING, State.AWAITED})
ADDED = State.STARTING, State.TRYING, State.READY
"""What a change adds, once Slurm has granted all of it."""
IN_USE = State.AWAITED, State.USED, State.LOST
THERE = State.TRYING, State.READY, State.USED
"""Connected, and not told to quit."""


@dataclass(slots=True)
class Node:
    """A row. `piece`: that of its Slurm job."""

    piece: Piece
    state: State
    launch: int = 0
    """Which launch its agent comes from."""
    gpus: tuple[str, ...] = ()
    listens: tuple[str, int] = ("", 0)
    """Address and port for the agents of other hosts; port 0: none."""


@dataclass(slots=True)
class Change:
    """A change of pieces under way. `id` is 0 for one that Slurm makes necessary."""

    id: int
    keep: tuple[Piece, ...]
    """Of those in use."""
    batch: int
    """What selasticd wants with it; 0: as it is."""
    wait_s: float
    reason: str
    asked: int = 0
    """Companions."""
    begun: bool = False
    """The framework goes over to it: it is asked before the change is taken back."""
    agreed: bool = False
    """There is no way back any more but the framework's own."""
    recalled: str = ""
    """Why it is not wanted any more, while the framework is asked."""


@dataclass(slots=True)
class NodeTable:
    """See the module. Nodes are in the order in which they came."""

    rows: dict[NodeKey, Node] = field(default_factory=dict)

    def state(self, key: NodeKey) -> State | None:
        """None: nothing is known of such a node."""
        row = self.rows.get(key)
        return row.state if row is not None else None

    def of(self, *states: State) -> list[NodeKey]:
        return [key for key, row in self.rows.items() if row.state in states]

    def pieces(self, *states: State) -> tuple[Piece, ...]:
        """The nodes in these states, one piece for each Slurm job."""
        found: dict[int, tuple[Piece, list[str]]] = {}
        for (job_id, node), row in self.rows.items():
            if row.state in states:
                found.setdefault(job_id, (row.piece, []))[1].append(node)
        return tuple(replace(piece, nodes=tuple(nodes)) for piece, nodes in found.values())

    def begin(self, key: NodeKey, piece: Piece, state: State) -> None:
        """A node that is not in use is one of ours, the last in order."""
        before = self.rows.get(key)
        if state not in (FIRST if before is None else NEXT[before.state]):
            raise ValueError(f"node {key} cannot become {state} from {before}")
        self.rows.pop(key, None)
        self.rows[key] = Node(piece, state, gpus=before.gpus if before is not None else ())

    def move(self, key: NodeKey, state: State) -> None:
        row = self.rows[key]
        if state not in NEXT[row.state]:
            raise ValueError(f"node {key} cannot go from {row.state} to {state}")
        row.state = state

    def leave(self, key: NodeKey) -> None:
        """A node is used no more: it is LEFT where it was there and others of its job are in use, or else forgotten."""
        if self.rows[key].gpus and key[0] in self.jobs():
            self.move(key, State.LEFT)
        else:
            del self.rows[key]

    def forget(self, *states: State) -> None:
        """Forget the nodes in these states, of Slurm jobs of which nothing is in use."""
        used = self.jobs()
        self.rows = {key: row for key, row in self.rows.items() if row.state not in states or key[0] in used}

    def jobs(self) -> frozenset[int]:
        """The Slurm jobs of which something is in use."""
        return frozenset(key[0] for key in self.of(*IN_USE))

    def divide(self, keep: Sequence[Piece], again: bool) -> tuple[tuple[Piece, ...], tuple[Piece, ...]]:
        """What `keep` means: the part of the pieces in use that stays, in their order, and the nodes to take back.

        again: whether it may name nodes that were left, of Slurm jobs that are in use. Raises ValueError with one
        sentence when it names others, or not the batch host.
        """
        used = self.pieces(*IN_USE)
        held, wanted = {piece.slurm_job_id: piece for piece in used}, set(nodes_of(keep))
        back = {key for key in wanted if again and self.state(key) in (State.LEAVING, State.LEFT)}
        for part in keep:
            piece = held.get(part.slurm_job_id)
            if piece is None:
                raise ValueError(f"job {part.slurm_job_id} is not in use")
            foreign = [key[1] for key in nodes_of([part]) if key[1] not in piece.nodes and key not in back]
            if foreign:
                raise ValueError(f"node {foreign[0]} of job {piece.slurm_job_id} is not in use")
            if part.gpus_per_node != piece.gpus_per_node:
                raise ValueError(
                    f"job {piece.slurm_job_id} uses {piece.gpus_per_node} GPUs per node, not {part.gpus_per_node}; "
                    "accepted: whole nodes"
                )
        if nodes_of(used)[0] not in wanted:
            raise ValueError(f"the batch host {used[0].nodes[0]} cannot be given up")
        return only(used, wanted), only(keep, back)


def nodes_of(pieces: Iterable[Piece]) -> list[NodeKey]:
    """The nodes of these pieces, in order."""
    return [(piece.slurm_job_id, node) for piece in pieces for node in piece.nodes]


def only(pieces: Iterable[Piece], nodes: Iterable[NodeKey]) -> tuple[Piece, ...]:
    """The pieces without all other nodes."""
    keys = set(nodes)
    left = (replace(p, nodes=tuple(node for node in p.nodes if (p.slurm_job_id, node) in keys)) for p in pieces)
    return tuple(piece for piece in left if piece.nodes)


def joined(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """The same nodes, with one piece for each Slurm job."""
    found: dict[int, Piece] = {}
    for piece in pieces:
        before = found.get(piece.slurm_job_id)
        found[piece.slurm_job_id] = replace(before, nodes=before.nodes + piece.nodes) if before else piece
    return tuple(found.values())
