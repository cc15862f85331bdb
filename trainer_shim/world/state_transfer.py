"""The training's state in a new world: who holds which parts of it, and how every rank gets what it needs.

Replicas: joiners get everything from the survivors, which share the work, and pass it on. Models that are cut up: each
rank gets the parts it is to hold, of the model and of the optimizers, from those that held them; what only leavers hold
goes to survivors before they leave. Nothing is gathered anywhere. What a rank held stays as it was, in host memory,
until the new world is final: an older world can be filled from it again.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..state.kept_parts import State, place_of
from ..state.packed_tensors import Slot, pack, slots_of, unpack
from . import objects, p2p, resharding
from .layout import Layout
from .mesh import DTensor, cuts_of, local_of
from .process_group import World
from .resharding import Box, BoxTransfer, Cut

Holding = list[tuple[Box, torch.Tensor]]
"""Boxes of one tensor, and their values."""


@dataclasses.dataclass
class HeldParts:
    """What this rank holds of the state, as of one moment; tensors by slot."""

    skeleton: Any
    holdings: list[Holding]
    cuts: list[tuple[Cut, ...]]

    @classmethod
    def of(cls, captured: dict[str, Any]) -> HeldParts:
        """References to the tensors where they are in host memory, else copies there."""
        tensors: list[torch.Tensor] = []
        skeleton = pack(captured, tensors)
        cuts = [cuts_of(tensor) for tensor in tensors]
        holdings = [
            [(resharding.box_of(tensor.shape, cut), local_of(tensor).to("cpu"))]
            for tensor, cut in zip(tensors, cuts, strict=True)
        ]
        return cls(skeleton, holdings, cuts)

    def boxes(self) -> list[tuple[Box, ...]]:
        return [tuple(box for box, _ in holding) for holding in self.holdings]


# -- cut up --------------------------------------------------------------------------------------------------------


def rescue(kept: HeldParts, old: World, new_ranks: list[int], size: int, seconds: float) -> None:
    """In the old world, before it is left: take over what leaving ranks alone hold. Every rank of it calls this.

    new_ranks: of every old rank, -1 for one that leaves; size: of the new world. Without leavers nothing is done.
    """
    if min(new_ranks) >= 0:
        return
    held = objects.gather(kept.boxes(), old.group)
    slots = list(slots_of(kept.skeleton))
    pieces = {}
    for slot, cuts in zip(slots, kept.cuts, strict=True):
        boxes = [everything[slot.number] for everything in held]
        layout = [resharding.box_of(slot.shape, _expected(cuts, rank, size, old.layout)) for rank in range(size)]
        pieces[slot.number] = resharding.rescue(boxes, new_ranks, layout if cuts else [], slot.number)
    for number, box, values in _carry_out(pieces, slots, kept, old, seconds):
        kept.holdings[number].append((box, values))


def _expected(cuts: tuple[Cut, ...], rank: int, size: int, layout: Layout) -> list[Cut]:
    """The cuts of a rank of the new world, where its mesh is one of ours; a guess otherwise, which costs time only."""
    sizes, places = layout.sizes(size), layout.places(rank)
    return [
        dataclasses.replace(cut, parts=sizes[cut.axis], place=places[cut.axis]) if cut.axis in sizes else cut
        for cut in cuts
    ]


def fill(state: State, world: World, kept: HeldParts | None, fresh: bool, holders: list[int], seconds: float) -> None:
    """Give every rank of a new world, whose model is cut up already, its parts. Every rank calls this.

    kept: what this rank holds; None on a joiner. fresh: this rank's objects are to take over everything, not only what
    is cut up. holders: ranks that have something. seconds: that one communication may take.
    """
    joiners = [rank for rank in range(world.size) if rank not in holders]
    if world.size > 1:
        skeleton = objects.send(kept.skeleton if kept else None, holders[0], joiners, world.group, seconds)
    else:
        skeleton = kept.skeleton if kept else None
    slots = list(slots_of(skeleton))
    likes = dict(_likes(skeleton, state))
    tensors: list[Any] = [None] * len(slots)
    wanted: list[Box | None] = []
    places: list[torch.Tensor] = []
    for slot in slots:
        like, own = likes.get(slot.number), kept.holdings[slot.number] if kept else []
        cut = cuts_of(like[0]) if like is not None else ()
        box = resharding.box_of(slot.shape, cut)
        plain = not cut and len(own) == 1 and own[0][0] == box
        tensors[slot.number] = tensor = _place(slot, like, own[0][1] if plain else None)
        places.append(local_of(tensor))
        wanted.append(None if plain else box)
    everyone = [(kept.boxes() if kept else None, wanted)]
    if world.size > 1:
        everyone = objects.gather(everyone[0], world.group)
    pieces = {}
    for slot in slots:
        held = [boxes[slot.number] if boxes is not None else () for boxes, _ in everyone]
        pieces[slot.number] = resharding.plan(held, [wants[slot.number] for _, wants in everyone], slot.number)
    own_box = {slot.number: box for slot, box in zip(slots, wanted, strict=True) if box is not None}
    into = {number: (box, places[number]) for number, box in own_box.items()}
    for _ in _carry_out(pieces, slots, kept, world, seconds, into):
        pass
    # What is no tensor a rank that has it keeps as its own: it may differ by rank.
    captured = unpack(kept.skeleton if kept and not fresh else skeleton, tensors)
    names = None if fresh else {name for name, part in skeleton["parts"].items() if _is_cut(part, likes, kept)}
    filled = {number for number, (_, own) in likes.items() if own}
    state.restore(captured, only=names, skip={"Model"} if state.has_arrived(skeleton, filled) else set())


def _likes(skeleton: Any, state: State) -> Iterator[tuple[int, tuple[torch.Tensor, bool]]]:
    """What tensors are to be laid out like, by slot; and whether they are the very tensors to be filled."""
    own = state.own_places()
    for name, slot, like in state.likes(skeleton):
        if like.dtype == slot.dtype or not isinstance(state.parts[name], torch.nn.Module):
            yield slot.number, (like, name == "Model" and place_of(like) in own)


def _place(slot: Slot, like: tuple[torch.Tensor, bool] | None, own: torch.Tensor | None) -> torch.Tensor:
    """Where this rank's part of a tensor comes to: into the model itself, or a new tensor laid out alike."""
    if like is not None and like[1]:
        tensor = like[0].detach()
        if own is not None and local_of(tensor).data_ptr() != own.data_ptr():
            local_of(tensor).copy_(own.view(local_of(tensor).shape))
        return tensor
    if like is not None and isinstance(like[0], DTensor):  # also where it is whole on every rank
        local = torch.empty_like(local_of(like[0]), dtype=slot.dtype, requires_grad=False)
        if own is not None:
            local.copy_(own)
        mesh, cuts = like[0].device_mesh, like[0].placements
        return DTensor.from_local(local, mesh, cuts, run_check=False, shape=like[0].shape, stride=like[0].stride())
    device = like[0].device if like is not None else torch.device("cpu")
    return own.to(device, copy=True) if own is not None else torch.empty(slot.shape, dtype=slot.dtype, device=device)


