"""Which strategy is meant by what join() and wrap() were given."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from slurm_elastic.protocol.errors import TrainingError

from .ddp import Replicated
from .deterministic import Deterministic
from .strategy import Strategy


def check_has_values(call: str, module: nn.Module) -> None:
    """Raise TrainingError for a model on the meta device, where every rank needs the whole of it."""
    for name, parameter in module.named_parameters():
        if parameter.is_meta:
            raise TrainingError(
                f"{call} was given a model whose parameter {name} is on the meta device; accepted: strategy='fsdp', "
                "or a model whose parameters have their values, e.g. by model.to_empty(device=job.device) and its own "
                "initialization"
            )


def check_cuts(call: str, instead: str, module: nn.Module, device: torch.device) -> None:
    """Raise TrainingError where this torch's fully_shard cannot compute with the model."""
    from ..world.mesh import CUTS_ON_CPUS

    kinds = {(device if parameter.is_meta else parameter.device).type for parameter in module.parameters()}
    if kinds <= {"cpu"} and not CUTS_ON_CPUS:
        raise TrainingError(
            f"{call} of a model on the CPU needs torch 2.8, and this is {torch.__version__}, whose fully_shard is "
            f"right on GPUs only; accepted here: {instead}, or a model on a GPU"
        )


def strategy_of(
    name: str,
    module: nn.Module,
    optimizers: list[Any],
    options: dict[str, Any],
    unit: int | None,
    shards: int,
    device: torch.device,
) -> Strategy:
    """The strategy of that name. unit: ranks of a replica, shards: those of a deterministic step, both from join().
    device: where this worker computes.

    Raises TrainingError for an unknown one, and for what does not go together.
    """
    if name not in ("ddp", "fsdp"):
        raise TrainingError(f"job.wrap(strategy={name!r}) is not known; accepted: 'ddp', 'fsdp'")
    if shards:
        if name != "ddp" or unit is not None:
            raise TrainingError("join(deterministic=True) accepts whole replicas: strategy='ddp', without a unit")
        return Deterministic(module, options, shards)
    if name == "ddp" and unit is None and "parallelize" not in options:
        check_has_values("job.wrap(strategy='ddp')", module)
        return Replicated(module, options)
    from .fsdp import Sharded

    if name == "fsdp":
        check_cuts("job.wrap(strategy='fsdp')", "strategy='ddp'", module, device)
    return Sharded(module, optimizers, options, unit, replicas_shard=name == "fsdp", device=device)
