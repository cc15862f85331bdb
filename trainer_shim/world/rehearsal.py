"""Worlds in which nobody else is: what a joiner does while the old world still trains, and what one rank tries alone.

In a world's first moments torch works out how each shape of parameter is laid out on its mesh, and runs code for the
first time. Here it does so over a group that communicates nothing, on tensors without memory and a layer of one number;
the script's model is not touched.
"""

import datetime
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch._C._distributed_c10d import HashStore

from . import groups
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
