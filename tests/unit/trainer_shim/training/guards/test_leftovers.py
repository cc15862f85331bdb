"""What a script has kept from torchrun is refused under the supervisor, each by its name."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from local_jobs import refused
from made_worlds import made_world
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_
from torch.utils.data import DistributedSampler

from slurm_elastic.trainer_shim.parallel.own_backward import OwnBackward, Replica
from slurm_elastic.trainer_shim.training.guards.leftovers import Leftovers
from slurm_elastic.trainer_shim.world.process_group import World


@pytest.fixture
def about() -> Iterator[SimpleNamespace]:
    """The job's strategy and its world, as a test sets them."""
    known = SimpleNamespace(strategy=None, world=None)
    known.leftovers = Leftovers(lambda: known.strategy, lambda: known.world)
    yield known
    known.leftovers.end()


def trained() -> tuple[torch.nn.Module, Any]:
    model = torch.nn.Linear(2, 1)
    model(torch.ones(1, 2)).sum().backward()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_an_optimizer_stepped_without_a_loop(about: SimpleNamespace) -> None:
    """Of a script that has given the job nothing, or does not begin its loop; another model's is its own business."""
    model, optimizer = trained()
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with refused(r"step\(\) of a SGD, and has given the job no model: .*job.wrap\(model, optimizer\)"):
        optimizer.step()
    about.strategy = OwnBackward()
    optimizer.step()
    about.strategy.add(Replica(model, {}, about.strategy))
    with refused(r"step\(\) of a SGD before the job's loop"):
        optimizer.step()
    optimizer.zero_grad()
    optimizer.step()  # makes its state
    model(torch.ones(1, 2)).sum().backward()
    about.leftovers.begin()
    optimizer.step()
    assert any(not torch.equal(was, now) for was, now in zip(before, model.parameters(), strict=True))


def clips_by_name(parameters: Any) -> Any:
    return clip_grad_norm_(parameters, 0.1)


@pytest.mark.parametrize(
    "clip",
    [
        lambda parameters: torch.nn.utils.clip_grad_norm_(parameters, 0.1),
        lambda parameters: torch.nn.utils.clip_grad_value_(parameters, 0.1),
        clips_by_name,
    ],
)
def test_clipping_beside_a_step_that_has_the_gradients(about: SimpleNamespace, clip: Any) -> None:
    """Before job.step(loss), or behind it: nothing would be clipped. Where there are gradients it is the script's way,
    and so it is in a loop of its own, and of other models."""
    model, _ = trained()
    clip(model.parameters())
    about.strategy = SimpleNamespace(module=model)
    clip(model.parameters())
    model.zero_grad()
    for parameters in (model.parameters(), model.weight):
        with refused(r"called clip_grad_\w+\(\) where the model has no gradients.*job.step\(loss, clip_norm=...\)"):
            clip(parameters)
    other = [*trained()[0].parameters(), torch.nn.Parameter(torch.zeros(1))]
    clip(other)
    own = OwnBackward()
    own.add(Replica(model, {}, own))
    for about.strategy in (None, own):
        with contextlib.suppress(RuntimeError):  # torch's own, of values that are not there
            clip(model.parameters())
    about.strategy = SimpleNamespace(module=model)
    about.leftovers.end()
    with contextlib.suppress(RuntimeError):
        clip(model.parameters())


def test_a_script_makes_no_distributed_data_parallel(about: SimpleNamespace) -> None:
    """The job's own are made as ever, and afterwards anybody's."""
    with made_world() as world:
        with refused("the script made a DistributedDataParallel"):
            DistributedDataParallel(torch.nn.Linear(1, 1))
        strategy = OwnBackward()
        replica = Replica(torch.nn.Linear(1, 1), {}, strategy)
        replica.connect(dataclasses.replace(world, size=2))
        assert replica._ddp is not None
        strategy.add(replica)
        strategy.disconnect()
        assert "module" in inspect.signature(DistributedDataParallel.__init__).parameters
        about.leftovers.end()
        DistributedDataParallel(torch.nn.Linear(1, 1))


def test_a_script_does_not_end_the_jobs_groups(about: SimpleNamespace) -> None:
    """`destroy_process_group()`, with which most scripts end: nothing of it, and no error in a world of one rank, which
    has no group. A group that the script has made is its own, and so is everything afterwards."""
    dist.destroy_process_group()
    with made_world() as world:
        dist.destroy_process_group()
        dist.destroy_process_group(dist.group.WORLD)
        assert dist.group.WORLD is world.group
        own = dist.new_group([0])
        dist.destroy_process_group(own)
        assert own not in dist.distributed_c10d._world.pg_map
        about.leftovers.end()
        dist.destroy_process_group()
        assert not dist.is_initialized()


def test_a_script_makes_no_default_group(about: SimpleNamespace) -> None:
    """Whenever it calls for one after join(); afterwards anybody may."""
    for world in (contextlib.nullcontext(), made_world()):
        with (
            world,
            refused(r"called torch.distributed.init_process_group\(\); leave it out: under selastic run the job"),
        ):
            dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    about.leftovers.end()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    dist.destroy_process_group()


def test_a_sampler_of_another_world_is_refused(about: SimpleNamespace) -> None:
    """One that was made before a resize, or for a fixed world."""
    sampler: DistributedSampler[int] = DistributedSampler(range(8), num_replicas=2, rank=1, shuffle=False)  # type: ignore[arg-type]
    about.world = World(1, 1, 2)
    assert list(sampler) == [1, 3, 5, 7]
    about.world = World(2, 1, 3)
    with refused("a DistributedSampler made for rank 1 of 2 is used on rank 1 of 3"):
        list(sampler)
