"""The same parameters, to the last bit, on any number of ranks: join(deterministic=...).

The global batch is cut into a fixed number of shards. A rank computes the gradient of each of its shards by itself,
with random numbers of its own, and gradients are added up in the order of one tree over all shards
(reduction/fixed_order.py).
Cost: micro batches are no larger than a shard, nothing overlaps with the backward pass, up to log2(shards) gradients
are held in memory, and where shards per rank are no power of two more of them travel. Limits: one kind of device and
one version of torch throughout; on CPUs one thread; kernels that torch knows as nondeterministic are refused.
"""

import os
from typing import Any

import torch
from torch import nn

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import Micro
from ..world.process_group import World
from .reduction.fixed_order import FixedOrder
from .strategy import Strategy


def prepare() -> None:
    """Have torch compute the same from the same; before anything is computed on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = False
    if not torch.cuda.is_available():
        torch.set_num_threads(1)  # how sums are cut up over threads depends on how many there are


class Deterministic(Strategy):
    """The strategy of join(deterministic=...)."""

    def __init__(self, module: nn.Module, options: dict[str, Any], reduction: FixedOrder) -> None:
        if options:
            raise TrainingError(f"job.wrap({next(iter(options))}=...) does not go with join(deterministic=True)")
        _check(module)
        super().__init__(module, reduction)
        self._order = reduction
        self._micro: Micro | None = None
        self._versions: dict[str, int] | None = None

    def connect(self, world: World) -> None:
        self._world = world

    def disconnect(self) -> None:
        self._world = self.mesh = None
        self._order.forget()

    def expect(self, micro: Micro) -> None:
        self._micro, self.void = micro, False
        if self._versions is None:
            self._versions = {name: buffer._version for name, buffer in self.module.named_buffers()}

    def _micro_done(self, last: bool) -> None:
        """With a shard's last micro batch its gradient is whole."""
        micro = self._micro
        if micro is None or (micro.weight and not micro.ends_shard):
            return
        for name, buffer in self.module.named_buffers():
            if self._versions and self._versions[name] != buffer._version:
                raise TrainingError(
                    f"the model's forward pass changes its buffer '{name}', by the samples of one rank; "
                    "join(deterministic=True) accepts models whose state is in their parameters"
                )
        self._versions = {}  # looked at in the first step only
        parameters = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        if micro.weight:
            self._order.hand_in(micro.shard, grads)
        if last:
            world = self._world
            ranks, rank, group = (
                (world.size, world.rank, world.group) if world is not None and world.size > 1 else (1, 0, None)
            )
            for tensor, grad in self._order.combine(parameters, micro.total, ranks, rank, group):
                tensor.grad = grad


def _check(module: nn.Module) -> None:
    for name, child in module.named_modules():
        if getattr(child, "track_running_stats", False):
            raise TrainingError(
                f"the model's '{name}' ({type(child).__name__}) keeps statistics of the samples that one rank sees; "
                "join(deterministic=True) accepts layers without them (GroupNorm, LayerNorm)"
            )
