"""The mean over all samples, added up in an order that does not depend on the ranks: one tree over numbered shards.

Each rank hands in the gradient of each of its shards, as sums that the tree has in it (numerics/fixed_order.py). Then
every rank adds up one stretch of the elements over all ranks' sums, and gives it to all. Which element is added up
where changes nothing in how it is. Limits: nothing travels before all is there; up to log2(shards) gradients are held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from ...data.sampling import Micro
from ...numerics.batch import loss_scale, slice_of
from ...numerics.fixed_order import Node, nodes_of, put, total
from ...state.packed_tensors import buckets_of
from .base import Reduction

Gradients = list[torch.Tensor]


class FixedOrder(Reduction):
    """See the module. shards: of a whole step; each is handed in by one rank."""

    averages = True

    def __init__(self, shards: int) -> None:
        self._shards = shards
        self._held: dict[Node, Gradients] = {}

    def scale(self, own: float, micro: Micro, replicas: int) -> float:
        return loss_scale(own, 1, micro.total)

    def hand_in(self, shard: int, gradients: Gradients) -> None:
        """The whole gradient of one of this rank's shards, which come in ascending order."""
        put(self._held, shard, gradients, _add)

    def forget(self) -> None:
        """The step comes to nothing."""
        self._held = {}

    def combine(
        self, like: Sequence[torch.Tensor], samples: int, ranks: int, rank: int, group: Any
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """All shards of a step of so many samples added up, the same on every rank, beside what each is `like`."""
        held, self._held = self._held, {}
        leaves = min(self._shards, samples)
        if ranks == 1:
            whole = total(held, leaves, _add)
            yield from zip(like, whole or [], strict=True)
            return
        nodes = [nodes_of(x for x in slice_of(self._shards, ranks, r) if x < leaves) for r in range(ranks)]
        place = {id(tensor): number for number, tensor in enumerate(like)}
        for bucket in buckets_of(like):
            own = [torch.cat([held[node][place[id(one)]].reshape(-1) for one in bucket]) for node in nodes[rank]]
            flat = _exchange(own, nodes, leaves, bucket, group)
            for one, part in zip(bucket, flat.split([one.numel() for one in bucket]), strict=True):
                yield one, part.view_as(one)


def _exchange(
    own: Gradients, nodes: list[list[Node]], leaves: int, like: Sequence[torch.Tensor], group: Any
) -> torch.Tensor:
    """own: this rank's nodes of a bucket, flat."""
    ranks, size = len(nodes), sum(tensor.numel() for tensor in like)
    stretch = -(-size // ranks)
    kind = {"dtype": like[0].dtype, "device": like[0].device}
    sent = torch.zeros(len(own), ranks * stretch, **kind)  # type: ignore[call-overload]
    for row, flat in zip(sent, own, strict=True):
        row[:size] = flat
    sent = sent.view(len(own), ranks, stretch).transpose(0, 1).contiguous().view(-1)
    counts = [len(entry) * stretch for entry in nodes]
    received = torch.empty(sum(counts), **kind)  # type: ignore[call-overload]
    dist.all_to_all_single(received, sent, counts, [len(own) * stretch] * ranks, group=group)
    rows = received.view(-1, stretch)
    held = dict(zip([node for entry in nodes for node in entry], rows, strict=True))
    mine = total(held, leaves, torch.add)
    if mine is None:
        raise AssertionError("a step without samples")
    everyone = [torch.empty_like(mine) for _ in range(ranks)]
    dist.all_gather(everyone, mine.contiguous(), group=group)
    return torch.cat(everyone)[:size]


def _add(left: Gradients, right: Gradients) -> Gradients:
    torch._foreach_add_(left, right)
    return left