def _is_cut(part: Any, likes: dict[int, tuple[torch.Tensor, bool]], kept: HeldParts | None) -> bool:
    return any(
        isinstance(likes.get(slot.number, (None,))[0], DTensor) or (kept is not None and bool(kept.cuts[slot.number]))
        for slot in slots_of(part)
    )


def _carry_out(
    pieces: dict[int, tuple[BoxTransfer, ...]],
    slots: list[Slot],
    kept: HeldParts | None,
    world: World,
    seconds: float,
    into: dict[int, tuple[Box, torch.Tensor]] | None = None,
) -> list[tuple[int, Box, torch.Tensor]]:
    """Send and receive; what arrived, where no place for it is given."""
    sends: dict[int, list[torch.Tensor]] = {}
    receives: dict[int, list[torch.Tensor]] = {}
    rank, arrived = world.rank, list[tuple[int, Box, torch.Tensor]]()
    for slot in slots:
        for piece in pieces[slot.number]:
            if rank not in (piece.source, piece.target):
                continue
            values = _values(kept, slot.number, piece.box) if piece.source == rank else None
            place = None
            if piece.target == rank:
                if into is not None:
                    place = _part(into[slot.number][1], into[slot.number][0], piece.box)
                else:
                    place = torch.empty([end - first for first, end in piece.box], dtype=slot.dtype)
                    arrived.append((slot.number, piece.box, place))
            if values is not None and place is not None:
                place.copy_(values)
            elif values is not None:
                sends.setdefault(piece.target, []).append(values)
            elif place is not None:
                receives.setdefault(piece.source, []).append(place)
    if sends or receives:
        p2p.move(world, sends, receives, seconds)
    return arrived


def _values(kept: HeldParts | None, number: int, box: Box) -> torch.Tensor:
    for held, values in kept.holdings[number] if kept is not None else ():
        if resharding.overlap(held, box) == box or not box:
            return _part(values, held, box)
    raise AssertionError(f"{box} of tensor {number} is not held here")


def _part(tensor: torch.Tensor, frame: Box, box: Box) -> torch.Tensor:
    """The view of a box of a tensor whose own memory is `frame`."""
    for along, ((first, end), (start, _)) in enumerate(zip(box, frame, strict=True)):
        tensor = tensor.narrow(along, first - start, end - first)
    return tensor


# -- replicas ------------------------------------------------------------------------------------------------------


def copy_to_joiners(state: State, world: World, holders: list[int], device: torch.device, seconds: float) -> None:
    """Give everything to the ranks that have nothing; those that have it all need not wait for each other."""
    if len(holders) == world.size:
        return
    joiners = [rank for rank in range(world.size) if rank not in holders]
    tensors: list[torch.Tensor] = []
    header = None
    if world.rank in holders:
        header = pack(state.capture(), tensors)
    skeleton = objects.send(header, holders[0], joiners, world.group, seconds)
    load: Callable[[], None] = lambda: None  # noqa: E731
    if world.rank in joiners:
        tensors, load = state.receive(skeleton, device)
    for sources, targets in resharding.waves(holders, joiners):
        sends: dict[int, list[torch.Tensor]] = {}
        receives: dict[int, list[torch.Tensor]] = {}
        for place, target in enumerate(targets):
            for number, tensor in enumerate(tensors):
                source = sources[(place + number) % len(sources)]
                if source == world.rank:
                    sends.setdefault(target, []).append(tensor)
                elif target == world.rank:
                    receives.setdefault(source, []).append(tensor)
        if sends or receives:
            p2p.move(world, sends, receives, seconds)
    load()
