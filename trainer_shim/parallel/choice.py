"""Which strategy is meant by what join() and wrap() were given."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from slurm_elastic.protocol.errors import TrainingError

from .ddp import Replicated
from .deterministic import Deterministic
from .strategy import Strategy


def strategy_of(
    name: str, module: nn.Module, optimizers: list[Any], options: dict[str, Any], unit: int | None, shards: int
) -> Strategy:
    """The strategy of that name. unit: ranks of a replica, shards: those of a deterministic step, both from join().

    Raises TrainingError for an unknown one, and for what does not go together.
    """
    if name not in ("ddp", "fsdp"):
        raise TrainingError(f"job.wrap(strategy={name!r}) is not known; accepted: 'ddp', 'fsdp'")
    if shards:
        if name != "ddp" or unit is not None:
            raise TrainingError("join(deterministic=True) accepts whole replicas: strategy='ddp', without a unit")
        return Deterministic(module, options, shards)
    if name == "ddp" and unit is None and "parallelize" not in options:
        return Replicated(module, options)
    from ..world.mesh import CUTS_ON_CPUS
    from .fsdp import Sharded

    on_cpu = all(parameter.device.type == "cpu" for parameter in module.parameters())
    if name == "fsdp" and on_cpu and not CUTS_ON_CPUS:
        raise TrainingError(
            f"job.wrap(strategy='fsdp') of a model on the CPU needs a newer torch than {torch.__version__}, whose "
            "fully_shard computes on GPUs only; accepted here: strategy='ddp', or a model on a GPU"
        )

    return Sharded(module, optimizers, options, unit, replicas_shard=name == "fsdp")
