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
from made_worlds import made_world
from torch import nn

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.loops.once import on_rank_0
from slurm_elastic.trainer_shim.parallel import local_optimizer_step, own_shards
from slurm_elastic.trainer_shim.parallel.fsdp import Sharded
from slurm_elastic.trainer_shim.parallel.own_backward import OwnBackward
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
    with made_world(1, 2, "fake") as world:
        yield world


def cut(world: World, rule: type[torch.optim.Optimizer], options: dict[str, Any]) -> tuple[Sharded, Any]:
    """A model cut up in this world, one of whose parameters takes no part, with its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 7), nn.Linear(7, 3))
    model[0].bias.requires_grad_(False)
    optimizer = rule(model.parameters(), **options)
    sharded = Sharded(model, [optimizer], {}, True)
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


class Block(nn.Module):
    """A layer with a buffer that no state_dict has, and one with a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.norm = nn.Linear(5, 7), nn.BatchNorm1d(7)
        self.register_buffer("scale", torch.full((7,), 3.0), persistent=False)
        self.shift = nn.Parameter(torch.zeros(7))
        self.up = nn.Linear(7, 5)
        self.norm.bias = self.shift

    def reset_parameters(self) -> None:
        self.scale.fill_(3.0)
        nn.init.normal_(self.shift)


def on_meta(world: World, **options: Any) -> tuple[Sharded, torch.optim.Optimizer]:
    """A model made without memory, in this world, with its optimizer made before."""
    with torch.device("meta"):
        model = nn.Sequential(Block(), Block())
    optimizer = torch.optim.AdamW(model.parameters())
    sharded = Sharded(model, [optimizer], options, True)
    sharded.connect(world)
    return sharded, optimizer


def test_a_model_on_meta_gets_the_same_values_on_any_number_of_ranks(of_two: World) -> None:
    """Each rank draws its part of what a process alone draws: tied tensors once, buffers too, and the script's own
    generators are where they were; the optimizer holds the model's own parameters."""
    alone, _ = on_meta(World(0, 0, 1))
    state = torch.get_rng_state()
    alone.initialize(3, parameters=True)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(99)
    sharded, optimizer = on_meta(of_two)
    sharded.initialize(3, parameters=True)
    assert [id(entry) for entry in optimizer.param_groups[0]["params"]] == [id(e) for e in sharded.module.parameters()]
    parts = dict(sharded.module.named_parameters())
    for name, whole in alone.module.named_parameters():
        assert isinstance(parts[name], DTensor)
        assert torch.equal(parts[name].to_local(), whole.detach().chunk(2)[1]), name
        assert whole.std() > 0 or "norm" in name
    assert parts["0.norm.weight"].to_local().eq(1).all() and sharded.module[1].scale.eq(3).all()
    assert parts.keys() == dict(alone.module.named_parameters()).keys() and "0.norm.bias" not in parts


def test_a_joiner_draws_buffers_only(of_two: World) -> None:
    """Its parameters come from the others. Left, the model keeps buffers, modes and what is trained, and no memory."""
    sharded, _ = on_meta(of_two)
    for parameter in sharded.module.parameters():
        parameter.detach().to_local().fill_(7.0)
    sharded.initialize(3, parameters=False)
    assert all(parameter.to_local().eq(7).all() for parameter in sharded.module.parameters())
    assert sharded.module[0].scale.eq(3).all() and sharded.module[0].norm.running_var.eq(1).all()
    sharded.module[0].norm.eval()
    sharded.module[1].shift.requires_grad_(False)
    sharded.disconnect()
    assert all(parameter.is_meta for parameter in sharded.module.parameters())
    assert sharded.module[0].scale.eq(3).all() and not sharded.module[0].norm.training and sharded.module[1].training
    assert [name for name, entry in sharded.module.named_parameters() if not entry.requires_grad] == ["1.shift"]


