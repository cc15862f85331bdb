"""Replicas whose forward and backward passes are the script's: any number of them, of any number of models.

Each model has a DistributedDataParallel of its own. Its communication hook multiplies this rank's gradient by the share
of the iteration that this rank has, and adds up: a loss that is the mean over the rank's own part, as under
DistributedDataParallel, gives the gradient of the mean over all, whatever the sizes of the parts. That holds for
several backward passes too, as the shares of all ranks add up to 1. A communication that fails in the script's
backward() is dealt with before the optimizer's step. Models that are cut up: own_shards.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import Micro, mix
from ..world.agreement import TallyReader, Vote, attempt
from ..world.process_group import World
from .compiled import Calls, total
from .ddp import UNSYNCED, Trained, check_options, kept_gradients
from .reduction.base import ByBucket
from .reduction.mean import Mean
from .strategy import Called, Strategy, Wrapped, unseen


class OwnModel(Called, Protocol):
    """One model of a loop of the script's own."""

    sharded: bool
    """Whether it is cut up over the ranks."""

    @property
    def mesh(self) -> Any:
        """What it is cut up over; None: it is whole."""

    def hold(self, optimizers: list[Any]) -> None:
        """The script's own, before the first world."""

    def connect(self, world: World) -> None: ...

    def initialize(self, seed: int, parameters: bool) -> None:
        """As Strategy.initialize()."""

    def rehearse(self, rank: int, size: int) -> None:
        """As Strategy.rehearse()."""

    def compile_ahead(self, rows: Collection[int]) -> None:
        """As Strategy.compile_ahead()."""

    def expect(self, rows: int) -> None:
        """Samples of the micro batch that comes; 0: nobody knows."""

    def disconnect(self) -> None: ...

    def new_share(self) -> None: ...

    def sync(self, travels: bool) -> None:
        """Whether gradients travel with the backward pass that comes."""

    @property
    def complete(self) -> bool:
        """Whether the gradients are those of all ranks."""


class Replica:
    """One model: what job.replicate() has made of it."""

    sharded = False
    mesh = None

    def __init__(self, module: nn.Module, options: dict[str, Any], owner: OwnBackward) -> None:
        self.module = module
        self.ddp: DistributedDataParallel | None = None
        check_options("job.replicate", options)
        self.ddp_options = {"gradient_as_bucket_view": True, **options}
        self._owner = owner
        self._calls = Calls(module, len(owner.models))
        self._trained = Trained(module)
        self._shared = self._awaits = False
        """In a world of several ranks; a call whose gradients have not travelled yet."""
        self._travels = True
        self.called = False
        """Since the last share was handed out, with gradients."""
        self.exchanged = False
        """Since then gradients have travelled."""

    def hold(self, optimizers: list[Any]) -> None:
        """Parameters stay the same objects."""

    def initialize(self, seed: int, parameters: bool) -> None:
        """All have their values."""

    def rehearse(self, rank: int, size: int) -> None:
        """Nothing."""

    def compile_ahead(self, rows: Collection[int]) -> None:
        def enter(world: World) -> Callable[..., Any]:
            ddp = DistributedDataParallel(self.module, **UNSYNCED, **self.ddp_options)
            ddp.require_backward_grad_sync = False  # nobody is there
            return lambda *args, **kwargs: total(ddp(*args, **kwargs)).backward()

        try:
            self._calls.rehearse(rows, enter)
        finally:
            self.disconnect()

    def expect(self, rows: int) -> None:
        self._calls.expect(rows)

    def connect(self, world: World) -> None:
        self._calls.enter(world)
        self._shared = world.size > 1
        if self._shared and any(self._trained.now()):
            self._connect()

    def _connect(self) -> None:
        self._trained.told()
        self.ddp = DistributedDataParallel(self.module, **UNSYNCED, **self.ddp_options)
        self.ddp.register_comm_hook(None, lambda state, bucket: self._combine(bucket))
        self.ddp.require_backward_grad_sync = self._travels

    def _connect_again(self) -> None:
        """DistributedDataParallel looks once at what is trained: where that is other parameters now, another one is
        made, on all ranks alike. What their gradients are stays."""
        if self._awaits:
            raise TrainingError(
                "requires_grad of some of a model's parameters was changed between its call and the backward pass; "
                "accepted: before the call"
            )
        with kept_gradients(self.module):
            self.ddp = None
            self._connect()

    def disconnect(self) -> None:
        self.ddp = None
        for parameter in self.module.parameters():
            parameter.grad = None  # a view into the dropped object's buckets

    def new_share(self) -> None:
        self.called = self.exchanged = self._awaits = False

    def sync(self, travels: bool) -> None:
        self._travels = travels
        if self.ddp is not None:
            self.ddp.require_backward_grad_sync = travels

    @property
    def complete(self) -> bool:
        return self.called and (self.exchanged or not self._shared)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owner = self._owner
        if not torch.is_grad_enabled() or owner.bypass:
            return self.module(*args, **kwargs)
        owner.expect_share()
        self.called = True
        self._calls.note(args, kwargs)
        if not self._shared or not any(now := self._trained.now()):
            return self.module(*args, **kwargs)
        if self.ddp is None or self._trained.differ(now):
            attempt(self._connect_again, owner.on_error, lambda: None)
        ddp, self._awaits = self.ddp, self._travels
        if ddp is None:
            raise AssertionError("called outside a world")
        # Buffers and buckets are agreed on in the forward pass.
        return attempt(lambda: ddp(*args, **kwargs), owner.on_error, lambda: None)

    def _combine(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self.exchanged, self._awaits = True, False
        owner, buffer = self._owner, bucket.buffer()

        def done(future: Any) -> torch.Tensor:
            try:
                combined: torch.Tensor = future.value()[0]
            except RuntimeError as error:
                owner.broken = error
                return buffer  # type: ignore[no-any-return]
            return combined

        try:
            return owner.by_bucket.combine(bucket, owner.weight, dist.group.WORLD).then(done)
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

    def add(self, model: OwnModel, seen: Callable[[tuple[Any, ...], dict[str, Any]], None] = unseen) -> Any:
        """One more; what the script calls instead of it. seen: gets what each call is given."""
        self.models.append(model)
        self.sharded = model.sharded
        self.module = model.module if len(self.models) == 1 else nn.ModuleList(entry.module for entry in self.models)
        return Wrapped(model, seen)

    def hold(self, optimizers: list[Any]) -> None:
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
            model.expect(len(micro.indices))
        self.take(micro.weight / micro.total)
        self.sync(micro.last)

    def _backward(self, loss: torch.Tensor, vote: Vote | None) -> TallyReader | None:
        raise TrainingError(
            "job.step(loss) was called in a loop that is the script's own; call loss.backward() and optimizer.step(), "
            "or give the model to job.wrap() instead"
        )


def _raise(error: RuntimeError) -> None:
    raise error
