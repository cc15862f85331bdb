"""Parts of models in one process: optimizer steps on them, and what a left world leaves behind."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from local_jobs import refused
from torch import nn

from slurm_elastic.trainer_shim.parallel import local_optimizer_step
from slurm_elastic.trainer_shim.parallel.fsdp import Sharded
from slurm_elastic.trainer_shim.training.once import on_rank_0
from slurm_elastic.trainer_shim.world import process_group as worlds
from slurm_elastic.trainer_shim.world.mesh import CUTS_ON_CPUS, DTensor
from slurm_elastic.trainer_shim.world.process_group import World

pytestmark = pytest.mark.skipif(not CUTS_ON_CPUS, reason="this torch's fully_shard needs GPUs")
RULES: list[tuple[type[torch.optim.Optimizer], dict[str, Any]]] = [
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (torch.optim.Adam, {"amsgrad": True, "maximize": True}),
    (torch.optim.AdamW, {}),
    (torch.optim.AdamW, {"foreach": True}),
    (torch.optim.Adamax, {}),
    (torch.optim.NAdam, {}),
    (torch.optim.RAdam, {}),
    (torch.optim.RMSprop, {"momentum": 0.9, "centered": True}),
    (torch.optim.Adagrad, {}),
    (torch.optim.Adadelta, {}),
    (torch.optim.ASGD, {}),
]


class Seeing(torch.optim.SGD):
    """Looks at what it is given."""

    seen: list[bool]

    def step(self, closure: Any = None) -> Any:
        self.seen = [isinstance(parameter, DTensor) for group in self.param_groups for parameter in group["params"]]
        return super().step(closure)


@pytest.fixture
def of_two() -> Iterator[World]:
    """A place in a world of two whose other rank is not there: nothing is really communicated."""
    dist.init_process_group("fake", store=dist.HashStore(), rank=1, world_size=2)
    yield World(1, 1, 2, grouped=True)
    dist.destroy_process_group()


def cut(world: World, rule: type[torch.optim.Optimizer], options: dict[str, Any]) -> tuple[Sharded, Any]:
    """A model cut up in this world, one of whose parameters takes no part, with its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    model[0].bias.requires_grad_(False)
    optimizer = rule(model.parameters(), **options)
    sharded = Sharded(model, [optimizer], {}, None, True)
    sharded.connect(world)
    return sharded, rule(model.parameters(), **options)  # Adagrad has state from the beginning


def states(optimizer: torch.optim.Optimizer) -> list[tuple[str, bool, Any]]:
    """Everything in the optimizer's state, and whether it is a part of a tensor."""
    return [
        (key, isinstance(value, DTensor), value.to_local() if isinstance(value, DTensor) else value)
        for entries in optimizer.state_dict()["state"].values()
        for key, value in entries.items()
    ]


@pytest.mark.parametrize(("rule", "options"), RULES, ids=[f"{rule.__name__}{options}" for rule, options in RULES])
def test_a_rule_by_element_gives_the_same_bits_on_parts(
    of_two: World, rule: type[torch.optim.Optimizer], options: dict[str, Any]
) -> None:
    """Three steps on the parts that a rank holds, beside torch's own on parts of tensors: parameters and state have
    the same bits and the same kind, and the optimizer holds its own parameters again."""
    found = []
    for step in (local_optimizer_step.step, lambda optimizer: optimizer.step()):
        sharded, optimizer = cut(of_two, rule, options)
        before = list(sharded.module.parameters())
        for number in range(3):
            for parameter in before:
                if parameter.requires_grad:
                    torch.manual_seed(number)
                    parameter.grad = torch.randn_like(parameter)
            step(optimizer)
        assert all(one is other for one, other in zip(optimizer.param_groups[0]["params"], before, strict=True))
        found.append(([parameter.to_local() for parameter in before], states(optimizer)))
        sharded.disconnect()
    (ours, our_state), (theirs, their_state) = found
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert [entry[:2] for entry in our_state] == [entry[:2] for entry in their_state]
    for (key, _, a), (_, _, b) in zip(our_state, their_state, strict=True):
        assert torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b, key


