"""How fast members of pools are at other sizes, and how sure that is, by their models: asked of all at once. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from ...optimizer.job_view import JobView, nodes_at
from ...optimizer.predictions import throughputs_at, uncertainties_at
from .candidate import Candidate


def speeds_at(asked: Sequence[tuple[Candidate | None, Sequence[tuple[int, int]]]]) -> list[list[float]]:
    """Samples/s of each member at its own (GPUs, global batch); of one without a model none.

    A size lies on the nodes that its choices say, else as dense as on the densest of them.
    """
    each = [_on_nodes(m.view, sizes) if m is not None and m.view.model is not None else [] for m, sizes in asked]
    models = [m.view.model for m, _ in asked if m is not None and m.view.model is not None]
    found = iter(throughputs_at(list(zip(models, filter(None, each), strict=True))))
    return [next(found) if points else [] for points in each]


def _on_nodes(view: JobView, sizes: Sequence[tuple[int, int]]) -> list[tuple[int, int, int]]:
    nodes = dict(view.choices)
    dense = max((gpus / count for gpus, count in view.choices if count), default=1.0)
    return [(gpus, nodes.get(gpus) or max(1, round(gpus / dense)), max(1, batch)) for gpus, batch in sizes]


def doubts_at(asked: Sequence[tuple[Candidate | None, int]]) -> list[float | None]:
    """Relative 1-sigma of each member's speed at so many GPUs; None of one without a model."""
    modelled = [
        (m.view.model, (gpus, nodes_at(m.view, gpus)))
        for m, gpus in asked
        if m is not None and m.view.model is not None
    ]
    found = iter(uncertainties_at(modelled))
    return [next(found) if m is not None and m.view.model is not None else None for m, _ in asked]
