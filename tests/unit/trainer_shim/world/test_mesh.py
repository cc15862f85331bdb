"""What a mesh that is done with leaves behind: nothing that keeps a process group alive."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from made_worlds import made_world
from torch import nn

from slurm_elastic.trainer_shim.parallel.fsdp import Sharded
from slurm_elastic.trainer_shim.world.layout import Layout
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS
from slurm_elastic.trainer_shim.world.process_group import World


@pytest.fixture
def four_ranks() -> Iterator[World]:
    """A group of four of which there is this one, whose collectives do nothing. No garbage is collected."""
    with made_world(0, 4, "fake") as world:
        gc.collect()
        gc.disable()
        yield world
        gc.enable()


@pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
@pytest.mark.parametrize("unit", [None, 2])
def test_the_groups_of_a_broken_world_end_at_once(four_ranks: World, unit: int | None) -> None:
    """Other ranks learn that a world broke from its connections, which end with the last reference to their group;
    also while the script holds on to a loss, whose graph refers to what fully_shard keeps."""
    options: dict[str, Any] = {"parallelize": lambda model, mesh: None} if unit else {}
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    layout = Layout((("tp", unit),) if unit else ())
    strategy = Sharded(model, [], options, True, layout)
    strategy.connect(dataclasses.replace(four_ranks, layout=layout))
    loss = strategy(torch.ones(2, 4)).sum()
    groups = [weakref.ref(group) for group in dist.distributed_c10d._world.pg_map]
    assert len(groups) == (3 if unit else 1)
    strategy.disconnect()
    four_ranks.owned.leave(broken=True)
    assert [group() for group in groups] == [None] * len(groups)
    assert loss.grad_fn is not None