def test_what_looks_at_its_parameters_gets_parts_of_tensors(of_two: World) -> None:
    """A derived rule, and a hook of the script, see the model's own parameters in a step."""
    sharded, optimizer = cut(of_two, Seeing, {"lr": 0.1})
    local_optimizer_step.step(optimizer)
    assert all(optimizer.seen)
    hooked, seen = torch.optim.SGD(sharded.module.parameters(), lr=0.1), []
    hooked.register_step_pre_hook(lambda own, *_: seen.append(own.param_groups[0]["params"][0]))
    local_optimizer_step.step(hooked)
    assert isinstance(seen[0], DTensor)


def test_parts_are_clipped_by_value(of_two: World) -> None:
    """Each rank clips what it holds, and needs no other rank for it."""
    sharded, _ = cut(of_two, torch.optim.SGD, {"lr": 0.1})
    parameter = sharded.module[0].weight
    parameter.grad = torch.randn_like(parameter)
    before = parameter.grad.to_local().clone()
    sharded.clip_values(0.5)
    assert before.abs().max() > 0.5
    assert torch.equal(parameter.grad.to_local(), before.clamp(-0.5, 0.5))


def test_parts_are_not_handed_to_once(of_two: World) -> None:
    """`job.once(torch.save, model.state_dict(), path)` would write one rank's parts, from all ranks to one file."""
    sharded, _ = cut(of_two, torch.optim.SGD, {"lr": 0.1})
    session: Any = None
    with refused(r"job.once\(save\) was given parts of a sharded model.*job.save\(path\)"):
        on_rank_0(session, torch.save, ({"epoch": 1, "model": sharded.module.state_dict()}, "path"), {})


def test_a_rehearsed_world_finds_everything_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A joiner's rehearsal leaves its model and torch as they were, and in the world that it was for no layout of a
    parameter is worked out any more; in one of another shape they are."""
    model = nn.Sequential(nn.Linear(11, 13), nn.Linear(13, 9))
    sharded = Sharded(model, [torch.optim.SGD(model.parameters(), lr=0.1)], {}, None, True)
    before = [parameter.clone() for parameter in model.parameters()]
    sharded.rehearse(1, 2)
    assert not dist.is_initialized()
    assert all(torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True))
    worked_out = []
    propagator = DTensor._op_dispatcher.sharding_propagator
    work_out = propagator.propagate_op_sharding_non_cached

    def counted(schema: Any) -> Any:
        worked_out.append(schema)
        return work_out(schema)

    monkeypatch.setattr(propagator, "propagate_op_sharding_non_cached", counted)
    found = []
    for size in (2, 3):
        dist.init_process_group("fake", store=dist.HashStore(), rank=1, world_size=size)
        sharded.connect(World(size, 1, size, grouped=True))
        found.append(len(worked_out))
        sharded.disconnect()
        dist.destroy_process_group()
    assert found[0] == 0 < found[1]


def test_a_rehearsal_that_fails_is_told_and_forgotten(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is raised, and no group stays."""
    model = nn.Linear(2, 2)
    Sharded(model, [torch.optim.SGD(model.parameters(), lr=0.1)], {}, None, True).rehearse(0, 0)
    assert "no rehearsal of a world of 0: " in capfd.readouterr().err
    assert not dist.is_initialized()


def test_a_left_world_leaves_no_threads_and_no_connections() -> None:
    """Four worlds one after another, with real groups: each leaves as many threads and files open as the first."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    sharded, open_ = Sharded(model, [optimizer], {}, None, True), []
    for generation in range(4):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        sharded.connect(World(generation, 0, 1, grouped=True))
        for _ in range(2):
            sharded(torch.zeros(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        sharded.disconnect()
        worlds.leave()
        gc.collect()  # hooks and modules hold each other
        open_.append([sum(1 for _ in Path("/proc/self", what).iterdir()) for what in ("task", "fd")])
    assert open_[1:] == open_[:-1], open_