def test_what_nothing_sets_is_named(of_two: World) -> None:
    """Neither reset_parameters() nor init=function; a tensor that is neither parameter nor buffer; a wrapper put around
    a layer in shard=."""
    with torch.device("meta"):
        model: Any = nn.Sequential(nn.Linear(3, 3), nn.ParameterList([nn.Parameter(torch.zeros(3))]))
    sharded = Sharded(model, [], {}, True)
    sharded.connect(of_two)
    with refused(r"nothing sets 1\.0, which was made on the meta device: ParameterList has no reset_parameters"):
        sharded.initialize(0, parameters=True)
    sharded.disconnect()
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(3, 3), nn.ParameterList([nn.Parameter(torch.zeros(3))]))
    sharded = Sharded(model, [], {"init": lambda part: [value.fill_(2.0) for value in part._parameters.values()]}, True)
    sharded.connect(of_two)
    sharded.initialize(0, parameters=True)
    assert all(parameter.to_local().eq(2).all() for parameter in sharded.module.parameters())
    sharded.disconnect()
    model.cache = torch.zeros(2, device="meta")
    with refused("cache is on the meta device and neither a parameter nor a buffer"):
        Sharded(model, [], {}, True)
    with refused("init=4 is not accepted; accepted: function"):
        Sharded(nn.Linear(2, 2), [], {"init": 4}, True)
    wraps = Sharded(
        nn.Sequential(nn.Linear(2, 2)), [], {"shard": lambda whole, _: whole.insert(0, nn.Linear(1, 1))}, True
    )
    with refused("shard=function has made a parameter 1.weight"):
        wraps.connect(of_two)


def test_what_was_planned_is_done_in_each_world(of_two: World) -> None:
    """fully_shard() of layers and of the model with options, and what is prefetched, as a script says it before there
    is a world: in each world as torch would have done it. Meanwhile, and alone, the model is whole."""
    from torch.distributed.fsdp import MixedPrecisionPolicy

    with torch.device("meta"):
        model: Any = nn.Sequential(*(nn.Linear(4, 4) for _ in range(3)))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model:
        ignored = {model[0].bias}
        sharded_layer = elastic.fully_shard(
            layer, mp_policy=policy, reshard_after_forward=False, ignored_params=ignored
        )
        assert sharded_layer is layer
    elastic.fully_shard(model, ignored_params=ignored)
    model[0].set_modules_to_forward_prefetch([model[1], model[2]])
    model[2].set_modules_to_backward_prefetch([model[1]])
    assert model.to_empty(device="cpu") is model and model[0].weight.is_meta
    with refused("fully_shard.. was called twice for one Linear"):
        elastic.fully_shard(model[0])
    with refused("fully_shard.mesh=.*accepted: none"):
        elastic.fully_shard(nn.Linear(1, 1), mesh=1)
    sharded = Sharded(model, [], {}, True)
    sharded.connect(World(0, 0, 1))
    model.unshard()
    assert not any(isinstance(entry, DTensor) for entry in model.parameters())
    sharded.disconnect()
    for _ in range(2):
        sharded.connect(of_two)
        states = [part._get_fsdp_state() for part in model]
        assert states[0]._states_to_forward_prefetch == states[1:]
        assert states[2]._states_to_backward_prefetch == [states[1]]
        (group, *_) = getattr(states[1], "_fsdp_param_groups", None) or [states[1]._fsdp_param_group]
        assert group.mp_policy == policy and group.post_forward_mesh_info is None
        assert [n for n, entry in model.named_parameters() if not isinstance(entry, DTensor)] == ["0.bias"]
        sharded.disconnect()


