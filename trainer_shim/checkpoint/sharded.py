"""Checkpoints of state that is sharded over ranks: every rank writes and reads its own parts, rank 0 seals the whole.

torch.distributed.checkpoint stores the tensors, so another number of ranks, another unit, or one process can read them;
everything else is stored beside them. Sealed means verified and renamed, as in files.py. Nothing else uses the group
that is handed in: writing runs beside the training's own collectives.
"""

from __future__ import annotations

import datetime
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load, load_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from ..state.kept_parts import State
from ..state.packed_tensors import pack, slots_of, unpack
from ..world.mesh import DTensor
from . import files
from .files import STATE, Saved

TIMEOUT = datetime.timedelta(minutes=10)
"""Bound of a single collective of a save: the slowest rank's writing."""


def group_of_all() -> Any:
    """A process group for saving or loading; all ranks call this at the same time."""
    return dist.new_group(timeout=TIMEOUT, backend="gloo")


def copy(captured: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    """A capture's structure, and copies in host memory of the parts that this rank holds."""
    tensors: list[torch.Tensor] = []
    skeleton = pack(captured, tensors)
    return skeleton, [tensor.to("cpu", copy=True) for tensor in tensors]


def write(directory: Path, skeleton: Any, tensors: list[torch.Tensor], group: Any) -> Saved | None:
    """Write this rank's parts; every rank of the group calls this. On rank 0 what has been saved, else None."""
    rank, step = dist.get_rank(group), skeleton["progress"]["step"]
    partial = [files.prepare(directory, step)] if rank == 0 else [Path()]
    dist.broadcast_object_list(partial, src=0, group=group, device=torch.device("cpu"))
    (path,) = partial
    save(_named(tensors), storage_writer=FileSystemWriter(path), process_group=group)
    own = {file.name: files.digest_of(file) for file in sorted(path.glob(f"__{rank}_*"))}
    everyone: list[Any] | None = [None] * dist.get_world_size(group) if rank == 0 else None
    dist.gather_object(own, everyone, dst=0, group=group)
    if everyone is None:
        return None
    digests = {name: entry for own in everyone for name, entry in own.items()}
    digests[".metadata"] = files.digest_of(path / ".metadata")
    digests[STATE] = files.dump(path / STATE, skeleton)
    return files.seal(directory, path, skeleton, digests, parts=True)


def read(path: Path, skeleton: Any, state: State | None, group: Any) -> dict[str, Any]:
    """The capture, with tensors laid out as those that `state` holds; without a state whole ones, in host memory.

    Every rank of the group calls this with the same checkpoint; without a group a rank reads by itself.
    """
    parts = {slot.number: like for _, slot, like in state.likes(skeleton) if isinstance(like, DTensor)} if state else {}
    tensors = [
        torch.zeros_like(parts[slot.number], dtype=slot.dtype, requires_grad=False)
        if slot.number in parts
        else torch.zeros(slot.shape, dtype=slot.dtype)
        for slot in slots_of(skeleton)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the only call that reads without a group in torch 2.4 is to be replaced
        if group is None:
            load_state_dict(_named(tensors), FileSystemReader(path), no_dist=True)
        else:
            load(_named(tensors), storage_reader=FileSystemReader(path), process_group=group)
    captured: dict[str, Any] = unpack(skeleton, tensors)
    return captured


def _named(tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {str(number): tensor for number, tensor in enumerate(tensors)}
