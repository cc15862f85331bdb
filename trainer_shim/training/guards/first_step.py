"""What a second rank and a checkpoint would do, tried before the first step, also where there is one rank: what would
end the job when it first grows, or is first saved, ends it here, with one sentence.

It costs nothing that grows with the model, but for one look at each tensor's kind. What a step only brings about (the
optimizers' state) is looked at behind the first one, in Snapshots.first_look(). Limit: what a step does that is not the
first one is not seen.
"""

import gc
import re
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from slurm_elastic.protocol.errors import TrainingError

from ...checkpoint import contents
from ...parallel.strategy import Strategy
from ...state.kept_parts import State, place_of
from ...state.packed_tensors import pack
from ...state.variables import Variables
from ...world.process_group import backend

OVER_GLOO = {
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
}
"""Types of numbers that gloo carries from rank to rank."""
SCHEDULE = re.compile(r"Schedule|Warmup|LR$")


def look_ahead(state: State, model: Strategy, several: bool) -> None:
    """Before the first world: raise TrainingError for what one of several ranks, or a checkpoint, could not do.
    several: a step may be computed in more than one micro batch."""
    contents.check_tensors({"parts": {"Model": model.module.state_dict()}})
    for module, options in replicas_of(model):
        _check_broadcast(module, options)
        check_graph(options, several, "join(micro_batch=...), nor with job.fit()")
    _check_sparse(model)
    _check_schedules(state)
    if not any(parameter.is_meta for parameter in model.module.parameters()):
        _check_loads(state)
    for part in getattr(model, "models", [model]):
        if part.sharded and not dist.is_initialized():
            part.try_two(model.step)


def replicas_of(model: Strategy) -> list[tuple[nn.Module, dict[str, Any]]]:
    """The modules that DistributedDataParallel gets in a world, with its options."""
    parts: list[Any] = getattr(model, "models", [model])
    return [(part.module, part.ddp_options) for part in parts if hasattr(part, "ddp_options")]


def check_graph(options: dict[str, Any], several: bool, beside: str) -> None:
    """Raise TrainingError for a graph that is declared to be fixed where not each of its passes sends gradients."""
    if several and options.get("static_graph"):
        raise TrainingError(
            f"static_graph=True does not go with {beside}: torch fails where gradients of several micro batches are "
            "gathered; accepted: one micro batch, or no static_graph, which changes nothing but speed"
        )


def _check_broadcast(module: nn.Module, options: dict[str, Any]) -> None:
    """Ranks are told rank 0's buffers, and add up gradients."""
    buffers = list(module.named_buffers()) if options.get("broadcast_buffers", True) else []
    for name, tensor in [*buffers, *module.named_parameters()]:
        if tensor.layout != torch.strided:
            what = f"is of layout {tensor.layout}"
        elif tensor.dtype not in OVER_GLOO and not (tensor.is_cuda and "nccl" in backend()):
            what = f"is of type {tensor.dtype}"
        else:
            continue
        raise TrainingError(
            f"the model's '{name}' {what}, which the ranks of a world cannot tell each other; accepted: plain "
            "tensors, of which forward() makes it; of a buffer that stays as it is also broadcast_buffers=False"
        )


def _check_sparse(model: Strategy) -> None:
    kinds = (nn.Embedding, nn.EmbeddingBag)
    found = [name for name, part in model.module.named_modules() if isinstance(part, kinds) and part.sparse]
    on_gpus = any(parameter.is_cuda for parameter in model.module.parameters()) and "nccl" in backend()
    if found and (on_gpus or not replicas_of(model)):
        raise TrainingError(
            f"the model's '{found[0]}' has sparse gradients, which "
            + ("NCCL does not add up" if on_gpus else "a sharded, or a deterministic, step does not add up")
            + "; accepted: sparse=False"
        )


def _check_schedules(state: State) -> None:
    """One that is not kept begins anew where a worker starts again, which nobody but a joiner's ranks would notice."""
    if _lost_schedule(state):
        gc.collect()  # one that the script has replaced may be there still
    if name := _lost_schedule(state):
        raise TrainingError(
            f"the schedule {name} of an optimizer that survives does not: it begins anew on a worker that joins or "
            "starts again; accepted: job.wrap(model, optimizer, schedule), job.keep(schedule=schedule), or "
            "accelerator.prepare() of all three"
        )


def _lost_schedule(state: State) -> str:
    """The kind of a schedule that is not kept, of an optimizer that is; "" if there is none."""
    parts = list(state.parts.values())
    kept: set[int] = set()
    layer: list[Any] = [part for part in parts if not isinstance(part, Variables)]  # they hold all globals
    for _ in range(3):  # what a kept object holds
        kept |= set(map(id, layer))
        held = [value for part in layer for value in _attributes(part)]
        layer = [entry for value in held for entry in _entries(value)]
    found = gc.get_objects()
    kinds = {id(type(entry)): type(entry) for entry in found}  # a class need not be hashable
    those = {key for key, kind in kinds.items() if _is_of_schedules(kind)}
    schedules = [entry for entry in found if id(type(entry)) in those]
    whole = [schedule for schedule in schedules if id(schedule) in kept]
    for schedule in whole:  # a SequentialLR's, of which one may be another's
        whole += getattr(schedule, "_schedulers", [])
    kept |= set(map(id, whole))
    for schedule in schedules:
        optimizer = getattr(schedule, "optimizer", None)
        if id(schedule) not in kept and id(getattr(optimizer, "optimizer", optimizer)) in map(id, parts):
            return type(schedule).__name__
    return ""


def _is_of_schedules(kind: Any) -> bool:
    """Whether a class is torch's, or named a schedule by another library (timm, mmengine), which saves its state."""
    named = any(SCHEDULE.search(base.__name__) for base in kind.__mro__) and hasattr(kind, "load_state_dict")
    return issubclass(kind, torch.optim.lr_scheduler.LRScheduler) or named


def _attributes(part: Any) -> list[Any]:
    slots = [name for kind in type(part).__mro__ for name in kind.__dict__.get("__slots__", ())]
    return [*getattr(part, "__dict__", {}).values(), *(getattr(part, name, None) for name in slots)]


def _entries(value: Any) -> list[Any]:
    if type(value) is dict:
        return list(value.values())
    return list(value) if type(value) in (list, tuple) else [value]


def _check_loads(state: State) -> None:
    """Where load_state_dict() does more than copy tensors, it takes what state_dict() gives, and changes nothing."""
    own, before = state.own_places(), state.capture()
    skeleton = pack(before, [])
    if "Model" not in before["parts"] or state.has_arrived(skeleton, range(1 << 62)):
        return
    derived: list[list[torch.Tensor]] = []
    try:
        for number in range(2):
            tensors: list[torch.Tensor] = []
            pack(state.capture()["parts"]["Model"], tensors)
            derived.append([tensor.clone() for tensor in tensors if place_of(tensor) not in own])
            if not number:
                state.restore(before, only={"Model"})
        same = all(map(torch.equal, *derived)) if len(derived[0]) == len(derived[1]) else False
        problem = "" if same else "it gives other values then"
    except (TrainingError, RuntimeError) as error:
        problem = str(error).removeprefix("the state of 'Model' does not fit this script: ").replace("\n", " ")
    if problem:
        raise TrainingError(
            f"the model's load_state_dict() does not take what its state_dict() gives ({problem}), so that no worker "
            "could join or start again; accepted: hooks, and get_extra_state() and set_extra_state(), in pairs"
        )
