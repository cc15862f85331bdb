"""Gradients that one iteration leaves to the next: a resize between the two would lose them, so they are refused.

What is left and cleared before a step uses it, as by zero_grad() at the top of the next iteration, is nobody's
business; so is what a gradient scaler has left, which leaves out steps. Of each group of an optimizer one parameter is
looked at.
"""

import dataclasses
from collections.abc import Iterable
from typing import Any

import torch

from slurm_elastic.protocol.errors import TrainingError

INSTEAD = "accumulate within one iteration, over `for number in job.share(n):`"


@dataclasses.dataclass(eq=False)
class Left:
    """A gradient that is there at the end of an iteration."""

    optimizer: torch.optim.Optimizer
    parameter: torch.Tensor
    added_to: bool = False
    cleared: bool = False

    def added(self, _: object = None) -> None:
        """The parameter's gradient of a backward pass is added next."""
        self.cleared = self.cleared or not self.is_there()
        self.added_to = not self.cleared

    def is_there(self) -> bool:
        """Whether it was neither taken away nor set to zero."""
        now = self.parameter.grad
        return now is not None and (bool(_plain(now).any()) if now.layout == torch.strided else True)

    @property
    def used(self) -> bool:
        """Whether a step now would use it."""
        return not self.cleared and (self.added_to or self.is_there())


class LeftGradients:
    """See the module. One per loop of the script's own."""

    def __init__(self, optimizers: Iterable[torch.optim.Optimizer], scalers: Iterable[torch.amp.GradScaler]) -> None:
        self._optimizers, self._scalers = list(optimizers), list(scalers)
        self._rounds: list[Any] = []
        self._left: list[Left] = []
        self._hooks: list[Any] = []

    def begin(self) -> None:
        self._rounds = self._rounds_now()

    def _rounds_now(self) -> list[Any]:
        return [getattr(scaler, "_per_optimizer_states", None) for scaler in self._scalers]  # None: it is not enabled

    def end(self, stepped: bool) -> None:
        """It ends. stepped: some optimizer was. Raises TrainingError for gradients that nothing has used."""
        self.forget()
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                entry = next((entry for entry in group["params"] if entry.grad is not None), None)
                if entry is not None:
                    self._left.append(Left(optimizer, entry))
        if self._left and not stepped and not self._scaled():
            raise TrainingError(
                "no optimizer was stepped since job.next(), or for a batch of job.loader(), and a resize would lose "
                f"the gradients; {INSTEAD}"
            )
        for left in self._left:
            # A part of a tensor gets its gradient from fully_shard, without a hook: own_shards.py says when.
            if (parameter := left.parameter) is _plain(parameter):
                learns = parameter.requires_grad
                parameter.requires_grad_(True)  # which it may do again when the hook is to be called
                self._hooks.append(parameter.register_hook(left.added))
                parameter.requires_grad_(learns)

    def _scaled(self) -> bool:
        """Whether a scaler has gone through a step, perhaps without taking it: its update() begins a new round."""
        return any(before is not after for before, after in zip(self._rounds, self._rounds_now(), strict=True))

    def added(self, model: torch.nn.Module) -> None:
        """Gradients of a model that is cut up are added next."""
        own = {id(parameter) for parameter in model.parameters()} if self._left else set()
        for left in self._left:
            if id(left.parameter) in own:
                left.added()

    def check(self, optimizer: torch.optim.Optimizer) -> None:
        """Before a step. Raises TrainingError for gradients of an earlier iteration."""
        if any(left.optimizer is optimizer and left.used for left in self._left):
            raise TrainingError(
                f"the script called step() of a {type(optimizer).__name__} with gradients of an iteration, or a batch "
                f"of job.loader(), before this one, which a resize between the two would lose; {INSTEAD}, or clear "
                "them before backward()"
            )

    def forget(self) -> None:
        """Gradients of before are gone, or of no interest."""
        for hook in self._hooks:
            hook.remove()
        self._hooks, self._left = [], []


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """Of a part of a tensor the memory that is here."""
    part: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return part
