"""An optimizer step that each rank takes by itself, with its own gradient, and what comes of it for all.

What the steps change in the parameters is combined by a reduction, and the optimizer's state becomes the mean over the
ranks, by samples: all hold the same again, and a rank may come or go. A gradient scaler skips the step on every
rank where it does on one. Limit: a communication that fails in here leaves a step half done, and the training goes back
to what was saved.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._pytree import tree_leaves

from .reduction.base import ByBucket
from .reduction.mean import Mean


@torch.no_grad()
def step(optimizer: torch.optim.Optimizer, scaler: Any, reduction: ByBucket, share: float, group: Any) -> None:
    """optimizer.step() for all ranks. scaler: a GradScaler that has scaled the loss, or None. share: of the step's
    samples, this rank's."""
    take = optimizer.step if scaler is None else functools.partial(scaler.step, optimizer)
    if scaler is not None and _overflows(scaler, optimizer, group):
        take()  # which is skipped
        return
    trained = [entry for part in optimizer.param_groups for entry in part["params"] if entry.grad is not None]
    before = [entry.detach().clone() for entry in trained]
    take()
    changes = [
        entry.detach() - old if share else torch.zeros_like(old) for entry, old in zip(trained, before, strict=True)
    ]
    reduction.replace(changes, share, group)
    for entry, old, change in zip(trained, before, changes, strict=True):
        entry.copy_(old.add_(change))
    kept = [sorted(optimizer.state.get(entry, {}).items(), key=lambda item: str(item[0])) for entry in trained]
    state = [leaf for leaf in tree_leaves(kept) if isinstance(leaf, torch.Tensor) and leaf.is_floating_point()]
    # Single numbers, as counters are, travel in float64.
    sent = [value.double() if value.dim() == 0 else value for value in state]
    Mean().replace(sent, share, group)
    for value, mean in zip(state, sent, strict=True):
        value.copy_(mean)


def _overflows(scaler: Any, optimizer: torch.optim.Optimizer, group: Any) -> bool:
    """Whether any rank's gradients do; from here on the scaler knows."""
    if not scaler.is_enabled():
        return False
    known = scaler._per_optimizer_states[id(optimizer)]
    if not known["found_inf_per_device"]:
        scaler.unscale_(optimizer)
    found = list(known["found_inf_per_device"].values())
    for flag in found:
        group.allreduce([flag], dist.ReduceOp.MAX).wait()
    return any(bool(flag) for flag in found)
