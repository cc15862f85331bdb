"""The same parameters, to the last bit, on any number of ranks: join(deterministic=...).

The global batch is cut into a fixed number of shards. A rank computes the gradient of each of its shards by itself,
with random numbers of its own, and gradients are added up in the order of one tree over all shards (fixed_order.py).
Cost: micro batches are no larger than a shard, nothing overlaps with the backward pass, up to log2(shards) gradients
are held in memory, and where shards per rank are no power of two more of them travel. Limits: one kind of device and
one version of torch throughout; on CPUs one thread; kernels that torch knows as nondeterministic are refused.
"""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from slurm_elastic.protocol.errors import TrainingError

from ..data.sampling import Micro
from ..numerics.batch import slice_of
from ..numerics.fixed_order import Node, nodes_of, put, total
from ..world.agreement import TallyReader, Vote, VoteExchange
from ..world.process_group import World, buckets_of
from .strategy import Strategy

Grads = list[torch.Tensor]


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

    averaged_over = 1

    def __init__(self, module: nn.Module, options: dict[str, Any], shards: int) -> None:
        if options:
            raise TrainingError(f"job.wrap({next(iter(options))}=...) does not go with join(deterministic=True)")
        _check(module)
        super().__init__(module)
        self._shards = shards
        self._held: dict[Node, Grads] = {}
        self._micro: Micro | None = None
        self._versions: dict[str, int] | None = None

    def connect(self, world: World) -> None:
        self._world = world

    def disconnect(self) -> None:
        self._world = self.mesh = None
        self._held = {}

    def expect(self, micro: Micro) -> None:
        self._micro, self.void = micro, False
        if self._versions is None:
            self._versions = {name: buffer._version for name, buffer in self.module.named_buffers()}

    def _backward(self, loss: torch.Tensor, vote: Vote | None) -> TallyReader | None:
        exchange = VoteExchange(self._world, vote)
        loss.backward()
        self._take()
        if vote is not None:
            self._add_up()
        return exchange.reader()

    def _take(self) -> None:
        """With a shard's last micro batch its gradient is whole: put it in its place."""
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
        parameters = self._parameters()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        for parameter in parameters:
            parameter.grad = None
        if micro.weight:
            put(self._held, micro.shard, grads, _add)

    def _add_up(self) -> None:
        """Have every parameter's gradient added up over all shards, the same on every rank."""
        micro, world, held = self._micro, self._world, self._held
        self._held = {}
        if micro is None:
            return
        leaves = min(self._shards, micro.total)
        if world is None or world.size == 1:
            grads: Grads = total(held, leaves, _add) or []
            for parameter, grad in zip(self._parameters(), grads, strict=True):
                parameter.grad = grad
            return
        nodes = [nodes_of(x for x in slice_of(self._shards, world.size, r) if x < leaves) for r in range(world.size)]
        parameters = self._parameters()
        place = {id(parameter): number for number, parameter in enumerate(parameters)}
        for bucket in buckets_of(list(parameters)):
            chosen = [place[id(parameter)] for parameter in bucket]
            own = [torch.cat([held[node][number].reshape(-1) for number in chosen]) for node in nodes[world.rank]]
            flat = _exchange(own, nodes, leaves, bucket)
            for number, part in zip(chosen, flat.split([parameter.numel() for parameter in bucket]), strict=True):
                parameters[number].grad = part.view_as(parameters[number])

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for parameter in self.module.parameters() if parameter.requires_grad]


def _exchange(own: Grads, nodes: list[list[Node]], leaves: int, like: Grads) -> torch.Tensor:
    """Every rank adds up one stretch of the elements over all ranks' nodes, and gives it to all.

    own: this rank's nodes, flat. Which element is added up where changes nothing in how it is.
    """
    ranks, size = len(nodes), sum(tensor.numel() for tensor in like)
    stretch = -(-size // ranks)
    kind = {"dtype": like[0].dtype, "device": like[0].device}
    sent = torch.zeros(len(own), ranks * stretch, **kind)  # type: ignore[call-overload]
    for row, flat in zip(sent, own, strict=True):
        row[:size] = flat
    sent = sent.view(len(own), ranks, stretch).transpose(0, 1).contiguous().view(-1)
    counts = [len(entry) * stretch for entry in nodes]
    received = torch.empty(sum(counts), **kind)  # type: ignore[call-overload]
    dist.all_to_all_single(received, sent, counts, [len(own) * stretch] * ranks)
    rows = received.view(-1, stretch)
    held = dict(zip([node for entry in nodes for node in entry], rows, strict=True))
    mine = total(held, leaves, torch.add)
    if mine is None:
        raise AssertionError("a step without samples")
    everyone = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(everyone, mine.contiguous())
    return torch.cat(everyone)[:size]


def _add(left: Grads, right: Grads) -> Grads:
    torch._foreach_add_(left, right)
    return left


def _check(module: nn.Module) -> None:
    for name, child in module.named_modules():
        if getattr(child, "track_running_stats", False):
            raise TrainingError(
                f"the model's '{name}' ({type(child).__name__}) keeps statistics of the samples that one rank sees; "
                "join(deterministic=True) accepts layers without them (GroupNorm, LayerNorm)"
            )
