"""Replicas whose forward and backward passes are the script's: any number of them, of any number of models.

Each model has a DistributedDataParallel of its own. Its communication hook multiplies this rank's gradient by the share
of the iteration that this rank has, and adds up: a loss that is the mean over the rank's own part, as under
DistributedDataParallel, gives the gradient of the mean over all, whatever the sizes of the parts. That holds for
several backward passes too, as the shares of all ranks add up to 1. A communication that fails in the script's
backward() is dealt with before the optimizer's step. Limit: replicas only.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import Micro
from ..world.agreement import TallyReader, Vote, attempt
from ..world.process_group import World
from .ddp import UNSYNCED, check_options
from .strategy import Strategy, Wrapped


class Replica:
    """One model: what job.replicate() has made of it."""

    def __init__(self, module: nn.Module, options: dict[str, Any], owner: OwnBackward) -> None:
        self.module = module
        self.ddp: DistributedDataParallel | None = None
        self._options = {"gradient_as_bucket_view": True, **options}
        self._owner = owner
        self._trained: list[bool] = []
        self.called = False
        """Since the last share was handed out, with gradients."""
        self.exchanged = False
        """Since then gradients have travelled."""

    def connect(self) -> None:
        self.ddp = DistributedDataParallel(self.module, **UNSYNCED, **self._options)
        self._trained = self._trained_now()
        self.ddp.register_comm_hook(None, lambda state, bucket: self._sum(bucket))

    def begin_pass(self) -> None:
        """DistributedDataParallel looks once at what is trained."""
        if self.ddp is not None and self._trained != self._trained_now():
            self.disconnect()
            self.connect()

    def _trained_now(self) -> list[bool]:
        return [parameter.requires_grad for parameter in self.module.parameters()]

    def disconnect(self) -> None:
        self.ddp = None
        for parameter in self.module.parameters():
            parameter.grad = None  # a view into the dropped object's buckets

    def new_share(self) -> None:
        self.called = self.exchanged = False

    @property
    def complete(self) -> bool:
        """Whether the gradients are those of all ranks."""
        return self.called and (self.exchanged or self.ddp is None)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        owner, ddp = self._owner, self.ddp
        if not torch.is_grad_enabled() or owner.bypass:
            return self.module(*args, **kwargs)
        owner.expect_share()
        self.called = True
        if ddp is None:
            return self.module(*args, **kwargs)
        # Buffers and buckets are agreed on in the forward pass.
        return attempt(lambda: ddp(*args, **kwargs), owner.on_error, lambda: None)

    def _sum(self, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        self.exchanged = True
        owner = self._owner
        buffer: torch.Tensor = bucket.buffer()
        if owner.weight:
            buffer.mul_(owner.weight)
        else:
            buffer.zero_()  # computed for company: it may be anything

        def done(future: Any) -> torch.Tensor:
            try:
                summed: torch.Tensor = future.value()[0]
            except RuntimeError as error:
                owner.broken = error
                return buffer
            return summed

        try:
            work: Any = dist.all_reduce(buffer, async_op=True)
        except RuntimeError as error:
            owner.broken = error
            given_up: torch.futures.Future[torch.Tensor] = torch.futures.Future()
            given_up.set_result(buffer)
            return given_up
        summed: torch.futures.Future[torch.Tensor] = work.get_future().then(done)
        return summed


class OwnBackward(Strategy):
    """See the module. The strategy of job.replicate()."""

    averaged_over = 1

    def __init__(self) -> None:
        super().__init__(nn.ModuleList())
        self.replicas: list[Replica] = []
        self.weight = 0.0
        """This rank's part of what is under way; of all ranks together it is 1."""
        self.broken: RuntimeError | None = None
        """What a communication has ended with."""
        self.shared = False
        """Whether the script has asked for its share of the iteration under way."""
        self.bypass = 0

    def add(self, module: nn.Module, options: dict[str, Any]) -> Any:
        """One more model; what the script calls instead of it."""
        check_options("job.replicate", options)
        replica = Replica(module, options, self)
        self.replicas.append(replica)
        self.module = module if len(self.replicas) == 1 else nn.ModuleList(entry.module for entry in self.replicas)
        return Wrapped(replica)

    def connect(self, world: World) -> None:
        self._world = world
        for replica in self.replicas if world.size > 1 else ():
            replica.connect()

    def disconnect(self) -> None:
        self._world = self.mesh = None
        for replica in self.replicas:
            replica.disconnect()

    def begin_pass(self) -> None:
        for replica in self.replicas:
            replica.begin_pass()

    def take(self, weight: float) -> None:
        """From now on gradients count by this weight."""
        self.weight, self.shared = weight, True
        for replica in self.replicas:
            replica.new_share()

    def sync(self, travels: bool) -> None:
        """Whether gradients travel with the backward pass that comes."""
        for replica in self.replicas:
            if replica.ddp is not None:
                replica.ddp.require_backward_grad_sync = travels

    def expect_share(self) -> None:
        """Raise TrainingError where a model is trained on nobody knows what."""
        if not self.shared:
            raise TrainingError(
                "what job.replicate() returned was called before job.share(total) in this iteration, or outside of "
                "job.loader(), so that nobody knows how much this rank's gradient counts; accepted there: under "
                "torch.no_grad()"
            )

    def check(self) -> None:
        """Act on a communication that has failed since the last call."""
        error, self.broken = self.broken, None
        if error is not None:
            attempt(lambda: _raise(error), self.on_error, lambda: None)

    def expect(self, micro: Micro) -> None:
        self.take(micro.weight / micro.total)
        self.sync(micro.last)

    def _backward(self, loss: torch.Tensor, vote: Vote | None) -> TallyReader | None:
        raise TrainingError(
            "job.step(loss) was called in a loop that is the script's own; call loss.backward() and optimizer.step(), "
            "or give the model to job.wrap() instead of job.replicate()"
        )


def _raise(error: RuntimeError) -> None:
    raise error
