"""Squared gradient norms of one step, read where they pass by: noise_scale.py makes the noise scale of them.

Nothing here runs in a step that is not measured, and nothing waits for a GPU: norms are read a step later, or when they
have arrived.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

Squares = tuple[torch.Tensor, torch.Tensor]
"""|g|^2 of a rank's own mean gradient and of the mean over all ranks, on their way: scalars, perhaps on a GPU."""


class Arriving:
    """The squares of one step on their way to the host."""

    def __init__(self, squares: Squares) -> None:
        self._values = torch.stack(squares)
        self._event: Any = None
        if self._values.is_cuda:
            self._values = self._values.to("cpu", non_blocking=True)  # into pinned memory
            self._event = torch.cuda.Event()
            self._event.record()

    @property
    def arrived(self) -> bool:
        return self._event is None or bool(self._event.query())

    def read(self) -> list[float]:
        """Both of them; waits until they are there."""
        if self._event is not None:
            self._event.synchronize()
        values: list[float] = self._values.tolist()
        return values


class GradientNorms:
    """The norms of one measured step after another."""

    def __init__(self) -> None:
        self._parameters: list[nn.Parameter] = []
        self._shared = False
        self._own: list[torch.Tensor] = []
        self._means: list[torch.Tensor] = []
        """Of the mean over all ranks, where something else takes its place."""
        self._hooks: list[Any] = []
        self._wanted = False

    def over(self, parameters: Iterable[nn.Parameter], shared: bool) -> None:
        """Measure these from now on. shared: DistributedDataParallel puts the mean in place of a rank's gradients."""
        self._release()
        self._parameters = [parameter for parameter in parameters if parameter.requires_grad]
        self._shared = shared
        self._own = []

    def begin(self, wanted: bool, last: bool) -> None:
        """Before a micro batch's forward pass; last: the step's last one."""
        self._wanted, self._means = wanted, []
        if not wanted:
            self._own = []
        elif self._shared and last and not self._hooks:
            # They run when a gradient is complete here and before DistributedDataParallel hears of it.
            self._hooks = [entry.register_post_accumulate_grad_hook(self._complete) for entry in self._parameters]

    def travels(self, flat: torch.Tensor, share: float, group: Any) -> None:
        """Some of this rank's gradients are complete, and no mean takes their place. share: how much they count."""
        if self._wanted:
            mean = flat * share if share else torch.zeros_like(flat)
            group.allreduce([mean]).wait()
            self._means.append(_norm(mean))

    def _complete(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self._own.append(_norm(parameter.grad))

    def micro_done(self) -> None:
        """After a backward pass. One rank alone: the first micro batch's gradient is the small batch's."""
        if self._hooks:
            self._release()
        if self._wanted and not self._shared and not self._own:
            self._own = self._norms()

    def squares(self) -> Squares | None:
        """Of the step whose backward passes are done; None when it was not measured."""
        own, self._own = self._own, []
        return (_sum(own), _sum(self._means or self._norms())) if self._wanted and own else None

    def _norms(self) -> list[torch.Tensor]:
        grads = [_filled(entry.grad) for entry in self._parameters if entry.grad is not None]
        narrow = [grad for grad in grads if grad.dtype.itemsize < 4]  # half precision would not hold a norm exactly
        wide = [grad for grad in grads if grad.dtype.itemsize >= 4]
        norms = list(torch._foreach_norm(wide)) if wide else []
        return norms + (list(torch._foreach_norm(narrow, 2, torch.float32)) if narrow else [])

    def _release(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []


def _filled(grad: torch.Tensor) -> torch.Tensor:
    """What a gradient's norm is the norm of; of a sparse one, as embeddings may have, the rows that are there."""
    return grad.coalesce().values() if grad.is_sparse else grad


def _norm(grad: torch.Tensor) -> torch.Tensor:
    grad = _filled(grad)
    narrow = grad.dtype.itemsize < 4
    norm: torch.Tensor = torch.linalg.vector_norm(grad, dtype=torch.float32 if narrow else None)
    return norm


def _sum(norms: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([norm.to(torch.float64) for norm in norms]).square().sum()
