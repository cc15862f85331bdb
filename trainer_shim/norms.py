"""Squared gradient norms of one step, read where they pass by: noise.py makes the noise scale of them."""

# mypy: disallow-untyped-calls=False
# torch types a part of its functions only.

from __future__ import annotations

import torch
from torch import nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from .exposed import Exposed


class Norms:
    """Squared gradient norms of one step: what each rank adds to the all-reduce, and what comes out of it."""

    def __init__(self) -> None:
        self._wanted = False
        self._own: torch.Tensor | None = None
        self._first = True
        self.hidden: nn.Parameter | None = None
        """It goes through the buckets too, and is no gradient."""
        self.exposed = Exposed()

    def begin(self, wanted: bool) -> None:
        """Before a micro batch's forward pass."""
        if not wanted:
            self._own, self._first = None, True
        self._wanted = wanted

    def reduce(self, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """The all-reduce (mean) of a bucket, looked at first when a measurement is wanted."""
        if self._wanted:
            pairs = zip(bucket.parameters(), bucket.gradients(), strict=True)
            square = _square([grad for parameter, grad in pairs if parameter is not self.hidden])
            self._own = square if self._own is None else self._own + square
        if bucket.is_last():
            self.exposed.ready(bucket.buffer())
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    def micro_done(self, module: nn.Module) -> None:
        """One rank alone: after the first micro batch of a step, its gradient is the small batch's."""
        if self._wanted and self._first:
            self._own = _square(_grads(module))
            self._first = False

    def squares(self, module: nn.Module) -> tuple[float, float] | None:
        if not self._wanted or self._own is None:
            return None
        own, self._own, self._first = self._own, None, True
        return float(own), float(_square(_grads(module)))


def _grads(module: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in module.parameters() if parameter.grad is not None]


def _square(grads: list[torch.Tensor]) -> torch.Tensor:
    if not grads:
        return torch.zeros((), dtype=torch.float64)
    return torch.stack([grad.square().sum(dtype=torch.float64) for grad in grads]).sum()
