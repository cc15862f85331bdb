"""Parts of tensors between ranks, point to point, through host memory. Every wait is bounded.

Small parts for one rank travel together, large ones by themselves without a copy where their memory allows it.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..state.packed_tensors import buckets_of
from .objects import wait
from .process_group import World

Parts = Mapping[int, Sequence[torch.Tensor]]


def move(world: World, sends: Parts, receives: Parts, seconds: float) -> None:
    """Send and fill parts, by the world's other rank; for one pair of ranks both sides name them in the same order.

    seconds: for all of it. Raises RuntimeError when another rank is gone, or does not take part in time.
    """
    deadline = time.monotonic() + seconds
    pending: list[Any] = []
    arriving: list[tuple[list[torch.Tensor], torch.Tensor]] = []
    leaving: list[torch.Tensor] = []
    for peer in sorted(receives):
        for tag, parcel in enumerate(_parcels(receives[peer])):
            flat = _as_bytes(parcel[0]) if _direct(parcel) else torch.empty(_bytes(parcel), dtype=torch.uint8)
            pending.append(world.group.recv([flat], peer, tag))
            arriving.append((parcel, flat))
    for peer in sorted(sends):
        for tag, parcel in enumerate(_parcels(sends[peer])):
            flat = (
                _as_bytes(parcel[0]) if _direct(parcel) else torch.cat([_as_bytes(_at_host(part)) for part in parcel])
            )
            leaving.append(flat)  # until it has been sent
            pending.append(world.group.send([flat], peer, tag))
    wait(pending, deadline)
    for parcel, flat in arriving:
        if not _direct(parcel):
            for part, data in zip(parcel, flat.split([_bytes([part]) for part in parcel]), strict=True):
                aligned = data if len(parcel) == 1 else data.clone()
                part.copy_(aligned.view(part.dtype).view(part.shape))


def _parcels(parts: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """What travels together; the same on both sides, which know shapes and types only."""
    return buckets_of(parts, kind=lambda part: None)


def _at_host(part: torch.Tensor) -> torch.Tensor:
    return part.to("cpu").contiguous()


def _as_bytes(part: torch.Tensor) -> torch.Tensor:
    return part.view(-1).view(torch.uint8)


def _bytes(parcel: Sequence[torch.Tensor]) -> int:
    return sum(part.numel() * part.element_size() for part in parcel)


def _direct(parcel: Sequence[torch.Tensor]) -> bool:
    return len(parcel) == 1 and parcel[0].device.type == "cpu" and parcel[0].is_contiguous()
