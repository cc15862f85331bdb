"""What a mesh that is done with leaves behind: nothing that keeps a process group alive."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

from slurm_elastic.trainer_shim.parallel.fsdp import Sharded
from slurm_elastic.trainer_shim.world import process_group as worlds
from slurm_elastic.trainer_shim.world.layout import Layout
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS
from slurm_elastic.trainer_shim.world.process_group import World


@pytest.fixture
def four_ranks() -> Iterator[None]:
    """A group of four of which there is this one, whose collectives do nothing. No garbage is collected."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    gc.collect()
    gc.disable()
    yield
    gc.enable()
    worlds.leave()


@pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
@pytest.mark.parametrize("unit", [None, 2])
def test_the_groups_of_a_broken_world_end_at_once(four_ranks: None, unit: int | None) -> None:
    """Other ranks learn that a world broke from its connections, which end with the last reference to their group;
    also while the script holds on to a loss, whose graph refers to what fully_shard keeps."""
    options: dict[str, Any] = {"parallelize": lambda model, mesh: None} if unit else {}
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    layout = Layout((("tp", unit),) if unit else ())
    strategy = Sharded(model, [], options, True, layout)
    strategy.connect(World(1, 0, 4, grouped=True, layout=layout))
    loss = strategy(torch.ones(2, 4)).sum()
    groups = [weakref.ref(group) for group in dist.distributed_c10d._world.pg_map]
    assert len(groups) == (3 if unit else 1)
    strategy.disconnect()
    worlds.leave(broken=True)
    assert [group() for group in groups] == [None] * len(groups)
    assert loss.grad_fn is not None
