"""Pieces and directives as JSON values and back. The wire's strict decoder reads them, so a damaged row is refused."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from slurm_elastic.protocol.messages import Directive, Piece, decode


def pieces_out(pieces: tuple[Piece, ...]) -> list[dict[str, Any]]:
    """Pieces as JSON values; tuples become lists, as they come back."""
    return [{**asdict(piece), "nodes": list(piece.nodes)} for piece in pieces]


def pieces_in(value: Any) -> tuple[Piece, ...]:
    """The reverse of `pieces_out`."""
    return tuple(decode(Piece, item, "stored piece") for item in value)


def directive_out(directive: Directive) -> dict[str, Any]:
    """A directive as JSON values, without its id: the row's own."""
    value = asdict(directive)
    value["keep"] = pieces_out(directive.keep)
    value["add"] = [{**asdict(shape), "node_list": list(shape.node_list)} for shape in directive.add]
    del value["id"]
    return value


def directive_in(number: int, value: Any) -> Directive:
    """The reverse of `directive_out`."""
    return decode(Directive, {**value, "id": number}, "stored directive")
