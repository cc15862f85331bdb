"""How a model is spread over the ranks of a world: what all ways of it have in common, and which one is meant.

What a script calls in place of its model stays one object, whatever becomes of the ranks behind it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import Micro
from ..world.agreement import OnError, TallyReader, Vote
from ..world.process_group import World
from .ddp import Replicated
from .gradient_norms import Squares


class Strategy(Protocol):
    """How a model is spread over the ranks of a world, and taken together again."""

    module: nn.Module
    sharded: bool
    """Whether a rank holds a part of the state only: then all ranks are needed to run or to save the model."""
    measures: bool
    """Whether to measure gradient norms in the steps that ask for it."""
    mesh: Any
    """The world's DeviceMesh, where the strategy needs one."""
    on_error: OnError
    """Asked about an error in a pass that includes communication: see OnError."""
    void: bool
    """The step under way is to be done again in another world: until the next micro batch nothing is communicated."""

    def connect(self, world: World) -> None:
        """Take part in a world."""

    def begin_pass(self) -> None:
        """A pass over the data begins: the script may have frozen parameters, or released them, on all ranks alike."""

    def rehearse(self, rank: int, size: int) -> None:
        """On a joiner, while the old world still trains: what shortens the first moments in a world of this size."""

    def disconnect(self) -> None:
        """Drop everything that refers to the process group."""

    def bypassed(self) -> AbstractContextManager[None]:
        """Calls need no other rank, if the model allows that."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...

    @property
    def averaged_over(self) -> int:
        """Over how many ranks gradients are averaged, after a step's last micro batch; 1: they are added up."""

    def expect(self, micro: Micro) -> None:
        """Say, before the forward pass, which micro batch comes: with a step's last one gradients travel."""

    def backward(self, loss: torch.Tensor, vote: Vote | None) -> TallyReader | None:
        """Run backward; with a vote it is a step's last one, and the tally can be read afterwards."""

    def clip(self, limit: float) -> None:
        """Scale the gradients down to this norm, all of them together, as clip_grad_norm_ does."""

    def step(self, optimizer: torch.optim.Optimizer) -> None:
        """optimizer.step(), which no gradient scaler stands before."""

    def exposed_s(self) -> float:
        """Seconds of a step, lately, in which gradients travelled and nothing was computed; 0: not known."""

    def squares(self) -> Squares | None:
        """Of the step just measured: |g|^2 of this rank's own mean gradient (one rank: of its first micro batch's),
        and of the mean over all. Both are as the loss was scaled; None when not measured."""


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
        from .deterministic import Deterministic

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


class Wrapped:
    """What `job.wrap` returns: called like the model, and in everything else the model itself."""

    def __init__(self, parallel: Strategy) -> None:
        object.__setattr__(self, "_parallel", parallel)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._parallel(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parallel.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._parallel.module, name, value)

    def __repr__(self) -> str:
        return repr(self._parallel.module)

    def __reduce_ex__(self, _: Any) -> Any:
        raise TrainingError(
            "what job.wrap() returned belongs to this worker's world and cannot be copied, saved or sent; take the "
            "model itself, or its state_dict()"
        )

    @property
    def module(self) -> nn.Module:
        """The module that was wrapped."""
        module: nn.Module = self._parallel.module
        return module

    def train(self, mode: bool = True) -> Wrapped:
        self._parallel.module.train(mode)
        return self

    def eval(self) -> Wrapped:
        return self.train(False)
