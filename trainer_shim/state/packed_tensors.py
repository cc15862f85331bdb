"""Structures of dicts and lists, apart from the tensors in them, which travel or are copied separately, small ones side
by side. Pure."""

import copy
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

BUCKET_BYTES = 32 << 20
ALONE_BYTES = 1 << 20
"""From this size on a tensor travels by itself: putting it beside others would cost two copies."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slot:
    """A tensor's place in a structure whose tensors travel separately."""

    number: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    device: str


def restructured(value: Any) -> Any:
    """The same tensors, in lists and dicts that nobody else changes."""
    tensors: list[torch.Tensor] = []
    return unpack(pack(value, tensors), tensors)


def copied(value: Any) -> Any:
    tensors: list[torch.Tensor] = []
    skeleton = copy.deepcopy(pack(value, tensors))
    return unpack(skeleton, [tensor.to("cpu", copy=True) for tensor in tensors])


def rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """The same structure with change(leaf) in place of each leaf: of whatever is no dict, list or tuple.

    Subclasses of dict (OrderedDict with attributes, defaultdict) become plain: load_state_dict asks for no more.
    """
    if isinstance(value, dict):
        return {key: rebuilt(entry, change) for key, entry in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(rebuilt(entry, change) for entry in value))
    if isinstance(value, (list, tuple)):
        return type(value)(rebuilt(entry, change) for entry in value)
    return change(value)


def pack(value: Any, tensors: list[torch.Tensor]) -> Any:
    """The structure with its tensors taken out into `tensors`."""

    def take_out(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        tensors.append(leaf.detach())
        return Slot(len(tensors) - 1, tuple(leaf.shape), leaf.dtype, leaf.device.type)

    return rebuilt(value, take_out)


def unpack(value: Any, tensors: list[torch.Tensor]) -> Any:
    return rebuilt(value, lambda leaf: tensors[leaf.number] if isinstance(leaf, Slot) else leaf)


def slots_of(value: Any) -> Iterator[Slot]:
    """The places of tensors in a packed structure, by number."""
    if isinstance(value, Slot):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for entry in value.values() if isinstance(value, dict) else value:
            yield from slots_of(entry)


def match(
    theirs: Any,
    own: Any,
    own_tensors: list[torch.Tensor],
    places: dict[int, torch.Tensor],
    fits: Callable[[torch.Tensor], bool],
) -> None:
    """Where their model tensor and ours have one name, kind and shape, and ours fits, receive into it: no copy."""
    if not isinstance(theirs, dict) or not isinstance(own, dict):
        return
    for key, slot in theirs.items():
        mine = own.get(key)
        if isinstance(slot, Slot) and isinstance(mine, Slot):
            same = (slot.shape, slot.dtype, slot.device) == (mine.shape, mine.dtype, mine.device)
            place = own_tensors[mine.number]
            if same and place.is_contiguous() and fits(place):
                places[slot.number] = place
        elif isinstance(slot, dict):
            match(slot, mine, own_tensors, places, fits)


def buckets_of(
    tensors: Sequence[torch.Tensor],
    kind: Callable[[torch.Tensor], object] = lambda tensor: (tensor.dtype, tensor.device.type),
) -> list[list[torch.Tensor]]:
    """Small tensors of one kind side by side, up to BUCKET_BYTES; the same on every rank. Empty ones are left out."""
    buckets: list[list[torch.Tensor]] = []
    room: dict[object, tuple[list[torch.Tensor], int]] = {}
    for tensor in tensors:
        if tensor.numel() == 0:
            continue
        size = tensor.numel() * tensor.element_size()
        if size >= ALONE_BYTES:
            buckets.append([tensor])
            continue
        bucket, used = room.get(kind(tensor), ([], BUCKET_BYTES))
        if used + size > BUCKET_BYTES:
            bucket, used = [], 0
            buckets.append(bucket)
        bucket.append(tensor)
        room[kind(tensor)] = (bucket, used + size)
    return buckets
