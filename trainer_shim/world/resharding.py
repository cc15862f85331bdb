"""Which rank sends which part of a tensor to which rank, when the ranks that hold its parts change. Pure.

A part is a box: along every dimension from where to where. Ranks hold contiguous chunks (torch.chunk's), or whole
tensors; those that hold the same box are replicas, and any other two boxes do not overlap.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

Box = tuple[tuple[int, int], ...]
"""(first, end) along each dimension; a scalar's is ()."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A dimension cut into `parts` chunks along one axis of the mesh, of which this is number `place`."""

    along: int
    axis: str
    parts: int
    place: int


@dataclass(frozen=True, slots=True)
class BoxTransfer:
    """A box that goes from one rank to another; from a rank to itself it is copied."""

    source: int
    target: int
    box: Box


def box_of(shape: Sequence[int], cuts: Sequence[Cut]) -> Box:
    """What is left of a tensor after these cuts, each of what the one before has left."""
    box = [(0, size) for size in shape]
    for cut in cuts:
        first, end = box[cut.along]
        chunk = -(-(end - first) // cut.parts)
        low = min(first + cut.place * chunk, end)
        box[cut.along] = (low, min(low + chunk, end))
    return tuple(box)


def overlap(one: Box, other: Box) -> Box | None:
    """What two boxes share; None when that has no element."""
    shared = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(one, other, strict=True))
    return shared if all(first < end for first, end in shared) else None


def size_of(box: Box) -> int:
    return math.prod(max(0, end - first) for first, end in box)


def plan(held: Sequence[Sequence[Box]], wanted: Sequence[Box | None], turn: int = 0) -> tuple[BoxTransfer, ...]:
    """How every rank gets the box that it wants, from itself where it can.

    held, wanted: by rank. turn: any number; of replicas, tensors with different ones come from different ranks. Raises
    ValueError when a part that is wanted is held by nobody.
    """
    holders = _holders(held)
    pieces: list[BoxTransfer] = []
    for target, want in enumerate(wanted):
        if want is None:
            continue
        missing = size_of(want)
        for box in holders:
            shared = overlap(box, want)
            if shared is None:
                continue
            ranks = holders[box]
            source = target if target in ranks else ranks[(target + turn) % len(ranks)]
            pieces.append(BoxTransfer(source, target, shared))
            missing -= size_of(shared)
        if missing:
            raise ValueError(f"{missing} elements of {want} are held by no rank")
    return tuple(pieces)


def rescue(
    held: Sequence[Sequence[Box]], new_ranks: Sequence[int], layout: Sequence[Box], turn: int = 0
) -> tuple[BoxTransfer, ...]:
    """Who takes over what is held by leaving ranks only, before they leave.

    new_ranks: of every old rank, -1 for one that leaves. layout: the box of every new rank as far as it is known, so
    that a part goes where it will be wanted; parts for ranks that are not there yet go to survivors in turn.
    """
    stays = {rank for rank, new in enumerate(new_ranks) if new >= 0}
    by_new = {new: rank for rank, new in enumerate(new_ranks) if new >= 0}
    turns = sorted(stays)
    takers: dict[Box, int] = {}
    for new, box in enumerate(layout):
        if new in by_new or box not in takers:
            takers[box] = by_new.get(new, turns[(new + turn) % len(turns)])
    pieces: list[BoxTransfer] = []
    for box, ranks in _holders(held).items():
        if not size_of(box) or stays.intersection(ranks):
            continue
        shares = [(shared, taker) for want, taker in takers.items() if (shared := overlap(box, want)) is not None]
        if sum(size_of(shared) for shared, _ in shares) != size_of(box):
            shares = [(box, turns[turn % len(turns)])]
        pieces += [BoxTransfer(ranks[turn % len(ranks)], taker, shared) for shared, taker in shares]
    return tuple(pieces)


def _holders(held: Sequence[Sequence[Box]]) -> dict[Box, list[int]]:
    holders: dict[Box, list[int]] = {}
    for rank, boxes in enumerate(held):
        for box in boxes:
            holders.setdefault(box, []).append(rank)
    return holders


def waves(holders: Sequence[int], joiners: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Rounds of (sources, targets) in which whole copies spread: who has got one passes it on in the next round."""
    sources, waiting, rounds = list(holders), list(joiners), []
    while waiting and sources:
        targets, waiting = waiting[: 2 * len(sources)], waiting[2 * len(sources) :]
        rounds.append((list(sources), targets))
        sources += targets
    return rounds
