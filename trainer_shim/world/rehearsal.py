"""Worlds in which nobody else is: what a joiner does while the old world still trains, and what one rank tries alone.

In a world's first moments torch works out how each shape of parameter is laid out on its mesh, and runs code for the
first time. Here it does so over a group that communicates nothing, on tensors without memory and a layer of one number;
the script's model is not touched.
"""

import datetime
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

from ..control import cuda_backend
from . import groups, process_group
from .mesh import fully_shard, mesh_of, release
from .process_group import World


@contextmanager
def quiet_world(rank: int, size: int) -> Iterator[World]:
    """A world that communicates nothing, of this one process."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401  registers it; some torches do so themselves

    made = groups.make("fake", HashStore(), rank, size, groups.free_slot(), "", datetime.timedelta(minutes=1))
    with made.used():
        try:
            yield World(-1, rank, size, made)
        finally:
            made.leave()


WARM_S = 60.0
"""For a communicator of one rank, at most."""


def warm(device: torch.device, module: nn.Module) -> None:
    """What a process pays for once on a GPU: the libraries that compute, on threads of its own for backward passes, and
    that communicate. Here with ones and in a group of this rank alone: nothing of the script's runs, and no random
    number is drawn. module: what types and kinds of layers come. That it fails costs time only."""
    if device.type != "cuda":
        return
    kinds = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    folds = any(isinstance(part, nn.modules.conv._ConvNd) for part in module.modules())
    try:
        with torch.enable_grad():
            for dtype in kinds:
                x = torch.ones(8, 8, 3, 3, device=device, dtype=dtype, requires_grad=True)
                out = nn.functional.conv2d(x, x) if folds else torch.zeros((), device=device)
                (x[:, :, 0, 0] @ x[:, :, 1, 1] + out.sum()).sum().backward()
        if cuda_backend.chosen(os.environ) == "gloo":
            return
        backend = process_group.backend().rpartition(",")[2]
        timeout = datetime.timedelta(seconds=WARM_S)
        made = groups.make(backend, HashStore(), 0, 1, groups.free_slot(), "warm", timeout)
        try:
            made.form_communicator(WARM_S, lambda: False, alone=True)
        finally:
            made.leave()
    except Exception as error:  # whatever it is, the training itself finds out
        sys.stderr.write(f"selastic: the GPU was not warmed up: {type(error).__name__}: {error}\n")


def rehearse(rank: int, size: int, device: torch.device, parameters: Iterable[nn.Parameter]) -> None:
    """Rehearse for one place in a world of fully_shard'ed parameters. That it fails costs time only."""
    try:
        with quiet_world(rank, size) as world:
            _first_moments(world, device, parameters)
    except Exception as error:  # whatever it is, the real world does without
        sys.stderr.write(f"selastic: no rehearsal of a world of {size}: {type(error).__name__}: {error}\n")


def _first_moments(world: World, device: torch.device, parameters: Iterable[nn.Parameter]) -> None:
    mesh = mesh_of(world, device)
    if mesh is None:
        return
    shapes = {(entry.shape, entry.dtype, entry.requires_grad) for entry in parameters}
    blank = nn.ParameterList(
        nn.Parameter(torch.empty(shape, dtype=dtype, device="meta"), learns) for shape, dtype, learns in shapes
    )
    fully_shard(blank, mesh=mesh)
    one = nn.Linear(1, 1, device=device)
    fully_shard(one, mesh=mesh)
    one(torch.zeros(1, 1, device=device)).sum().backward()
    for module in (blank, one):
        release(mesh, module)
