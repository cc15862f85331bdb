"""Checkpoints of state that is sharded over ranks: every rank writes and reads its own parts, rank 0 seals the whole.

torch.distributed.checkpoint stores the tensors, so another number of ranks, another unit, or one process can read them;
everything else is stored beside them. Sealed means verified and renamed, as in files.py. Nothing else uses the group
that is handed in: writing runs beside the training's own collectives.
"""

from __future__ import annotations

import datetime
import shutil
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load, load_state_dict
from torch.distributed.checkpoint.state_dict_saver import save

from slurm_elastic.protocol.errors import TrainingError

from ..state.kept_parts import State
from ..state.packed_tensors import pack, slots_of, unpack
from ..world import objects
from ..world.mesh import DTensor
from . import files, room
from .files import STATE, Entry, Saved

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
    """Write this rank's parts; every rank of the group calls this. On rank 0 what has been saved, else None.

    Where it fails on any rank it fails on all, and nothing is left behind; on a full disk once more, if rank 0 can make
    room. Raises what went wrong here, or OSError with what went wrong on another rank.
    """
    if (first := _write_once(directory, skeleton, tensors, group)).problem is None:
        return first.saved
    if not _room_made(directory, first.problem, group):
        raise first.problem
    if (second := _write_once(directory, skeleton, tensors, group)).problem is None:
        return second.saved
    raise second.problem


@dataclass(frozen=True, slots=True)
class _Outcome:
    saved: Saved | None = None
    problem: BaseException | None = None


def _write_once(directory: Path, skeleton: Any, tensors: list[torch.Tensor], group: Any) -> _Outcome:
    """Every rank has an outcome of the same kind."""
    rank = dist.get_rank(group)
    path = objects.share(_prepared(directory, skeleton) if rank == 0 else None, group=group)
    if isinstance(path, OSError):
        return _Outcome(problem=path)
    outcome = _Outcome()
    digests: dict[str, Entry] = {}
    try:
        save(_named(tensors), storage_writer=FileSystemWriter(path), process_group=group)
        digests = {file.name: files.digest_of(file) for file in sorted(path.glob(f"__{rank}_*"))}
    except (OSError, RuntimeError, CheckpointException) as error:  # the last one on all ranks, if it was on any
        outcome = _Outcome(problem=error)
    told = objects.gather((digests, room.said(outcome.problem) if outcome.problem else ""), group)
    problems = [problem for _, problem in told if problem]
    if rank == 0 and not problems:
        try:
            outcome = _Outcome(_seal(directory, path, skeleton, [entries for entries, _ in told]))
        except (OSError, RuntimeError, TrainingError) as error:
            outcome = _Outcome(problem=error)
    problems = objects.share([*problems, *([room.said(outcome.problem)] if outcome.problem else [])], group=group)
    if problems and rank == 0:
        shutil.rmtree(path, ignore_errors=True)
    return _Outcome(problem=outcome.problem or OSError(problems[0])) if problems else outcome


def _prepared(directory: Path, skeleton: Any) -> Path | OSError:
    partial = files.partial_of(directory, skeleton["progress"]["step"])
    try:
        files.prepare(partial)
    except OSError as error:
        return error
    return partial


def _seal(directory: Path, path: Path, skeleton: Any, entries: list[dict[str, Entry]]) -> Saved:
    digests = {name: entry for own in entries for name, entry in own.items()}
    digests[".metadata"] = files.digest_of(path / ".metadata")
    digests[STATE] = files.dump(path / STATE, skeleton)
    return files.seal(directory, path, skeleton, digests, parts=True)


def _room_made(directory: Path, problem: BaseException, group: Any) -> bool:
    """Whether the disk was full for any rank, and rank 0 could do something about it."""
    full = any(objects.gather(room.is_full(problem), group))
    return bool(objects.share(full and dist.get_rank(group) == 0 and files.make_room(directory), group=group))


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
