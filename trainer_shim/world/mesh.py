"""The ranks of a world as a mesh, by the axes of its layout. And what a tensor's part on a mesh is.

Worlds of one shape, in which this rank has one place, have one mesh object, with the groups of the
world that is there: torch keeps for good what it has learnt of a mesh, how every operation is laid out on it, and the
mesh with it. So nothing is learnt twice, and no left world's groups, with their threads and connections, are kept.
Groups are made first of all beside the default one: torch numbers them, and worlds of one shape have to number alike.
"""

from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from slurm_elastic.protocol.errors import TrainingError

try:
    from torch.distributed.tensor import DTensor, Partial, Replicate

    CUTS_TWICE = True
    """Whether fully_shard can give the state of a model that is tensor parallel already: from torch 2.5 on."""
except ImportError:  # where torch 2.4 has them
    from torch.distributed._tensor import DTensor, Partial, Replicate  # type: ignore[attr-defined]

    CUTS_TWICE = False

try:
    from torch.distributed.fsdp import FSDPModule, fully_shard
except ImportError:  # where torch 2.4 and 2.5 have it
    from torch.distributed._composable.fsdp import FSDPModule, fully_shard  # type: ignore[attr-defined]

from .listeners import deaf_when_made
from .process_group import World
from .resharding import Cut

__all__ = ["DTensor", "DeviceMesh", "fully_shard"]  # others take them from here, wherever this torch has them
CUTS_ON_CPUS = hasattr(FSDPModule, "set_force_sum_reduction_for_comms")
"""Whether fully_shard computes without GPUs: before torch 2.8 it fails in the first forward pass, or gloo gives the sum
of the ranks' gradients where fully_shard asks for their mean, and nothing can be done about it."""
_MESHES: dict[tuple[str, tuple[int, ...], int], DeviceMesh] = {}
"""By kind of device, shape, and this rank."""


def mesh_of(world: World, device: torch.device) -> DeviceMesh | None:
    """The mesh of a world, with the axes of its layout: "dp" alone where each rank has a replica; None for a process
    alone.

    Every rank of the world calls this at the same time.
    """
    if world.groups is None:
        return None
    names, shape = zip(*world.layout.sizes(world.size).items(), strict=True)
    with deaf_when_made(), world.groups.used():
        made = init_device_mesh(device.type, shape, mesh_dim_names=names)
    mesh = _MESHES.setdefault((device.type, shape, world.rank), made)
    mesh.__dict__.update(made.__dict__)
    # Meshes are equal where their shapes are, and the results that torch keeps have the mesh in them: a rank that has
    # another place in an equal mesh would get its old place back.
    mesh._thread_id = -1 - world.rank
    mesh._hash = None
    return mesh


def release(mesh: DeviceMesh, module: torch.nn.Module) -> None:
    """Have a mesh that is done with, and what fully_shard knows of it, hold its process groups no longer.

    Losses that a script keeps, and cycles, hold on to both; gloo's connections end with the last reference to a group
    only, and when a world breaks the other ranks wait for just that.
    """
    found = [mesh]
    for part in module.modules():
        for info in _mesh_infos(part, "mesh_info", "post_forward_mesh_info"):
            held = vars(info)
            found += [value for value in held.values() if isinstance(value, DeviceMesh)]
            held.update({name: None for name, value in held.items() if isinstance(value, dist.ProcessGroup)})
    for one in found:
        getattr(one, "_pg_registry", {}).clear()


def average_on_cpus(module: torch.nn.Module) -> None:
    """Have fully_shard divide sums of gradients itself: gloo gives the sum where it is asked for the mean, in torch 2.8
    at least."""
    for part in module.modules():
        if isinstance(part, FSDPModule):
            part.set_force_sum_reduction_for_comms(True)


def check_sharded_over(module: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Raises TrainingError for a submodule that fully_shard has cut up over another mesh: nobody resizes that one."""
    for name, part in module.named_modules():
        for info in _mesh_infos(part, "mesh_info"):
            if info.mesh is not mesh:
                raise TrainingError(
                    f"{name or 'the model'} is sharded over a mesh of the script's own; accepted: job.wrap(shard=...) "
                    "with a function(model, mesh) that calls fully_shard(..., mesh=mesh)"
                )


def _mesh_infos(part: torch.nn.Module, *names: str) -> list[Any]:
    """What fully_shard knows of the meshes of one module, where it has been called on that."""
    state = getattr(part, "_get_fsdp_state", lambda: None)()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    infos = [getattr(group, name, None) for group in groups for name in names]
    return [info for info in infos if info is not None]


def cuts_of(tensor: torch.Tensor) -> tuple[Cut, ...]:
    """How this rank's part comes about from the whole tensor; nothing for a tensor that is whole."""
    if not isinstance(tensor, DTensor):
        return ()
    mesh, found = tensor.device_mesh, []
    names = mesh.mesh_dim_names or tuple("" for _ in tensor.placements)
    # The last dimension first: fully_shard cuts what a tensor-parallel rank holds, not the other way round.
    for dimension, placement in reversed(list(enumerate(tensor.placements))):
        along = _cut_along(placement)
        if along is not None:
            found.append(Cut(along, names[dimension], mesh.size(dimension), mesh.get_local_rank(dimension)))
    return tuple(found)


def local_of(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that this rank holds of a tensor."""
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def settle_gradients(parameters: Iterable[torch.nn.Parameter]) -> list[torch.Tensor]:
    """The gradients, none of them a sum that is still spread over ranks: those are added up here."""
    grads = []
    for parameter in parameters:
        grad = parameter.grad
        if isinstance(grad, DTensor) and any(isinstance(placement, Partial) for placement in grad.placements):
            whole = [Replicate() if isinstance(placement, Partial) else placement for placement in grad.placements]
            grad = parameter.grad = grad.redistribute(placements=whole)
        if grad is not None:
            grads.append(grad)
    return grads


def clip(parameters: Iterable[torch.nn.Parameter], limit: float) -> None:
    """clip_grad_norm_ over tensors and parts of tensors, on meshes of any kind side by side."""
    grads = settle_gradients(parameters)
    if not grads:
        return
    spread: dict[tuple[str, ...], tuple[list[Any], list[torch.Tensor]]] = {}
    for grad in grads:
        groups = _groups(grad) if isinstance(grad, DTensor) else []
        spread.setdefault(tuple(group.group_name for group in groups), (groups, []))[1].append(local_of(grad))
    total = torch.zeros((), dtype=torch.float64 if grads[0].device.type == "cpu" else torch.float32)
    total = total.to(local_of(grads[0]).device)
    for groups, parts in spread.values():
        square = torch.stack([norm.to(total.dtype) for norm in torch._foreach_norm(parts)]).square().sum()
        for group in groups:
            group.allreduce([square]).wait()
        total = total + square
    factor = (limit / (total.sqrt() + 1e-6)).clamp(max=1.0)
    for grad in grads:
        local_of(grad).mul_(factor.to(grad.dtype))


def _cut_along(placement: Any) -> int | None:
    """The tensor's dimension along which a mesh dimension cuts it, whatever kind of shard; None where it does not."""
    along: int | None = getattr(placement, "dim", None)
    return along


def _groups(tensor: DTensor) -> list[Any]:
    """The process groups over which a tensor is cut up."""
    mesh = tensor.device_mesh
    cut = [dimension for dimension, placement in enumerate(tensor.placements) if _cut_along(placement) is not None]
    return [mesh.get_group(dimension) for dimension in cut]
