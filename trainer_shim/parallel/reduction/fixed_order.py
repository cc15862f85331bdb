"""The mean over all samples, added up in an order that does not depend on the ranks: one tree over numbered shards.

Each rank hands in the gradient of each of its shards, as sums that the tree has in it. Then every rank adds up one
stretch of the elements over all ranks' sums, and gives it to all. Every addition is one of the tree's, so the result is
the same to the last bit however the shards are shared out; a sibling stands for one that is absent. Limits: nothing
travels before all is there; up to log2(shards) gradients are held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from ...data.sampling import Micro
from ...numerics.batch import loss_scale, slice_of
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


Value = TypeVar("Value")
Node = tuple[int, int]
"""Level, from 0 for leaves, and place in it: (l, i) is the sum of (l - 1, 2 i) and (l - 1, 2 i + 1)."""


def put(held: dict[Node, Value], leaf: int, value: Value, add: Callable[[Value, Value], Value]) -> None:
    """Add a leaf, and all sums that it completes. A rank's leaves come in ascending order."""
    level, place = 0, leaf
    while place & 1 and (level, place - 1) in held:
        value = add(held.pop((level, place - 1)), value)
        level, place = level + 1, place // 2
    held[level, place] = value


def nodes_of(leaves: Iterable[int]) -> list[Node]:
    """What is held once these leaves, ascending, have been put."""
    held: dict[Node, None] = {}
    for leaf in leaves:
        put(held, leaf, None, lambda left, right: None)
    return sorted(held)


def total(held: dict[Node, Value], leaves: int, add: Callable[[Value, Value], Value]) -> Value | None:
    """The sum over all of `leaves` leaves, from nodes that make them up; None without any."""

    def at(level: int, place: int) -> Value | None:
        if (level, place) in held or level == 0:
            return held.get((level, place))
        left, right = at(level - 1, 2 * place), at(level - 1, 2 * place + 1)
        return left if right is None else right if left is None else add(left, right)

    return at(max(0, leaves - 1).bit_length(), 0)
