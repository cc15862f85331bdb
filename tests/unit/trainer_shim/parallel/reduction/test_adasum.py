"""Adaptive summation: what comes out of gradients, by itself and on real ranks, and own steps of optimizers."""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist

from slurm_elastic.trainer_shim.parallel import own_steps
from slurm_elastic.trainer_shim.parallel.reduction.adasum import Adasum, weights_of
from slurm_elastic.trainer_shim.parallel.reduction.base import Flat as Bucket
from slurm_elastic.trainer_shim.world import objects

SIZES = (7, 1, 12, 2)
"""Of layers; their borders and those of the ranks' stretches lie anywhere."""
RANKS = [2, 3, 4, 5, 8]
Layers = list[torch.Tensor]


def on_ranks(count: int, run: Callable[[int, Any], Any]) -> list[Any]:
    """What run(rank, group) returns, by rank: each on a thread of its own, over gloo."""
    store, results, errors = dist.HashStore(), [None] * count, list[BaseException]()

    def one(rank: int) -> None:
        try:
            group = dist.ProcessGroupGloo(store, rank, count, datetime.timedelta(seconds=60))
            objects.begin(group, "test")
            results[rank] = run(rank, group)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors
    return results


def combined(of_ranks: Sequence[Layers], shares: Sequence[float] = (), nodes: Sequence[int] = ()) -> Layers:
    """What all ranks get. Each is checked to get the same to the last bit."""
    count = len(of_ranks)
    shares, nodes = shares or [1 / count] * count, nodes or range(count)

    def run(rank: int, group: Any) -> Layers:
        reduction, layers = Adasum(), [layer.clone() for layer in of_ranks[rank]]
        reduction._nodes = list(nodes)
        reduction.replace(layers, shares[rank], group)
        return layers

    first, *others = on_ranks(count, run)
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    return first


def by_hand(vectors: Sequence[torch.Tensor]) -> torch.Tensor:
    """One layer: the longest first, neighbours by pairs, one that is left over goes up."""
    row = sorted(vectors, key=lambda vector: -float(vector.square().sum()))
    while len(row) > 1:
        pairs = [pair(a, b) for a, b in zip(row[0::2], row[1::2], strict=False)]
        row = pairs + row[len(pairs) * 2 :]
    return row[0]


def pair(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    dot, aa, bb = float(a @ b), float(a @ a), float(b @ b)
    return a * (1 - (dot / aa / 2 if aa else 0)) + b * (1 - (dot / bb / 2 if bb else 0))


def layers(seed: int, kind: torch.dtype = torch.float64) -> Layers:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, generator=generator, dtype=torch.float64).to(kind) for size in SIZES]


def apart(one: Layers, other: Layers) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("ranks", RANKS)
def test_any_number_of_ranks_in_any_order(ranks: int) -> None:
    """The tree's result, the same to the last bit on all ranks, and to 1e-12 whichever rank has which gradient. A rank
    that had no samples, whatever is in its memory, is as if it were not there, and so is a zero."""
    of_ranks = [layers(rank) for rank in range(ranks)]
    found = combined(of_ranks)
    assert apart(found, [by_hand(layer) for layer in zip(*of_ranks, strict=True)]) < 1e-12
    for order in (list(reversed(range(ranks))), [*range(1, ranks), 0]):
        assert apart(combined([of_ranks[rank] for rank in order]), found) < 1e-12
    nothing = [torch.full((size,), torch.nan, dtype=torch.float64) for size in SIZES]
    assert apart(combined([nothing, *of_ranks], [0.0, *[1 / ranks] * ranks]), found) < 1e-12
    zero = [torch.zeros(size, dtype=torch.float64) for size in SIZES]
    assert apart(combined([*of_ranks[:1], zero, *of_ranks[1:]]), found) < 1e-12


@pytest.mark.parametrize("ranks", RANKS)
def test_orthogonal_gradients_add_and_equal_ones_average(ranks: int) -> None:
    """In each layer by itself: one has orthogonal gradients while another has equal ones."""
    same = torch.linspace(-1, 2, 5, dtype=torch.float64)
    apart_ = [torch.nn.functional.one_hot(torch.tensor(rank), ranks).double() * (rank + 1) for rank in range(ranks)]
    added, averaged = combined([[apart_[rank], same.clone()] for rank in range(ranks)])
    assert apart([added, averaged], [torch.arange(1.0, ranks + 1, dtype=torch.float64), same]) < 1e-12


