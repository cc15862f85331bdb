"""Replicas whose forward and backward passes are the script's: any number of them, of any number of models.

Each model has a DistributedDataParallel of its own. Its communication hook multiplies this rank's gradient by the share
of the iteration that this rank has, and adds up: a loss that is the mean over the rank's own part, as under
DistributedDataParallel, gives the gradient of the mean over all, whatever the sizes of the parts. That holds for
several backward passes too, as the shares of all ranks add up to 1. A communication that fails in the script's
backward() is dealt with before the optimizer's step. Models that are cut up: own_shards.py.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection
from typing import Any

import torch
from torch import nn

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import Micro, mix
from ..world.agreement import TallyReader, Vote, attempt
from ..world.process_group import World
from .ddp import Replicated
from .reduction.base import ByBucket
from .reduction.mean import Mean
from .strategy import Strategy, Wrapped, unseen


class OwnModel(Strategy):
    """One model of a loop of the script's own."""

    @abstractmethod
    def new_share(self) -> None:
        """Nothing is computed yet of a share that was handed out."""

    @abstractmethod
    def sync(self, travels: bool) -> None:
        """Whether gradients travel with the backward pass that comes."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether the gradients are those of all ranks."""


class Replica(Replicated, OwnModel):
    """One model: what job.replicate() has made of it."""

    call, call_options = "job.replicate", ""

    def __init__(self, module: nn.Module, options: dict[str, Any], owner: OwnBackward) -> None:
        super().__init__(module, options, owner.by_bucket, len(owner.models))
        self._hooked = True  # losses are the script's own, and not scaled by this rank's share
        self._owner = owner
        self._awaits = False
        """A call whose gradients have not travelled yet."""
        self._travels = True
        self._exchanged = False
        """Gradients have travelled since the last share was handed out."""

    def connect(self, world: World) -> None:
        super().connect(world)
        self.sync(self._travels)

    def _connect_again(self) -> None:
        if self._awaits:
            raise TrainingError(
                "requires_grad of some of a model's parameters was changed between its call and the backward pass; "
                "accepted: before the call"
            )
        super()._connect_again()

    def new_share(self) -> None:
        self._called = self._exchanged = self._awaits = False

    def sync(self, travels: bool) -> None:
        self._travels = travels
        if self._ddp is not None:
            self._ddp.require_backward_grad_sync = travels

    @property
    def complete(self) -> bool:
        return self._called and (self._exchanged or not self._shared)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owner = self._owner
        if not torch.is_grad_enabled() or owner.bypass:
            return self.module(*args, **kwargs)
        owner.expect_share()
        self._called = True
        self._calls.note(args, kwargs)
        if not self._shared or not any(now := self._trained.now()):
            return self.module(*args, **kwargs)
        if self._ddp is None or self._trained.differ(now):
            attempt(self._connect_again, owner.on_error, lambda: None)
        self._awaits = self._travels
        # Buffers and buckets are agreed on in the forward pass.
        return attempt(lambda: self._wrapped(*args, **kwargs), owner.on_error, lambda: None)

    def _combine(self, world: World, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self._exchanged, self._awaits = True, False
        owner, buffer = self._owner, bucket.buffer()

        def done(future: Any) -> torch.Tensor:
            try:
                combined: torch.Tensor = future.value()[0]
            except RuntimeError as error:
                owner.broken = error
                return buffer  # type: ignore[no-any-return]
            return combined

        try:
            return owner.by_bucket.combine(bucket, owner.weight, world.group).then(done)
        except RuntimeError as error:
            owner.broken = error
            given_up: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            given_up.set_result(buffer)
            return given_up


class OwnBackward(Strategy):
    """See the module. The strategy of job.replicate()."""

    def __init__(self) -> None:
        self.by_bucket: ByBucket = Mean()
        super().__init__(nn.ModuleList(), self.by_bucket)
        self.models: list[OwnModel] = []
        self.weight = 0.0
        """This rank's part of what is under way; of all ranks together it is 1."""
        self.broken: RuntimeError | None = None
        """What a communication has ended with."""
        self.shared = False
        """Whether the script has asked for its share of the iteration under way."""
        self.used = False
        """Whether a model was called with gradients since then."""
        self.bypass = 0
        self.on_backward: Callable[[nn.Module], None] = lambda module: None
        """Called before gradients are added to those of a module that is cut up."""

    def add(self, model: OwnModel, call: Callable[..., Any] = unseen) -> Any:
        """One more; what the script calls instead of it. call: as of Wrapped."""
        self.models.append(model)
        self.sharded = model.sharded
        self.module = model.module if len(self.models) == 1 else nn.ModuleList(entry.module for entry in self.models)
        return Wrapped(model, call)

    def hold(self, optimizers: list[Any]) -> None:
        """Have the models know the script's own, before the first world."""
        for model in self.models:
            model.hold(optimizers)

    def connect(self, world: World) -> None:
        self._world = world
        for model in self.models:
            model.connect(world)
        self.mesh = next((model.mesh for model in self.models if model.mesh is not None), None)

    def initialize(self, seed: int, parameters: bool) -> None:
        for number, model in enumerate(self.models):
            model.initialize(mix(seed, number), parameters)

    def rehearse(self, rank: int, size: int) -> None:
        for model in self.models:
            model.rehearse(rank, size)

    def compile_ahead(self, rows: Collection[int]) -> None:
        for model in self.models:
            model.compile_ahead(rows)

    def disconnect(self) -> None:
        self._world = self.mesh = None
        for model in self.models:
            model.disconnect()

    def take(self, weight: float) -> None:
        """From now on gradients count by this weight."""
        self.weight, self.shared, self.used = weight, True, False
        for model in self.models:
            model.new_share()

    def sync(self, travels: bool) -> None:
        """Whether gradients travel with the backward pass that comes."""
        for model in self.models:
            model.sync(travels)

    def expect_share(self) -> None:
        """A model is called with gradients. Raise TrainingError where it is trained on nobody knows what."""
        self.used = True
        if not self.shared:
            raise TrainingError(
                "what job.replicate() or job.shard() returned was called before job.share(total) in this iteration, or "
                "outside of job.loader(), so that nobody knows how much this rank's gradient counts; accepted there: "
                "under torch.no_grad()"
            )

    def check(self) -> None:
        """Act on a communication that has failed since the last call."""
        error, self.broken = self.broken, None
        if error is not None:
            attempt(lambda: _raise(error), self.on_error, lambda: None)

    def expect(self, micro: Micro) -> None:
        for model in self.models:
            model.expect(micro)
        self.take(micro.weight / micro.total)
        self.sync(micro.last)

    def _backward(self, loss: torch.Tensor, vote: Vote | None) -> TallyReader | None:
        raise TrainingError(
            "job.step(loss) was called in a loop that is the script's own; call loss.backward() and optimizer.step(), "
            "or give the model to job.wrap() instead"
        )


def _raise(error: RuntimeError) -> None:
    raise error
