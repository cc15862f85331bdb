"""Parts of tensors between ranks, point to point, through host memory. Every wait is bounded.

Small parts for one rank travel together, large ones in pieces, without a copy where their memory allows it. What is in
a GPU's memory goes through pinned memory, of which each pair of ranks needs no more than a few buckets at a time: the
next are copied while these travel. What goes to several ranks is read once.
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from ..state.packed_tensors import BUCKET_BYTES, buckets_of
from .objects import wait
from .process_group import World

Parts = Mapping[int, Sequence[torch.Tensor]]
Parcel = list[torch.Tensor]
AHEAD_BYTES = 2 * BUCKET_BYTES
"""Under way at a time between two ranks, at most."""
ALIGNED = 16
"""Bytes; no element is larger."""


def move(world: World, sends: Parts, receives: Parts, seconds: float) -> None:
    """Send and fill parts, by the world's other rank; for one pair of ranks both sides name them in the same order.

    seconds: for all of it. Raises RuntimeError when another rank is gone, or does not take part in time.
    """
    deadline = time.monotonic() + seconds
    coming = {peer: _parcels(receives[peer]) for peer in sorted(receives)}
    going = {peer: _parcels(sends[peer]) for peer in sorted(sends)}
    under_way = deque[tuple[int, list[Any], list[tuple[Parcel, torch.Tensor]]]]()

    def finish() -> int:
        """The first that has begun: every rank begins all in one order, so that it comes to an end."""
        size, pending, arriving = under_way.popleft()
        wait(pending, deadline)
        for parcel, flat in arriving:
            for part, place in _places(parcel, flat):
                if place.data_ptr() != part.data_ptr():
                    part.copy_(place, non_blocking=True)
        return size

    ahead = 0
    for tag in range(max(map(len, [*coming.values(), *going.values()]), default=0)):
        now = [(peer, parcels[tag]) for peer, parcels in coming.items() if tag < len(parcels)]
        then = [(peer, parcels[tag]) for peer, parcels in going.items() if tag < len(parcels)]
        size = max(_bytes(parcel) for _, parcel in (*now, *then))
        while under_way and ahead + size > AHEAD_BYTES:
            ahead -= finish()
        pending, arriving, read = list[Any](), [], dict[Any, torch.Tensor]()
        for peer, parcel in now:
            arriving.append((parcel, _flat(parcel)))
            pending.append(world.group.recv([arriving[-1][1]], peer, tag))
        for peer, parcel in then:
            key = tuple((part.data_ptr(), part.shape, part.stride()) for part in parcel)
            if key not in read:
                read[key] = _flat(parcel, read=True)
            pending.append(world.group.send([read[key]], peer, tag))
        arriving += [([], flat) for flat in read.values()]  # held until they have been sent
        under_way.append((size, pending, arriving))
        ahead += size
    while under_way:
        finish()


def _parcels(parts: Sequence[torch.Tensor]) -> list[Parcel]:
    """What travels together; the same on both sides, which know shapes and types only."""
    return buckets_of([piece for part in parts for piece in _cut(part)], kind=lambda part: None)


def _cut(part: torch.Tensor) -> Iterator[torch.Tensor]:
    """Pieces no larger than a bucket."""
    size = part.numel() * part.element_size()
    if size <= BUCKET_BYTES:
        yield part
        return
    along = next(number for number, length in enumerate(part.shape) if length > 1)
    for piece in part.split(max(1, BUCKET_BYTES * part.shape[along] // size), along):
        yield from _cut(piece)


def _flat(parcel: Parcel, read: bool = False) -> torch.Tensor:
    """Its bytes: where they are, if that is in one piece in host memory, else in a buffer. read: fill that."""
    if len(parcel) == 1 and parcel[0].device.type == "cpu" and parcel[0].is_contiguous():
        return parcel[0].view(-1).view(torch.uint8)
    size, devices = _bytes(parcel), {part.device for part in parcel if part.is_cuda}
    try:
        flat = torch.empty(size, dtype=torch.uint8, pin_memory=bool(devices))
    except RuntimeError:  # the host allows for no more pinned memory
        flat = torch.empty(size, dtype=torch.uint8)
    for part, place in _places(parcel, flat) if read else ():
        place.copy_(part, non_blocking=True)
    for device in devices if read else ():
        torch.cuda.current_stream(device).synchronize()
    return flat


def _places(parcel: Parcel, flat: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each part, and its place among these bytes."""
    first = 0
    for part in parcel:
        own = flat[first : first + part.numel() * part.element_size()]
        yield part, own.view(part.dtype).view(part.shape)
        first += _padded(part)


def _padded(part: torch.Tensor) -> int:
    return -(-part.numel() * part.element_size() // ALIGNED) * ALIGNED


def _bytes(parcel: Parcel) -> int:
    """Of a single part as many as it has: it may travel without a copy on one side alone."""
    return parcel[0].numel() * parcel[0].element_size() if len(parcel) == 1 else sum(map(_padded, parcel))
