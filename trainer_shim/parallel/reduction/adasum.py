"""Adaptive summation: join(combine="adasum"), of Maleki et al. 2020 (arXiv 2006.02924), at a rate that is not scaled.

Two gradients become (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b, in each parameter by itself: their sum where they are
orthogonal, their mean where they are equal. More than two do so in a tree: of each parameter's gradients the longest
first, neighbours are combined, one that has no neighbour goes up as it is, until one is left. So the result depends on
the gradients alone, to rounding, not on which rank has which, and one that is zero is as if it were not there. Ranks
of one node come to their mean first, by samples. What comes out is a sum of the ranks' gradients with weights that
their dot products tell: each rank has a stretch of all gradients, its part of the dot products in float64 is added up
over the ranks, and so every rank has the same weights, to the last bit, and gives its stretch to all.

SGD without momentum steps with the gradients combined. With any other optimizer each rank takes its own step with its
node's gradient; what it changes in the parameters is combined, and its state becomes the ranks' mean (own_steps.py).
Limits: nothing overlaps with the backward pass; ranks of a node send each of them to other nodes, not once for all.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ...control import cuda_backend
from ...world import objects
from .base import Bucket, ByBucket, Combined

COLUMNS = 1 << 18
"""Elements of a stretch that are taken in float64 at a time."""
NOISE = 1e-14
"""Relative square of a sum that is rounding of what has cancelled: nothing is projected on it."""


class Adasum(ByBucket):
    """See the module. One per model."""

    keeps_rate = True

    def __init__(self) -> None:
        self._nodes: list[int] = []
        """Of each rank, in the world that is there."""

    def forget(self) -> None:
        self._nodes = []

    def use(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        plain = all(type(optimizer) is torch.optim.SGD for optimizer in optimizers)
        self.by_steps = not plain or any(group["momentum"] for entry in optimizers for group in entry.param_groups)

    def combine(self, bucket: Bucket, share: float, group: Any) -> Combined:
        flat, sizes = _movable(bucket), [part.numel() for part in bucket.gradients()]
        rows, rank = _exchanged(flat, share, group), group.rank()
        ranks, stretch = rows.shape
        parts = list(_parts(sizes, rank * stretch, stretch))
        told = flat.new_zeros(ranks + len(sizes) * ranks * ranks, dtype=torch.float64)
        told[rank] = share
        dots = told[ranks:].view(len(sizes), ranks, ranks)
        for number, columns in parts:
            piece = rows[:, columns].double()
            dots[number] += piece @ piece.T
        group.allreduce([told]).wait()
        weights = weights_of(dots, told[:ranks], self._of_ranks(group))
        mine = flat.new_zeros(stretch)
        for number, columns in parts:
            mine[columns] = (weights[number] @ rows[:, columns].double()).to(flat.dtype)
        whole = torch.empty_like(rows)
        group.allgather([list(whole)], [mine]).wait()
        return _done(whole.view(-1)[: flat.numel()], bucket)

    def own(self, bucket: Bucket, share: float, group: Any) -> Combined:
        nodes = self._of_ranks(group)
        if len(set(nodes)) == len(nodes):
            return super().own(bucket, share, group)
        flat = _movable(bucket)
        rows, shares = _exchanged(flat, share, group), flat.new_zeros(group.size(), dtype=torch.float64)
        shares[group.rank()] = share
        group.allreduce([shares]).wait()
        means = (_means(shares, nodes) @ rows.double()).to(flat.dtype)[nodes]
        back = torch.empty_like(means)
        group.alltoall_base(back.view(-1), means.view(-1), [], []).wait()
        return _done(back.view(-1)[: flat.numel()], bucket)

    def _of_ranks(self, group: Any) -> list[int]:
        if not self._nodes:
            names = objects.gather(os.environ.get("SELASTIC_AGENT_NODE") or socket.gethostname(), group)
            self._nodes = [sorted(set(names)).index(name) for name in names]
        return self._nodes


def _movable(bucket: Bucket) -> torch.Tensor:
    """The gradients, on the host where gloo is to move them, which has no all-to-all of CUDA tensors."""
    flat = bucket.buffer()
    return flat.cpu() if flat.is_cuda and cuda_backend.chosen(os.environ) == "gloo" else flat


def _done(flat: torch.Tensor, bucket: Bucket) -> Combined:
    done: Combined = torch.futures.Future()
    done.set_result([flat.to(bucket.buffer().device)])
    return done


def _exchanged(flat: torch.Tensor, share: float, group: Any) -> torch.Tensor:
    """This rank's stretch of every rank's, [ranks, stretch]."""
    sent = flat.new_zeros(group.size(), -(-flat.numel() // group.size()))
    if share:
        sent.view(-1)[: flat.numel()] = flat
    rows = torch.empty_like(sent)
    group.alltoall_base(rows.view(-1), sent.view(-1), [], []).wait()
    return rows


def _parts(sizes: Sequence[int], start: int, stretch: int) -> Iterator[tuple[int, slice]]:
    """What a stretch has of each of the gradients that lie side by side: its number, and columns of the stretch."""
    first = 0
    for number, size in enumerate(sizes):
        begin, end = max(first, start) - start, min(first + size, start + stretch) - start
        for column in range(begin, end, COLUMNS):
            yield number, slice(column, min(column + COLUMNS, end))
        first += size


def weights_of(dots: torch.Tensor, shares: torch.Tensor, nodes: Sequence[int]) -> torch.Tensor:
    """The weight of each rank's gradient in what comes out, [parameters, ranks]. dots: of each two ranks' gradients,
    [parameters, ranks, ranks]. shares: of the step's samples that each rank had. nodes: of each rank."""
    rows = _means(shares, nodes).repeat(len(dots), 1, 1)
    order = _dot(rows, rows, dots).argsort(dim=1, descending=True, stable=True)
    rows = rows.gather(1, order.unsqueeze(2).expand_as(rows))
    lengths = dots.diagonal(dim1=1, dim2=2).unsqueeze(1)
    while (count := rows.shape[1]) > 1:
        even = count // 2 * 2
        left, right = rows[:, 0:even:2], rows[:, 1:even:2]
        both = _dot(left, right, dots)
        pairs = _kept(left, both, dots, lengths) + _kept(right, both, dots, lengths)
        rows = torch.cat([pairs, rows[:, even:]], 1)
    return rows[:, 0]


def _means(shares: torch.Tensor, nodes: Sequence[int]) -> torch.Tensor:
    """What each rank's counts in the mean of each node, [nodes, ranks]; nothing where the node had no samples."""
    of_node = torch.nn.functional.one_hot(torch.tensor(nodes, device=shares.device)).T * shares
    return of_node / of_node.sum(1, keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)


def _dot(left: torch.Tensor, right: torch.Tensor, dots: torch.Tensor) -> torch.Tensor:
    return ((left @ dots) * right).sum(2)


def _kept(one: torch.Tensor, both: torch.Tensor, dots: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Without half of the other one's projection on it."""
    square = _dot(one, one, dots)
    there = square > NOISE * (one * one * lengths).sum(2)
    return one * (1 - torch.where(there, both / (2 * square), 0.0)).unsqueeze(2)
