"""fully_shard() before there is a world: what a script asks for is remembered, and done in each world, over its mesh.

So the lines of a script in which it shards its model, and sets what is prefetched, stay as they are. Until then the
model is whole: to_empty() leaves one on the meta device there, as it gets its memory and values part by part. In a
world of one rank it stays whole; unshard() and its like do nothing.
"""

import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils._pytree import tree_map

from slurm_elastic.protocol.errors import TrainingError

from ..world.mesh import DeviceMesh
from ..world.mesh import fully_shard as fully_shard_now

PLAN = "_sharding_plan"
"""The attribute of a module: when it was planned, what it was told since, and fully_shard's options."""


class Planned:
    """Mixed into the class of a module that is to be sharded: remembers what torch's FSDPModule is told."""

    def to_empty(self, *, device: Any, recurse: bool = True) -> Any:
        """Nothing to a model on the meta device."""
        if any(parameter.is_meta for parameter in self.parameters()):  # type: ignore[attr-defined]
            return self
        return super().to_empty(device=device, recurse=recurse)  # type: ignore[misc]


def _remembered(name: str) -> Callable[..., None]:
    def call(self: Any, *args: Any, **kwargs: Any) -> None:
        vars(self)[PLAN][1].append((name, (args, kwargs)))

    return call


def _idle(self: Any, *_: Any, **__: Any) -> None:
    """A whole module has nothing to do there."""


for _name in (
    "set_modules_to_forward_prefetch", "set_modules_to_backward_prefetch", "set_reshard_after_forward",
    "set_reshard_after_backward", "set_unshard_in_backward",
):  # fmt: skip
    setattr(Planned, _name, _remembered(_name))
for _name in ("unshard", "reshard", "set_requires_gradient_sync", "set_is_last_backward", "set_requires_all_reduce"):
    setattr(Planned, _name, _idle)
_numbers = itertools.count()


def fully_shard(module: Any, **options: Any) -> Any:
    """As torch.distributed.fsdp.fully_shard, in each world that comes, for a model that goes to job.shard() or
    job.wrap(strategy="fsdp"). module: one, or a list of modules to be cut up together. options: torch's, but the mesh.

    Raises TrainingError for a mesh, and in a module that is planned already.
    """
    if options.get("mesh") is not None:
        raise TrainingError(
            "fully_shard(mesh=...) is not possible before there is a world; accepted: none, each world has its own, or "
            "shard=function(model, mesh)"
        )
    options.pop("mesh", None)
    parts = module if isinstance(module, (list, tuple)) else [module]
    number = next(_numbers)
    for part in parts:
        if isinstance(part, Planned):
            raise TrainingError(f"fully_shard() was called twice for one {type(part).__name__}; call it once")
        kind = type(part)
        part.__class__ = type(kind.__name__, (Planned, kind), {"__module__": kind.__module__})
        part.__dict__[PLAN] = (number, [], options)
    return module


def plan_of(model: nn.Module) -> Callable[[nn.Module, DeviceMesh], None] | None:
    """What has been planned for a model, as a function to shard it, or a copy of it, by; None: nothing."""
    names: dict[Any, str] = {part: name for name, part in model.named_modules()}
    names.update({parameter: name for name, parameter in model.named_parameters()})
    together: dict[int, tuple[list[str], dict[str, Any]]] = {}
    calls: list[tuple[str, str, Any]] = []
    for part, name in names.items():
        if PLAN in vars(part):
            number, told, options = vars(part)[PLAN]
            options = {key: list(value) if isinstance(value, set) else value for key, value in options.items()}
            together.setdefault(number, ([], _by_name(options, names)))[0].append(name)
            calls += [(name, method, _by_name(arguments, names)) for method, arguments in told]

    def shard(whole: nn.Module, mesh: DeviceMesh) -> None:
        for _, (parts, named) in sorted(together.items()):
            found = [whole.get_submodule(name) for name in parts]
            options = {
                key: set(value) if isinstance(value, list) else value for key, value in _in(named, whole).items()
            }
            shard_now: Any = fully_shard_now
            shard_now(found if len(found) > 1 else found[0], mesh=mesh, **options)
        for name, method, arguments in calls:
            args, kwargs = _in(arguments, whole)
            getattr(whole.get_submodule(name), method)(*args, **kwargs)

    return shard if together else None


@dataclasses.dataclass(frozen=True)
class _Named:
    """A module or parameter of a model."""

    name: str
    is_module: bool


def _by_name(tree: Any, names: dict[Any, str]) -> Any:
    def named(leaf: Any) -> Any:
        known = isinstance(leaf, (nn.Module, nn.Parameter)) and leaf in names
        return _Named(names[leaf], isinstance(leaf, nn.Module)) if known else leaf

    return tree_map(named, tree)


def _in(tree: Any, whole: nn.Module) -> Any:
    def found(leaf: Any) -> Any:
        if not isinstance(leaf, _Named):
            return leaf
        return whole.get_submodule(leaf.name) if leaf.is_module else whole.get_parameter(leaf.name)

    return tree_map(found, tree)
