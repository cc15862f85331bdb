"""What a job can give up: which (piece, node) units, and which sizes it can come down to. Pure.

What may go of a piece is the rule of the mechanism that gives up its kind. A GPU of a node goes only with the node's
whole share.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from slurm_elastic.protocol.messages import Piece, Shape

from .ledger import Amount
from .roster import RunningPiece

Unit = tuple[int, str]
"""A Slurm job id and one of its nodes."""


@dataclass(frozen=True, slots=True)
class DropRule:
    """How pieces of one kind are given up."""

    kind: str
    """Of the pieces: base, component or companion."""
    price: int
    """Per GPU, against the other kinds: the cheapest go first."""
    first_node_stays: bool = False
    """Or its batch host, which always does, as long as the piece does not go whole."""
    whole: bool = False
    """The piece may go whole."""
    in_parts: bool = True
    """Some of its nodes may go, and the others stay."""
    first: bool = False
    """All pieces of this kind go at once, and before anything else of the job goes."""

    def staying(self, piece: Piece, batch_hosts: Collection[Unit]) -> str | None:
        """The node without which the piece's Slurm job cannot go on; None: any may go."""
        for node in piece.nodes:
            if (piece.slurm_job_id, node) in batch_hosts:
                return node
        return piece.nodes[0] if self.first_node_stays else None


@dataclass(slots=True, eq=False)
class ShrinkableJob:
    """An elastic job as far as it can give: what it trains on, and the sizes it accepts. It is not changed."""

    job_id: int
    pieces: tuple[Piece, ...]
    """Base first, companions oldest first."""
    batch_hosts: frozenset[Unit]
    sizes: frozenset[int]
    rules: Mapping[str, DropRule]
    """By kind of piece, for the kinds that it may give up."""
    share: Mapping[int, Amount]
    """By Slurm job id: what a node given up by it gives back."""
    switches: Mapping[str, str] = field(default_factory=dict)
    """Node -> the lowest switch over it, where the site describes its network."""
    wanted: frozenset[str] = frozenset()
    """Nodes that waiting jobs ask for by name."""
    slow: Mapping[str, float] = field(default_factory=dict)
    """Node -> the share of every step that all ranks wait for its own; nodes that hold nobody back are not in it."""
    drops: Mapping[Unit, tuple[Unit, ...]] = field(init=False)
    """Every unit that can go, with all the units that go with it (itself first)."""

    def __post_init__(self) -> None:
        self.drops = _droppable(self)

    @property
    def gpus(self) -> int:
        return sum(piece.gpus for piece in self.pieces)


def _droppable(giver: ShrinkableJob) -> dict[Unit, tuple[Unit, ...]]:
    before = tuple(first_units(giver))
    found: dict[Unit, tuple[Unit, ...]] = {}
    for piece in giver.pieces:
        rule = giver.rules.get(piece.kind)
        if rule is None:
            continue
        for node in piece.nodes:
            unit = (piece.slurm_job_id, node)
            if rule.in_parts and rule.staying(piece, giver.batch_hosts) != node:
                found[unit] = (unit,)
            elif rule.whole:
                others = tuple((piece.slurm_job_id, other) for other in piece.nodes if other != node)
                found[unit] = (unit, *others)
    return {unit: tuple(dict.fromkeys((*along, *before))) for unit, along in found.items()} if before else found


def first_units(giver: ShrinkableJob) -> list[Unit]:
    """What goes before anything else of the job."""
    first = [kind for kind, rule in giver.rules.items() if rule.first]
    if not first:
        return []
    return [(piece.slurm_job_id, node) for piece in giver.pieces if piece.kind in first for node in piece.nodes]


def without(pieces: Iterable[Piece], units: Collection[Unit]) -> tuple[Piece, ...]:
    """The pieces less these units; a piece without nodes is gone."""
    left = []
    for piece in pieces:
        nodes = tuple([node for node in piece.nodes if (piece.slurm_job_id, node) not in units])
        if nodes:
            left.append(piece if nodes == piece.nodes else replace(piece, nodes=nodes))
    return tuple(left)


def units_of(pieces: Iterable[Piece]) -> set[Unit]:
    return {(piece.slurm_job_id, node) for piece in pieces for node in piece.nodes}