def test_what_cancels_is_projected_on_by_nobody() -> None:
    """Two gradients that are opposite but for a hundred-millionth come to nothing but rounding, whose direction does
    not count for a third, in any of a thousand parameters."""
    vectors = torch.randn(1000, 3, 12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    vectors[:, 1] = vectors[:, 0] * -(1 + 1e-8)
    vectors[:, 2] *= 0.1
    dots = vectors @ vectors.transpose(1, 2)
    found = weights_of(dots, torch.ones(3, dtype=torch.float64), [0, 1, 2]).unsqueeze(1) @ vectors
    assert apart([found[:, 0]], [vectors[:, 2]]) < 1e-6


def test_ranks_of_a_node_come_to_their_mean_first() -> None:
    """By samples: five ranks on two nodes, of which one rank had none."""
    of_ranks, shares, nodes = [layers(rank) for rank in range(5)], [0.1, 0.3, 0.2, 0.4, 0.0], [0, 1, 0, 1, 0]
    means = [
        [(one * 0.1 + other * 0.2) / 0.3 for one, other in zip(of_ranks[0], of_ranks[2], strict=True)],
        [(one * 0.3 + other * 0.4) / 0.7 for one, other in zip(of_ranks[1], of_ranks[3], strict=True)],
    ]
    assert apart(combined(of_ranks, shares, nodes), [pair(a, b) for a, b in zip(*means, strict=True)]) < 1e-12


def test_a_step_of_its_own_is_taken_with_the_mean_of_its_node() -> None:
    """By samples, the same to the last bit on its ranks; a node's only rank has its own, or nothing."""
    of_ranks, shares, nodes = [layers(rank) for rank in range(5)], [0.2, 0.3, 0.4, 0.1, 0.0], [0, 1, 0, 0, 2]

    def run(rank: int, group: Any) -> Layers:
        reduction = Adasum()
        reduction._nodes = nodes
        bucket = Bucket([layer.clone() for layer in of_ranks[rank]])
        return list(reduction.own(bucket, shares[rank], group).wait()[0].split(SIZES))

    found = on_ranks(5, run)
    node = [
        (a * 0.2 + b * 0.4 + c * 0.1) / 0.7 for a, b, c in zip(*(of_ranks[rank] for rank in (0, 2, 3)), strict=True)
    ]
    assert max(apart(found[0], node), apart(found[1], of_ranks[1])) < 1e-12
    assert all(torch.equal(a, b) for rank in (2, 3) for a, b in zip(found[0], found[rank], strict=True))
    assert not any(layer.any() for layer in found[4])


@pytest.mark.parametrize(("kind", "bound"), [(torch.float32, 1e-6), (torch.bfloat16, 2e-2)])
def test_dot_products_are_in_float64_whatever_gradients_are(kind: torch.dtype, bound: float) -> None:
    """Gradients whose squares no float32 holds are combined as their multiples are; one that overflows is seen."""
    of_ranks = [[layer * 1e25 for layer in layers(rank, kind)] for rank in range(3)]
    expected = [by_hand([layer.double() for layer in each]) for each in zip(*of_ranks, strict=True)]
    found = combined(of_ranks)
    assert apart([layer.double() / 1e25 for layer in found], [layer / 1e25 for layer in expected]) < bound * 4
    of_ranks[1][2][0] = torch.inf
    finite = [bool(torch.isfinite(layer).all()) for layer in combined(of_ranks)]
    assert finite == [True, True, False, True]


class Lamb(torch.optim.Optimizer):
    """A layer's step is as long as its parameters are; with a number in its state that each rank has otherwise."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for entry in group["params"]:
                state = self.state[entry]
                state["average"] = state.get("average", 0) * 0.9 + entry.grad * 0.1
                state["trust"] = entry.detach().norm() / (state["average"].norm() + 1e-3)
                entry.data.sub_(state["average"] * state["trust"] * group["lr"])


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    lambda entries: torch.optim.SGD(entries, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda entries: torch.optim.AdamW(entries, lr=0.05),
    lambda entries: Lamb(entries, lr=0.05),
]


@pytest.mark.parametrize("make", OPTIMIZERS)
def test_each_rank_steps_and_what_the_steps_change_is_combined(
    make: Callable[[Any], torch.optim.Optimizer],
) -> None:
    """Two steps on three ranks, in the second of which one had no samples: by hand, each rank's optimizer goes on from
    the mean of the states, by samples. All hold the same to the last bit."""
    gradients = [[layers(10 * step + rank) for rank in range(3)] for step in range(2)]
    shares = [[0.4, 0.3, 0.3], [0.5, 0.5, 0.0]]

    def run(rank: int, group: Any) -> tuple[Layers, Layers]:
        entries = [torch.nn.Parameter(layer) for layer in layers(99)]
        optimizer, reduction = make(entries), Adasum()
        reduction._nodes = [0, 1, 2]
        for of_ranks, share in zip(gradients, shares, strict=True):
            for entry, grad in zip(entries, of_ranks[rank], strict=True):
                entry.grad = grad * bool(share[rank])
            own_steps.step(optimizer, None, reduction, share[rank], group)
        return [entry.detach() for entry in entries], [
            value for entry in entries for _, value in sorted(optimizer.state[entry].items())
        ]

    found = on_ranks(3, run)
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip([*found[0][0], *found[0][1]], [*other[0], *other[1]], strict=True))
    start, states = layers(99), list[dict[str, Any]]()
    for of_ranks, share in zip(gradients, shares, strict=True):
        ends, after = list[Layers](), list[dict[str, Any]]()
        parts = [part for part in share if part]
        for grads in of_ranks[: len(parts)]:
            entries = [torch.nn.Parameter(layer.clone()) for layer in start]
            optimizer = make(entries)
            for entry, grad, state in zip(entries, grads, states or [{}] * len(entries), strict=True):
                entry.grad = grad
                optimizer.state[entry].update({name: value.clone() for name, value in state.items()})
            optimizer.step()
            ends.append([entry.detach() for entry in entries])
            after.append([dict(optimizer.state[entry]) for entry in entries])
        changes = [by_hand([end[n] - start[n] for end in ends]) for n in range(len(start))]
        start = [layer + change for layer, change in zip(start, changes, strict=True)]
        states = [
            {name: sum(s[n][name] * part for s, part in zip(after, parts, strict=True)) for name in after[0][n]}
            for n in range(len(start))
        ]
    assert apart(found[0][0], start) < 1e-12
    assert apart(found[0][1], [value for state in states for _, value in sorted(state.items())]) < 1e-12


def test_a_scaler_skips_the_step_on_all_ranks_where_one_overflows() -> None:
    """Scaled gradients give the step of plain ones; an overflow on one rank leaves all where they are, and every rank's
    scale goes down alike."""

    def run(rank: int, group: Any, scale: float = 1024.0) -> tuple[Layers, Layers, float]:
        entries = [torch.nn.Parameter(layer) for layer in layers(99)]
        optimizer, reduction = torch.optim.AdamW(entries, lr=0.05), Adasum()
        scaler = torch.amp.GradScaler("cpu", init_scale=scale) if scale > 1 else None
        reduction._nodes = [0, 1]
        if scaler is not None:
            scaler.scale(torch.ones(()))
        for step in range(2):
            for entry, grad in zip(entries, layers(rank), strict=True):
                entry.grad = grad * scale
            if step == 1 and rank == 1:
                entries[2].grad[0] = torch.inf  # type: ignore[index]
            before = [entry.detach().clone() for entry in entries]
            own_steps.step(optimizer, scaler, reduction, 0.5, group) if scaler or step == 0 else None
            if scaler is not None:
                scaler.update()
        return before, [entry.detach() for entry in entries], scaler.get_scale() if scaler else 0.0

    scaled, plain = on_ranks(2, run), on_ranks(2, lambda rank, group: run(rank, group, 1.0))
    for before, after, scale in scaled:
        assert apart(before, after) == 0 and scale == 512
        assert apart(after, plain[0][1]) < 1e-12
