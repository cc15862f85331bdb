"""How a model is spread over the ranks of a world: what all strategies have in common.

What a script calls in place of its model stays one object, whatever becomes of the ranks behind it.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils._pytree import tree_leaves, tree_map_only

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import Micro
from ..world.agreement import OnError, TallyReader, Vote, VoteExchange, attempt
from ..world.process_group import World
from .gradient_norms import Squares
from .reduction.base import Reduction

PLAIN = (torch.Tensor, int, float, str, type(None))
"""What a model's result is made of where its tensors can be found in it."""


class Strategy(ABC):
    """How a model is spread over the ranks of a world, and taken together again."""

    sharded = False
    """Whether a rank holds a part of the state only: then all ranks are needed to run or to save the model."""
    tells_waiting = False
    """Whether exposed_s() is all that a rank waits for others in a step."""

    def __init__(self, module: nn.Module, reduction: Reduction) -> None:
        """reduction: of the gradients, over the replicas."""
        self.module = module
        self.reduction = reduction
        self.measures = False
        """Whether to measure gradient norms in the steps that ask for it."""
        self.mesh: Any = None
        """The world's DeviceMesh, where the strategy needs one."""
        self.on_error: OnError = lambda error: None
        """Asked about an error in a pass that includes communication: see OnError."""
        self.void = False
        """The step under way is to be done again in another world: until the next micro batch nothing is sent."""
        self.full = False
        """It did not fit into a GPU's memory."""
        self._world: World | None = None

    @abstractmethod
    def connect(self, world: World) -> None:
        """Take part in a world."""

    def hold(self, optimizers: list[Any]) -> None:  # noqa: B027
        """Before the first world: have these follow the parameters, where those become other objects."""

    def initialize(self, seed: int, parameters: bool) -> None:  # noqa: B027
        """In the first world: give what the script has left on the meta device its initial values; buffers only, where
        parameters come from elsewhere."""

    def rehearse(self, rank: int, size: int) -> None:  # noqa: B027
        """On a joiner, while the old world still trains: what shortens the first moments in a world of this size."""

    def compile_ahead(self, rows: Collection[int]) -> None:  # noqa: B027
        """Before this worker is ready: compile what the others have. rows: samples of micro batches that come."""

    @abstractmethod
    def disconnect(self) -> None:
        """Drop everything that refers to the process group."""

    def bypassed(self) -> AbstractContextManager[None]:
        """Calls need no other rank, if the model allows that."""
        return nullcontext()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def scale(self, own: float, micro: Micro) -> float:
        """The factor for the mean loss of a micro batch that counts as `own` samples."""
        return self.reduction.scale(own, micro, self._world.replicas if self._world is not None else 1)

    @abstractmethod
    def expect(self, micro: Micro) -> None:
        """Say, before the forward pass, which micro batch comes: with a step's last one gradients travel."""

    def backward(self, loss: torch.Tensor, vote: Vote | None) -> TallyReader | None:
        """Run backward; with a vote it is a step's last one, and the tally can be read afterwards."""
        return None if self.void else attempt(lambda: self._backward(loss, vote), self.on_error, lambda: None)

    def _backward(self, loss: torch.Tensor, vote: Vote | None) -> TallyReader | None:
        exchange = VoteExchange(self._world, vote)  # travels beside the backward pass
        loss.backward()
        self._micro_done(last=vote is not None)
        return exchange.reader()

    def _micro_done(self, last: bool) -> None:  # noqa: B027
        """A backward pass is done; last: a step's last one."""

    def weight_of(self, reader: TallyReader) -> float | torch.Tensor:
        """The sum of the weights that the ranks have said with the step whose tally this reads."""
        return reader().weight

    def scale_gradients(self, factor: float | torch.Tensor) -> None:
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                getattr(parameter.grad, "_local_tensor", parameter.grad).mul_(factor)

    def full_state(self, keep: bool) -> dict[str, Any]:
        """The model's state_dict with whole tensors, in host memory; nothing where it is not kept.

        Every rank of a sharded model calls this.
        """
        found = {}
        for name, value in self.module.state_dict().items():
            whole = value.full_tensor() if is_part(value) else value
            if keep:
                found[name] = whole.detach().to("cpu", copy=True) if isinstance(whole, torch.Tensor) else whole
        return found

    def clip(self, limit: float) -> None:
        """Scale the gradients down to this norm, all of them together, as clip_grad_norm_ does."""
        torch.nn.utils.clip_grad_norm_(self.module.parameters(), limit)

    def clip_values(self, limit: float) -> None:
        """Have no gradient's element lie further from 0 than this, as clip_grad_value_ does."""
        torch.nn.utils.clip_grad_value_(self.module.parameters(), limit)

    def step(self, optimizer: torch.optim.Optimizer, scaler: Any = None) -> None:
        """optimizer.step(), or the gradient scaler's of it."""
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)

    def exposed_s(self) -> float:
        """Seconds of a step, lately, in which gradients travelled and nothing was computed; 0: not known."""
        return 0.0

    def squares(self) -> Squares | None:
        """Of the step just measured: |g|^2 of this rank's own mean gradient (one rank: of its first micro batch's),
        and of the mean over all. Both are as the loss was scaled; None when not measured."""
        return None