def test_gradients_of_chained_models_count_once(of_two: World) -> None:
    """What goes back into a model counts by the rank's share, times the ranks, and what goes on to its inputs as
    before; what was computed for company counts nothing, whatever it is. A result without tensors is refused."""
    weighted = own_shards._weighted
    x = torch.ones(2, requires_grad=True)
    (inside, plain), found = weighted((x * 1.0, 7), 1 / 1.5)
    (outside,), _ = weighted([inside * 1.0], 1.5)
    outside.sum().backward()
    assert (found, plain) == (1, 7) and torch.equal(x.grad, torch.ones(2))
    y = torch.ones(2, requires_grad=True)
    weighted(y, 0.0)[0].backward(torch.full((2,), torch.nan))
    assert torch.equal(y.grad, torch.zeros(2))
    owner = OwnBackward()

    class Odd(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return {torch.nn.functional.linear(x, self.weight)}

    net = owner.add(own_shards.OwnShards(Odd(2, 2), {}, torch.device("cpu"), owner))
    owner.connect(of_two)
    owner.take(0.5)
    with refused("returned a set in which no tensor with a gradient was found"):
        net(torch.ones(1, 2))
    owner.disconnect()


def test_tied_parameters_are_not_sharded_apart(of_two: World) -> None:
    """fully_shard of each of two blocks would make two of what is one."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    with refused("the parameter 1.weight is another module's too"):
        Sharded(model, [], {}, True).connect(of_two)


def test_a_rehearsed_world_finds_everything_worked_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A joiner's rehearsal leaves its model and torch as they were, and in the world that it was for no layout of a
    parameter is worked out any more; in one of another shape they are."""
    model = nn.Sequential(nn.Linear(11, 13), nn.Linear(13, 9))
    sharded = Sharded(model, [torch.optim.SGD(model.parameters(), lr=0.1)], {}, True)
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
        with made_world(1, size, "fake") as world:
            sharded.connect(world)
            found.append(len(worked_out))
            sharded.disconnect()
    assert found[0] == 0 < found[1]


def test_a_rehearsal_that_fails_is_told_and_forgotten(capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing is raised, and no group stays."""
    model = nn.Linear(2, 2)
    Sharded(model, [torch.optim.SGD(model.parameters(), lr=0.1)], {}, True).rehearse(0, 0)
    assert "no rehearsal of a world of 0: " in capfd.readouterr().err
    assert not dist.is_initialized()


def test_a_left_world_leaves_no_threads_and_no_connections() -> None:
    """Four worlds one after another, with real groups: each leaves as many threads and files open as the first."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    optimizer = torch.optim.AdamW(model.parameters())
    sharded, open_ = Sharded(model, [optimizer], {}, True), []
    for generation in range(4):
        with made_world(generation=generation) as world:
            sharded.connect(world)
            for _ in range(2):
                sharded(torch.zeros(2, 4)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            sharded.disconnect()
            del world
        gc.collect()  # hooks and modules hold each other
        open_.append([sum(1 for _ in Path("/proc/self", what).iterdir()) for what in ("task", "fd")])
    assert open_[1:] == open_[:-1], open_


class Counted(nn.Module):
    """Its result has as many rows as its parameters say."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x)[: 1 + int(self.inner.bias.sum())]


@pytest.mark.parametrize(
    ("model", "whole", "shape"),
    [
        (nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)), False, (2, 3)),
        (nn.LSTM(4, 3), False, (2, 3)),  # its result is a tuple
        (nn.TransformerEncoderLayer(4, 2, 8), False, (2, 4)),
        (Counted(), True, (1, 3)),
    ],
    ids=["sequence", "lstm", "attention", "by values"],
)
def test_a_void_step_needs_no_whole_model(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, whole: bool, shape: tuple[int, ...]
) -> None:
    """Zeros that a loss can be computed and differentiated of, made without memory for a parameter, as the GPU may be
    full; only where a result's shape depends on values a whole model computes it."""
    made: list[str] = []
    fill = nn.Module.to_empty
    monkeypatch.setattr(
        nn.Module, "to_empty", lambda self, **kw: (made.append(type(self).__name__), fill(self, **kw))[1]
    )
    part = Sharded(model, [], {}, replicas_shard=True)
    part.void = True
    found = part(torch.ones(2, 4))
    result = found[0] if isinstance(found, tuple) else found
    assert (tuple(result.shape), result.device.type, float(result.detach().abs().sum())) == (shape, "cpu", 0.0)
    result.sum().backward()
    assert bool(made) == whole