def shrinks(giver: ShrinkableJob, forced: frozenset[Unit] = frozenset()) -> Mapping[int, tuple[Piece, ...]]:
    """Every number of GPUs the job can come down to (its present one included), with the pieces it then keeps.

    Units in `forced` are gone in each of them. For one size there may be many ways; this gives the gentlest:
    newest and smallest companions first, but before these one on a slow node, whole companions rather than parts, the
    base's own nodes last.
    """
    best: dict[int, tuple[int, tuple[Piece, ...]]] = {0: (0, ())}
    for rank, piece in enumerate(reversed(giver.pieces)):
        step: dict[int, tuple[int, tuple[Piece, ...]]] = {}
        for kept, cost in _cuts(giver, piece, rank, forced):
            for gpus, (before, pieces) in best.items():
                size, total = gpus + (kept.gpus if kept else 0), before + cost
                if size not in step or total < step[size][0]:
                    step[size] = (total, (kept, *pieces) if kept else pieces)
        best = step
    return {size: pieces for size, (_, pieces) in sorted(best.items())}


def nodes_left(giver: ShrinkableJob, forced: frozenset[Unit] = frozenset()) -> Mapping[int, int]:
    """GPUs -> nodes for every number of GPUs that the job can come down to."""
    return {k: sum([len(piece.nodes) for piece in pieces]) for k, pieces in shrinks(giver, forced).items()}


def _cuts(giver: ShrinkableJob, piece: Piece, rank: int, forced: frozenset[Unit]) -> list[tuple[Piece | None, int]]:
    """Each way to cut one piece: what is kept (None: it goes whole) and its cost."""
    gone = [node for node in piece.nodes if (piece.slurm_job_id, node) in forced]
    rule = giver.rules.get(piece.kind)
    if rule is None:
        return [(piece, 0)]
    fixed = rule.staying(piece, giver.batch_hosts)
    if not rule.in_parts:
        cost = rule.price * (1 + min(rank, 900)) * piece.gpus
        return [(piece, 0)] * (not gone) + [(None, cost)] * rule.whole
    if (fixed,) == piece.nodes and not gone and not rule.whole:
        return [(piece, 0)]
    order = gone + [node for node in first_to_go(giver, piece.nodes) if node not in gone and node != fixed]
    unit_cost = rule.price * (1 + min(rank, 900)) * piece.gpus_per_node
    # The newest has rank 0: a slow node goes for half its price.
    costs = [rule.price * piece.gpus_per_node // 2 if node in giver.slow else unit_cost for node in order]
    cuts: list[tuple[Piece | None, int]] = []
    for count in range(len(gone), len(order) + 1):
        left = tuple(node for node in piece.nodes if node not in order[:count])
        if left and fixed not in gone:
            kept = replace(piece, nodes=left) if count else piece
            cuts.append((kept, sum(costs[:count]) + (1 if count else 0)))
    if rule.whole:
        cuts.append((None, sum(costs) + unit_cost * (len(piece.nodes) - len(order))))
    return cuts


def first_to_go(giver: ShrinkableJob, nodes: Iterable[str]) -> list[str]:
    """The nodes of a piece, those to give up first: what a waiting job asks for by name, then what holds the others
    back most, then what lies furthest from the rest of the job (under the switch with the fewest of its nodes), then
    the end of the list, so that what is kept stays a prefix and ranks move least."""
    order = list(reversed(tuple(nodes)))
    if not giver.switches and not giver.wanted and not giver.slow:
        return order
    held = {node for piece in giver.pieces for node in piece.nodes}
    near = Counter(giver.switches.get(node, "") for node in held)
    return sorted(
        order,
        key=lambda node: (node not in giver.wanted, -giver.slow.get(node, 0.0), near[giver.switches.get(node, "")]),
    )


WITHDRAWN = DropRule("growth", price=1, whole=True, first=True)
"""A growth that training has not switched to yet."""


def with_growth(
    giver: ShrinkableJob, resize: int, add: Sequence[Shape], granted: Iterable[RunningPiece]
) -> ShrinkableJob:
    """The giver with the nodes that an open resize adds, those granted and those still asked for. Until training has
    switched to them they are withdrawn whole; whether it switches first is not known here."""
    pieces = [replace(held.piece, kind=WITHDRAWN.kind) for held in granted]
    share, there = dict(giver.share), {node for piece in pieces for node in piece.nodes}
    for index, shape in enumerate(add):
        nodes = tuple(node for node in shape.node_list if node not in there)
        number = -resize * len(add) - index  # no Slurm job has it, nor anything else that a resize asks for
        share[number] = Amount(shape.gpus_per_node, shape.cpus_per_node, shape.mem_mb_per_node)
        pieces += [Piece(number, WITHDRAWN.kind, nodes, shape.gpus_per_node)] if nodes else []
    return replace(
        giver,
        pieces=(*giver.pieces, *pieces),
        sizes=giver.sizes | {giver.gpus},
        rules={**giver.rules, WITHDRAWN.kind: WITHDRAWN},
        share=share,
    )