def is_part(value: Any) -> bool:
    """Whether a value is a rank's part of a tensor (DTensor, whose module costs an import)."""
    return isinstance(value, torch.Tensor) and hasattr(value, "full_tensor")


class Called(Protocol):
    """What is called in place of a model."""

    module: nn.Module

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


def unseen(model: Called, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a model at whose calls nobody looks."""
    return model(*args, **kwargs)


class Wrapped:
    """What `job.wrap` and `job.replicate` return: called like the model, and in everything else the model itself, whose
    class isinstance() finds; type() does not."""

    def __init__(self, parallel: Called, call: Callable[..., Any] = unseen) -> None:
        """call: calls it, with the arguments and keywords that it is given."""
        object.__setattr__(self, "_parallel", parallel)
        object.__setattr__(self, "_call", call)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        return type(self._parallel.module)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(self._parallel, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parallel.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._parallel.module, name, value)

    def __repr__(self) -> str:
        return repr(self._parallel.module)

    def __reduce_ex__(self, _: Any) -> Any:
        raise TrainingError(
            "what job.wrap() or job.replicate() returned belongs to this worker's world and cannot be copied, saved or "
            "sent; take the model itself, or its state_dict()"
        )

    @property
    def module(self) -> nn.Module:
        module: nn.Module = self._parallel.module
        return module

    def train(self, mode: bool = True) -> Wrapped:
        self._parallel.module.train(mode)
        return self

    def eval(self) -> Wrapped:
        return self.train(False)


def on_meta(module: nn.Module) -> nn.Module:
    """A copy of the module without storage, to build whole ones from."""
    memo: dict[int, Any] = {}
    for tensor in [*module.parameters(), *module.buffers()]:
        blank = torch.empty_like(tensor, device="meta")
        wrapped = nn.Parameter(blank, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else blank
        memo[id(tensor)] = wrapped
    return copy.deepcopy(module, memo)


def zeros_of(blank: nn.Module, device: torch.device, args: Any, kwargs: Any) -> Any:
    """Zeros of the shapes that a module on the meta device returns: a step that is void, on a GPU that may be full,
    goes on with them. Raises whatever it raises where they depend on values."""

    def zeros(value: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(value, device=device, requires_grad=value.requires_grad)

    given, named = tree_map_only(torch.Tensor, lambda value: value.detach().to("meta"), (args, kwargs))
    found = blank(*given, **named)
    if not all(isinstance(leaf, PLAIN) for leaf in tree_leaves(found)):
        raise TypeError("tensors of a result that are not found")
    return tree_map_only(torch.Tensor, zeros, found)
