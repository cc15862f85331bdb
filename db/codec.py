"""Pieces and shapes as JSON values and back. The messages' strict decoder reads them, so a damaged row is refused."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from slurm_elastic.protocol.messages import Piece, Shape, decode


def pieces_out(pieces: tuple[Piece, ...]) -> list[dict[str, Any]]:
    """Pieces as JSON values; tuples become lists, as they come back."""
    return [{**asdict(piece), "nodes": list(piece.nodes)} for piece in pieces]


def pieces_in(value: Any) -> tuple[Piece, ...]:
    """The reverse of `pieces_out`."""
    return tuple(decode(Piece, item, "stored piece") for item in value)


def shapes_out(shapes: tuple[Shape, ...]) -> list[dict[str, Any]]:
    """Shapes as JSON values."""
    return [{**asdict(shape), "node_list": list(shape.node_list)} for shape in shapes]


def shapes_in(value: Any) -> tuple[Shape, ...]:
    """The reverse of `shapes_out`."""
    return tuple(decode(Shape, item, "stored shape") for item in value)
