"""A module sharded over the ranks with fully_shard (FSDP2), resized in place.

At a resize the shards are gathered into whole tensors in the new rank 0's host memory, the module is taken back to its
unsharded form, sharded anew over the new ranks, and filled from there. Limits: the whole state has to fit into that
memory; submodules become new objects (the root stays the same object); one mesh dimension.
"""

# mypy: disallow-untyped-calls=False
# torch types a part of its functions only.

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

try:
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, Shard
except ImportError:  # where torch 2.4 and 2.5 have them
    from torch.distributed._composable.fsdp import fully_shard  # type: ignore[attr-defined]
    from torch.distributed._tensor import DTensor, Shard  # type: ignore[attr-defined]

from .errors import TrainingError
from .words import Reader, Said, Sums
from .world import World


class Sharded:
    """The strategy "fsdp"; see parallel.Strategy."""

    sharded = True

    def __init__(self, module: nn.Module, optimizers: list[Any], options: dict[str, Any]) -> None:
        options = dict(options)
        self._shard: Callable[[nn.Module], Any] = options.pop("shard", shard_blocks)
        if options:
            raise TrainingError(f"job.wrap(strategy='fsdp', {next(iter(options))}=...) is not known; accepted: shard")
        self.module = module
        self.measures = False
        self.on_error: Callable[[RuntimeError], None] = lambda error: None
        self._optimizers = optimizers
        self._plain_class = module.__class__
        self._device = next((p.device for p in module.parameters()), torch.device("cpu"))
        with _on_meta(module) as blank:
            self._blank = blank
        self._ranks = 1
        self._grouped = False

    def connect(self, world: World) -> None:
        self._ranks, self._grouped = world.size, world.grouped
        if not world.grouped:
            return
        before = dict(self.module.named_parameters())
        self._shard(self.module)
        self._swap(before)

    def disconnect(self) -> None:
        """Back to an unsharded module, with its values undefined: they are filled from the gathered state."""
        if not self._grouped:
            return
        before = dict(self.module.named_parameters())
        fresh = copy.deepcopy(self._blank).to_empty(device=self._device)
        _forget(self.module)
        self.module.__class__ = self._plain_class
        self.module.__dict__ = fresh.__dict__
        self._swap(before)
        for optimizer in self._optimizers:
            optimizer.state.clear()  # shards of the old world; the gathered state comes back
        self._grouped = False

    def _swap(self, before: dict[str, nn.Parameter]) -> None:
        """Have the optimizers hold the parameters that the module holds now, by name."""
        now = dict(self.module.named_parameters())
        place = {id(parameter): now[name] for name, parameter in before.items()}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["params"] = [place.get(id(parameter), parameter) for parameter in group["params"]]
            for old in [old for old in optimizer.state if id(old) in place]:
                optimizer.state[place[id(old)]] = optimizer.state.pop(old)

    @contextmanager
    def bypassed(self) -> Iterator[None]:
        yield  # a shard alone computes nothing: whoever calls the model does so on every rank

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return self.module(*args, **kwargs)
        except RuntimeError as error:
            self.on_error(error)
            raise

    def expect(self, last: bool, measured: bool) -> None:
        if self._grouped:
            self.module.set_requires_gradient_sync(last)  # type: ignore[operator]

    def backward(self, loss: torch.Tensor, said: Said | None) -> Reader | None:
        # fully_shard reduces inside its own streams, where a word of ours cannot ride along: one small all-reduce of
        # host memory runs beside the backward pass instead.
        words, pending = torch.zeros(0), None
        try:
            if said is not None and self._grouped:
                words = torch.tensor(said.words(), dtype=torch.float64)
                pending = dist.all_reduce(words, async_op=True)
            loss.backward()
            if pending is not None:
                pending.wait()
        except RuntimeError as error:
            self.on_error(error)
            raise
        if said is None:
            return None
        mean = said.words() if pending is None else (words / self._ranks).tolist()
        sums = Sums.of_mean(1 if pending is None else self._ranks, mean)
        return lambda: sums

    def squares(self) -> tuple[float, float] | None:
        return None

    def full(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def adapt(self, part: Any, saved: Any) -> Any:
        """Cut whole tensors into this rank's shards, like the parameters they belong to."""
        if part is self.module:
            like = self.module.state_dict()
            return {name: _like(value, like.get(name)) for name, value in saved.items()}
        if isinstance(part, torch.optim.Optimizer):
            parameters = [parameter for group in part.param_groups for parameter in group["params"]]
            # Copies: optimizers take over the tensors that they are given, and these may still have to be written.
            state = {
                number: {name: _like(value, parameters[number]) for name, value in entries.items()}
                for number, entries in saved["state"].items()
            }
            return {**saved, "state": state}
        return copy.deepcopy(saved)


def shard_blocks(model: nn.Module) -> None:
    """fully_shard every module that stands in a ModuleList or Sequential and has parameters, then the model itself."""
    containers = [module for module in model.modules() if isinstance(module, (nn.ModuleList, nn.Sequential))]
    done: set[int] = set()
    for block in [block for container in reversed(containers) for block in container.children()]:
        blocked = isinstance(block, (nn.ModuleList, nn.Sequential))
        if id(block) not in done and not blocked and any(True for _ in block.parameters()):
            done.add(id(block))
            fully_shard(block)
    fully_shard(model)


def _like(value: Any, parameter: Any) -> Any:
    """A copy of this rank's shard of a whole tensor, where the parameter is sharded and has its shape."""
    if not isinstance(value, torch.Tensor) or not isinstance(parameter, DTensor) or value.shape != parameter.shape:
        return value.clone() if isinstance(value, torch.Tensor) else value
    mesh, placements = parameter.device_mesh, parameter.placements
    local = value.to(parameter.to_local().device)
    for dimension, placement in enumerate(placements):
        if isinstance(placement, Shard):
            parts = local.chunk(mesh.size(dimension), placement.dim)
            rank = mesh.get_local_rank(dimension)
            empty = local.narrow(placement.dim, 0, 0)
            local = parts[rank] if rank < len(parts) else empty
    # Each rank cuts for itself: no communication, so ranks may do this at different times.
    own = local.clone(memory_format=torch.contiguous_format)
    return DTensor.from_local(own, mesh, placements, run_check=False, shape=value.shape, stride=value.stride())


@contextmanager
def _on_meta(module: nn.Module) -> Iterator[nn.Module]:
    """A copy of the module without storage, to build unsharded ones from."""
    memo: dict[int, Any] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        blank = torch.empty_like(tensor, device="meta")
        wrapped = nn.Parameter(blank, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else blank
        memo[id(tensor)] = wrapped
    yield copy.deepcopy(module, memo)


def _forget(module: nn.Module) -> None:
    """torch keeps the sharding state of a module in a table by module, and refuses to shard one twice."""
    from torch.distributed import _composable_state

    table = getattr(_composable_state, "_module_state_mapping", None)
    if table is not None and module in table:
        del table[module]
