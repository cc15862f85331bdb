"""Models cut up over the ranks (fully_shard) whose forward and backward passes are the script's.

fully_shard takes the mean of the gradients over the ranks. So what goes back from a model's result into it counts by
this rank's share of the iteration, times the ranks, and what goes on from it to what it was given counts as before:
models may be chained, and a loss that is the mean over the rank's own part gives the gradient of the mean over all.
Every rank has to call the model equally often: one with fewer micro batches computes its last one again, for nothing.
Limit: a loss that uses parameters themselves, beside the model's result, counts as a mean over the ranks.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from slurm_elastic.protocol.errors import TrainingError

from ..world.agreement import attempt
from .fsdp import Sharded
from .own_backward import OwnBackward, OwnModel


class OwnShards(Sharded, OwnModel):
    """One model: what job.shard() has made of it."""

    def __init__(self, module: nn.Module, options: dict[str, Any], device: torch.device, owner: OwnBackward) -> None:
        super().__init__(module, [], options, True, device=device)
        self._owner = owner
        self._called = self._travels = False

    @property
    def _ranks(self) -> int:
        return self._world.size if self._world is not None else 1

    def disconnect(self) -> None:
        super().disconnect()
        for parameter in self.module.parameters():
            parameter.grad = None

    def new_share(self) -> None:
        self._called = self._travels = False

    def sync(self, travels: bool) -> None:
        self._travels = travels
        if self._ranks > 1:
            self.module.set_requires_gradient_sync(travels)  # type: ignore[operator]

    @property
    def complete(self) -> bool:
        return self._called and (self._travels or self._ranks == 1)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owner = self._owner
        if not torch.is_grad_enabled() or owner.bypass:
            return attempt(lambda: self.module(*args, **kwargs), owner.on_error, lambda: None)
        owner.expect_share()
        self._called = True
        if self.mesh is None:
            return self.module(*args, **kwargs)
        factor = owner.weight * self._ranks
        (args, kwargs), _ = _weighted((args, kwargs), 1 / factor if factor else 0.0)
        result = attempt(lambda: self.module(*args, **kwargs), owner.on_error, lambda: None)
        result, found = _weighted(result, factor, lambda: owner.on_backward(self.module))
        if not found and any(parameter.requires_grad for parameter in self.module.parameters()):
            raise TrainingError(
                f"a model of job.shard() returned a {type(result).__name__} in which no tensor with a gradient was "
                "found; accepted: tensors, in tuples, lists, dicts or what torch.utils._pytree knows"
            )
        return result


class _Weighted(torch.autograd.Function):
    """The same tensor, whose gradient counts by a factor."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor, factor: float, begins: Callable[[], None]) -> torch.Tensor:
        context.factor, context.begins = factor, begins
        return tensor.view_as(tensor)

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (gradient,) = gradients
        context.begins()
        # What was computed for company may be anything.
        return gradient * context.factor if context.factor else torch.zeros_like(gradient), None, None


def _weighted(tree: Any, factor: float, begins: Callable[[], None] = lambda: None) -> tuple[Any, int]:
    """With all tensors that have a gradient weighted; and how many those are. begins: called in their backward pass."""
    leaves, structure = tree_flatten(tree)
    weighted: Any = _Weighted.apply
    takes = [isinstance(leaf, torch.Tensor) and leaf.requires_grad for leaf in leaves]
    leaves = [weighted(leaf, factor, begins) if take else leaf for leaf, take in zip(leaves, takes, strict=True)]
    return tree_unflatten(leaves, structure), sum(takes)
