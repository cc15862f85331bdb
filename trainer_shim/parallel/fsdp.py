"""A module whose parameters are cut up over ranks, resized in place: fully_shard (FSDP2), tensor parallelism, or both.

At a resize the module is taken back to its whole form, without memory, sharded again over the new ranks, and every rank
gets the parts that it is to hold (state_transfer.py): no rank has the whole model but one that is alone, or has made it
so. Limits: a rank's old parts stay in host memory until the new world's first step; submodules become new objects (the
root stays the same object).
"""

import contextlib
import copy
import inspect
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import Micro
from ..world.agreement import attempt
from ..world.layout import REPLICAS, WHOLE, Layout
from ..world.mesh import (
    CUTS_ON_CPUS,
    CUTS_TWICE,
    DeviceMesh,
    DTensor,
    average_on_cpus,
    check_sharded_over,
    clip,
    fully_shard,
    local_of,
    mesh_of,
    release,
    settle_gradients,
)
from ..world.process_group import World
from ..world.rehearsal import quiet_world, rehearse
from . import local_optimizer_step
from .initial_values import check_init, draw, names_on_meta
from .planned_sharding import plan_of
from .reduction.mean import Mean
from .strategy import Strategy, on_meta, zeros_of


class Sharded(Strategy):
    """The strategy "fsdp", and "ddp" where a replica spans several ranks."""

    sharded = True

    def __init__(
        self,
        module: nn.Module,
        optimizers: list[Any],
        options: dict[str, Any],
        replicas_shard: bool,
        layout: Layout = WHOLE,
        device: torch.device | None = None,
        reduction: Mean | None = None,
    ) -> None:
        """device: where a model on the meta device gets its memory."""
        options = dict(options)
        own = check_shard(options.pop("shard", None)) if replicas_shard else None
        self._shard = (own or shard_blocks) if replicas_shard else None
        if replicas_shard and layout.unit > 1 and not CUTS_TWICE:
            raise TrainingError(
                f"job.wrap(strategy='fsdp') with join(unit={dict(layout.axes)}) needs torch 2.5, and this is "
                f"{torch.__version__}; accepted there: strategy='ddp', which keeps a replica in every unit"
            )
        self._parallelize = _parallelizer(options.pop("parallelize", None), layout)
        self._init = check_init(options.pop("init", None))
        if options:
            name, accepted = next(iter(options)), "shard, parallelize, init" if replicas_shard else "parallelize, init"
            raise TrainingError(f"job.wrap({name}=...) is not known here; accepted: {accepted}")
        self._mean = reduction or Mean()
        super().__init__(module, self._mean)
        self._plain_class = module.__class__
        self._device = next((p.device for p in module.parameters() if not p.is_meta), device or torch.device("cpu"))
        self._valueless = names_on_meta(module)
        """Parameters and buffers that the script has left on the meta device, until they have their first values."""
        self._blank = on_meta(module)
        self.hold(optimizers)
        self._layout = layout
        self._grouped = False

    def hold(self, optimizers: list[Any]) -> None:
        """Have these follow the module's parameters, which are whole now."""
        names = {id(parameter): name for name, parameter in self.module.named_parameters()}
        self._optimizers = optimizers
        self._names = [
            [[names.get(id(p), "") for p in group["params"]] for group in o.param_groups] for o in optimizers
        ]
        """Of what the optimizers hold, by optimizer and group."""

    # -- worlds ----------------------------------------------------------------------------------------------------

    def connect(self, world: World) -> None:
        if self._world is None and self._shard is shard_blocks:
            self._shard = plan_of(self.module) or shard_blocks
        self._world, self._grouped = world, world.grouped
        self.mesh = mesh_of(world, self._device)
        if self.mesh is not None and world.unit > 1:
            self._parallelize(self.module, self.mesh[tuple(name for name, _ in self._layout.axes)])
        if self.mesh is not None and self._shard is not None:
            replicas = self.mesh[REPLICAS] if self.mesh.ndim > 1 else self.mesh
            self._shard(self.module, replicas)
            check_sharded_over(self.module, replicas)
            if self._device.type == "cpu":
                average_on_cpus(self.module)
        self._check_names()
        _give_memory(self.module, self._device)  # only now: what a rank holds no part of gets none
        self._swap()

    def _check_names(self) -> None:
        """By their names parameters are known from one world to the next."""
        before = {name for name, _ in self._blank.named_parameters()}
        tied = {name for name, _ in self._blank.named_parameters(remove_duplicate=False)} - before
        for name, _ in self.module.named_parameters():
            if name in tied:
                raise TrainingError(
                    f"the parameter {name} is another module's too, and sharded apart from it they would be two; "
                    "accepted: shard=function(model, mesh) with one fully_shard() for both, e.g. of the whole model"
                )
            if name not in before:
                raise TrainingError(
                    f"the model's shard=function has made a parameter {name}, which is not in the model that it was "
                    "given; accepted: fully_shard(...) there, and other wrappers (activation checkpointing, "
                    "torch.compile) before"
                )

    def initialize(self, seed: int, parameters: bool) -> None:
        if self._valueless:
            buffers = {name for name, _ in self._blank.named_buffers()}
            names = self._valueless if parameters else self._valueless & buffers
            draw(self._blank, self.module, names, self._device, seed, self._init)
            self._valueless = set()

    def rehearse(self, rank: int, size: int) -> None:
        if self._shard is shard_blocks and not self._layout.axes:
            rehearse(rank, size, self._device, self._blank.parameters())

    def try_two(self, step: Callable[[Any], None]) -> None:
        """On one rank alone, before training: raise TrainingError for what ends a world of two. step: one optimizer."""
        if self._layout.axes or (self._device.type == "cpu" and not CUTS_ON_CPUS):
            return
        with quiet_world(0, 2) as world:
            mesh = mesh_of(world, self._device)
            if mesh is None:
                raise AssertionError("a world of two has a mesh")
            if self._shard is not None and self._shard is not shard_blocks:
                blank = copy.deepcopy(self._blank)
                try:
                    self._shard(blank, mesh)
                except Exception as error:  # whatever it is
                    what = f"{type(error).__name__}: {error}".splitlines()[0]
                    raise TrainingError(f"shard=function(model, mesh) does not shard over two ranks ({what})") from None
                release(mesh, blank)
            for optimizer in self._optimizers:
                _try_step(optimizer, mesh, self._device, step)

    def disconnect(self) -> None:
        """Back to a whole module, whose parameters have no memory: the next world gives them some, and fills it from
        the parts held. Buffers stay."""
        mesh, self.mesh = self.mesh, None
        if mesh is not None:
            release(mesh, self.module)
        if not self._grouped:
            return
        buffers = dict(self.module.named_buffers())
        fresh = copy.deepcopy(self._blank)
        for name, parameter in self.module.named_parameters():
            fresh.get_parameter(name).requires_grad_(parameter.requires_grad)
        modes = {name: part.training for name, part in self.module.named_modules()}
        for name, part in fresh.named_modules():
            part.training = modes.get(name, part.training)
        _forget(self.module)
        self.module.__class__ = self._plain_class
        self.module.__dict__ = fresh.__dict__
        for name, buffer in buffers.items():
            owner, _, last = name.rpartition(".")
            self.module.get_submodule(owner)._buffers[last] = buffer
        self._swap()
        for optimizer in self._optimizers:
            optimizer.state.clear()  # parts of the old world; what they are to be comes back
        self._grouped = False

    def _swap(self) -> None:
        """Have the optimizers hold the parameters that the module holds now, by name."""
        now = dict(self.module.named_parameters())
        for optimizer, groups in zip(self._optimizers, self._names, strict=True):
            for group, names in zip(optimizer.param_groups, groups, strict=True):
                before = group["params"]
                group["params"] = [now.get(name, old) for name, old in zip(names, before, strict=True)]
                for old, new in zip(before, group["params"], strict=True):
                    if old is not new and old in optimizer.state:
                        optimizer.state[new] = optimizer.state.pop(old)

    # -- a step ----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.void:
            return self._stand_in(*args, **kwargs)
        return attempt(lambda: self.module(*args, **kwargs), self.on_error, lambda: self._stand_in(*args, **kwargs))

    def _stand_in(self, *args: Any, **kwargs: Any) -> Any:
        """Zeros for the rest of a void step, in which ranks cannot compute together, and whose GPU may be full: of the
        shapes that the model would return, which are found without memory. Where they depend on values a whole model of
        zeros computes them."""

        with contextlib.suppress(Exception):  # whatever it computes with what is not there
            return zeros_of(copy.deepcopy(self._blank), self._device, args, kwargs)
        model = copy.deepcopy(self._blank).to_empty(device=self._device)
        with torch.no_grad():
            for tensor in [*model.parameters(), *model.buffers()]:
                tensor.zero_()
        return model(*args, **kwargs)

    def expect(self, micro: Micro) -> None:
        self.void = False
        if self._grouped and self._shard is not None:
            self.module.set_requires_gradient_sync(micro.last)  # type: ignore[operator]

    def _micro_done(self, last: bool) -> None:
        """Combine the replicas' gradients, where fully_shard does not see to it."""
        if not last or self._shard is not None or self._world is None or self.mesh is None:
            return
        grads, replicas = settle_gradients(self.module.parameters()), self._world.replicas
        if replicas > 1:
            self._mean.replace([local_of(grad) for grad in grads], 1 / replicas, self.mesh.get_group(REPLICAS))

    def clip(self, limit: float) -> None:
        clip(self.module.parameters(), limit)

    def clip_values(self, limit: float) -> None:
        for grad in settle_gradients(self.module.parameters()):
            local_of(grad).clamp_(-limit, limit)

    def step(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        if scaler is None:
            local_optimizer_step.step(optimizer)
        else:
            super().step(optimizer, scaler)


def shard_blocks(model: nn.Module, mesh: DeviceMesh) -> None:
    """fully_shard every module that stands in a ModuleList or Sequential and has parameters, then the model itself."""
    containers = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    done: set[int] = set()
    for block in [block for container in reversed(containers) for block in container.children()]:
        blocked = isinstance(block, (nn.ModuleList, nn.Sequential))
        if id(block) not in done and not blocked and any(True for _ in block.parameters()):
            done.add(id(block))
            fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)


