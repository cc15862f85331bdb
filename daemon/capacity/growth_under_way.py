"""A growth that training has not switched to yet, as something that its job can give up: it is withdrawn whole. Pure.

Limit: whether training switches first is not known here; then it gives up what it has grown to, like any other job.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from slurm_elastic.protocol.messages import Piece, Shape

from .ledger import Amount
from .roster import RunningPiece
from .shrink_options import DropRule, Giver

WITHDRAWN = DropRule("growth", price=1, whole=True, first=True)


def with_growth(giver: Giver, resize: int, add: Sequence[Shape], granted: Iterable[RunningPiece]) -> Giver:
    """The giver with the nodes that an open resize adds, those granted and those still asked for."""
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
