"""Checkpoints of state that is sharded over ranks: every rank writes and reads its own parts, rank 0 seals the whole.

torch.distributed.checkpoint plans and stores the tensors, so another number of ranks, another unit, or one process can
read them; everything else is stored beside them. What ranks tell each other about it travels as objects.py has it:
torch's own exchange of objects asks nobody who sent them. Sealed means verified and renamed, as in files.py. Nothing
else uses the group that is handed in: writing runs beside the training's own collectives.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.utils import _create_file_view

from slurm_elastic.protocol.errors import TrainingError

from ..state.kept_parts import State
from ..state.packed_tensors import pack, slots_of, unpack
from ..world import objects
from ..world.mesh import DTensor
from . import contents, disk_space, files
from .contents import Globals
from .files import STATE, Entry, Saved

METADATA = ".metadata"
"""The index of parts, by the name that torch.distributed.checkpoint gives it."""


def copy(captured: dict[str, Any]) -> tuple[Any, list[torch.Tensor]]:
    """A capture's structure, and copies in host memory of the parts that this rank holds."""
    tensors: list[torch.Tensor] = []
    skeleton = pack(captured, tensors)
    return skeleton, [tensor.to("cpu", copy=True) for tensor in tensors]


def write(directory: Path, skeleton: Any, tensors: list[torch.Tensor], group: Any, safe: Globals = ()) -> Saved | None:
    """Write this rank's parts; every rank of the group calls this. On rank 0 what has been saved, else None.

    safe: types that it may hold besides plain ones, tensors apart.

    Where it fails on any rank it fails on all, and nothing is left behind; on a full disk once more, if rank 0 can make
    room. Raises what went wrong here, or OSError with what went wrong on another rank.
    """
    if (first := _write_once(directory, skeleton, tensors, group, safe)).problem is None:
        return first.saved
    if not _room_made(directory, first.problem, group):
        raise first.problem
    if (second := _write_once(directory, skeleton, tensors, group, safe)).problem is None:
        return second.saved
    raise second.problem


@dataclass(frozen=True, slots=True)
class _Outcome:
    saved: Saved | None = None
    problem: BaseException | None = None


def _write_once(directory: Path, skeleton: Any, tensors: list[torch.Tensor], group: Any, safe: Globals) -> _Outcome:
    """Every rank has an outcome of the same kind."""
    rank = group.rank()
    path = objects.share(_prepared(directory, skeleton, safe) if rank == 0 else None, group=group)
    if isinstance(path, Exception):
        return _Outcome(problem=path)
    outcome = _Outcome()
    written, digests = None, {}
    try:
        plan, index = _planned(path, tensors, group)
        written = plan.write()
        digests = {file.name: files.digest_of(file) for file in sorted(path.glob(f"__{rank}_*"))}
    except (OSError, RuntimeError) as error:
        outcome = _Outcome(problem=error)
    told = objects.gather((written, digests, disk_space.said(outcome.problem) if outcome.problem else ""), group)
    problems = [problem for _, _, problem in told if problem]
    if rank == 0 and not problems:
        try:
            plan.writer.finish(index, [results for results, _, _ in told])
            outcome = _Outcome(_seal(directory, path, skeleton, [entries for _, entries, _ in told]))
        except (OSError, RuntimeError, TrainingError) as error:
            outcome = _Outcome(problem=error)
    problems = objects.share([*problems, *([disk_space.said(outcome.problem)] if outcome.problem else [])], group=group)
    if problems and rank == 0:
        shutil.rmtree(path, ignore_errors=True)
    return _Outcome(problem=outcome.problem or OSError(problems[0])) if problems else outcome


@dataclass(frozen=True, slots=True)
class _Plan:
    """What this rank is to write."""

    planner: DefaultSavePlanner
    writer: FileSystemWriter
    plan: Any

    def write(self) -> Any:
        """What torch wants to know of it for the index."""
        pending = self.writer.write_data(self.planner.finish_plan(self.plan), self.planner)
        pending.wait()
        return pending.value()


def _planned(path: Path, tensors: list[torch.Tensor], group: Any) -> tuple[_Plan, Any]:
    """Which rank writes what, and on rank 0 the index; every rank calls this, and where one cannot, all raise."""
    rank = group.rank()
    planner, writer = DefaultSavePlanner(), FileSystemWriter(path)
    own, problem = None, None
    try:
        planner.set_up_planner(_named(tensors), writer.storage_meta(), rank == 0)
        writer.set_up_storage_writer(rank == 0)
        own = writer.prepare_local_plan(planner.create_local_plan())
    except (OSError, RuntimeError) as error:  # every rank has to hear of it, or waits for this one's plan
        problem = error
    everyone = objects.gather((own, disk_space.said(problem) if problem else ""), group)
    if problem is not None:
        raise problem
    if problems := [said for _, said in everyone if said]:
        raise OSError(problems[0])
    plans, index = planner.create_global_plan([plan for plan, _ in everyone]) if rank == 0 else ([], None)
    plans = objects.share(writer.prepare_global_plan(plans) if rank == 0 else None, group=group)
    return _Plan(planner, writer, plans[rank]), index


def _prepared(directory: Path, skeleton: Any, safe: Globals) -> Path | OSError | TrainingError:
    partial = files.partial_of(directory, skeleton["progress"]["step"])
    try:
        contents.check(skeleton, safe)
        files.prepare(partial)
    except (OSError, TrainingError) as error:
        return error
    return partial


def _seal(directory: Path, path: Path, skeleton: Any, entries: list[dict[str, Entry]]) -> Saved:
    digests = {name: entry for own in entries for name, entry in own.items()}
    digests[METADATA] = files.digest_of(path / METADATA)
    digests[STATE] = files.dump(path / STATE, skeleton)
    return files.seal(directory, path, skeleton, digests, parts=True)


def _room_made(directory: Path, problem: BaseException, group: Any) -> bool:
    """Whether the disk was full for any rank, and rank 0 could do something about it."""
    full = any(objects.gather(disk_space.is_full(problem), group))
    return bool(objects.share(full and group.rank() == 0 and files.make_room(directory), group=group))


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
    problem: BaseException | None = None
    try:
        _read(path, _named(tensors))
    except (OSError, RuntimeError, ValueError, TrainingError) as error:
        problem = error
    problems = objects.gather(disk_space.said(problem) if problem else "", group) if group is not None else []
    if problem is not None:
        raise problem
    if any(problems):
        raise OSError(next(filter(None, problems)))
    captured: dict[str, Any] = unpack(skeleton, tensors)
    return captured


def _read(path: Path, into: dict[str, torch.Tensor]) -> None:
    """Fill tensors, or the parts of them that are here, by name; each rank by itself."""
    with open(path / METADATA, "rb") as file:
        index = contents.index_of_parts(file, path / METADATA)
    planner = DefaultLoadPlanner()
    planner.set_up_planner(into, index)
    [plan] = planner.create_global_plan([planner.create_local_plan()])
    for item in planner.finish_plan(plan).items:
        place = index.storage_data[item.storage_index]
        name = path / Path(place.relative_path).name
        with open(name, "rb") as file:
            view: Any = _create_file_view(file, place.offset, place.length)
            part = contents.load(view, name)
        target = planner.resolve_tensor(item).detach()
        sizes = zip(item.storage_offsets, item.lengths, strict=True)
        target.copy_(part[tuple(slice(first, first + size) for first, size in sizes)])
        planner.commit_tensor(item, target)


def _named(tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    return {str(number): tensor for number, tensor in enumerate(tensors)}