def check_shard(given: Any) -> Callable[[nn.Module, DeviceMesh], Any] | None:
    """The script's own function that shards a model. Raises TrainingError where it takes no model and mesh."""
    if given is None:
        return None
    try:
        inspect.signature(given).bind(None, None)
    except (TypeError, ValueError):
        raise TrainingError(
            f"shard={getattr(given, '__name__', given)} is not accepted; accepted: function(model, mesh), "
            "which calls fully_shard(..., mesh=mesh)"
        ) from None
    return given  # type: ignore[no-any-return]


def _parallelizer(given: Any, layout: Layout) -> Callable[[nn.Module, DeviceMesh], Any]:
    """The function that cuts a model up over the ranks of one replica."""
    if (given is None) != (not layout.axes):
        raise TrainingError(
            "job.wrap(parallelize=...) and join(unit={'tp': N}) belong together; "
            + ("give wrap() the plan of parallelize_module" if layout.axes else "give join() the unit")
        )
    if isinstance(given, dict) and len(layout.axes) > 1:
        raise TrainingError(
            f"job.wrap(parallelize=...) was given a plan, and join(unit={dict(layout.axes)}) has several axes; "
            "accepted there: function(model, mesh)"
        )
    if isinstance(given, dict):
        from torch.distributed.tensor.parallel import parallelize_module

        return lambda model, mesh: parallelize_module(model, mesh, given)
    if given is not None and not callable(given):
        raise TrainingError(
            f"job.wrap(parallelize={given!r}) is not accepted; accepted: a plan of parallelize_module (a dict), "
            "or function(model, mesh)"
        )
    return given or (lambda model, mesh: None)


def _give_memory(module: nn.Module, device: torch.device) -> None:
    """As to_empty() does, to what is on the meta device: whole tensors stay tied, and parts stay the same objects."""
    made: dict[int, Any] = {}

    def with_memory(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device=device) if tensor.is_meta else tensor

    for part in module.modules():
        for key, parameter in part._parameters.items():
            if parameter is not None and parameter.is_meta and not isinstance(parameter, DTensor):
                if id(parameter) not in made:  # held there, or its id might be given to another one
                    made[id(parameter)] = parameter, nn.Parameter(with_memory(parameter), parameter.requires_grad)
                part._parameters[key] = made[id(parameter)][1]
    if any(tensor.is_meta for tensor in [*module.parameters(), *module.buffers()]):
        module._apply(with_memory)


def _try_step(optimizer: torch.optim.Optimizer, mesh: DeviceMesh, device: torch.device, step: Any) -> None:
    """A step of another one like it, for small parameters of the same kinds that are cut up."""
    twin: Any = object.__new__(type(optimizer))
    twin.__dict__.update({name: value for name, value in vars(optimizer).items() if name != "step"})  # a scheduler's
    for name in ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
        setattr(twin, name, OrderedDict())
    twin.state, twin.param_groups, modules = defaultdict(dict), [], nn.ModuleList()
    for group in optimizer.param_groups:
        kinds = {(_small(entry.shape), entry.dtype) for entry in group["params"]}
        small = [nn.Parameter(torch.ones(shape, dtype=kind, device=device)) for shape, kind in sorted(kinds, key=str)]
        module = nn.ParameterList(small)
        fully_shard(module, mesh=mesh)
        for parameter in module.parameters():
            parameter.grad = torch.ones_like(parameter)
        modules.append(module)
        twin.param_groups.append({**group, "params": list(module.parameters())})
    try:
        step(twin)
    except Exception as error:  # whatever it is
        raise TrainingError(
            f"a {type(optimizer).__name__} cannot step parameters that are cut up over ranks ({type(error).__name__}: "
            f"{str(error).splitlines()[0][:160]}); accepted: one that can, e.g. AdamW, or a model that is not sharded"
        ) from None
    finally:
        release(mesh, modules)


def _small(shape: torch.Size) -> tuple[int, ...]:
    """A shape of few elements that is as tall, or wide, and as even; what has one row has one."""
    order = sorted(set(shape))
    return tuple(size if size <= 1 else 4 * (order.index(size) + 1) + size % 2 for size in shape)


def _forget(module: nn.Module) -> None:
    """torch keeps the sharding state of a module in a table by module, and refuses to shard one twice."""
    from torch.distributed import _composable_state

    table = getattr(_composable_state, "_module_state_mapping", None)
    if table is not None and module in table:
        del table[module]
