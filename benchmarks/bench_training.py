"""Techniques that elastic trainings need, each beside what it is compared with.

    python benchmarks/bench_training.py [--quick]

adasum: handwritten digits (scikit-learn's, a fifth held out), a perceptron, SGD. The rate is the one, of five, that
does best for one worker with 4 samples a step. 32 workers of 4 samples each then train at that rate with adaptive
summation, at 32 times that rate with the mean (linear scaling, Goyal et al. 2017, at once and over five epochs), and
at that rate with the mean: the first epoch, of 30, after which 95 % of what was held out is right. Workers are shards
in one process; what combines their gradients is the shim's. And what that costs beside an all-reduce, over gloo.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _setup  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.func import functional_call, grad, vmap

from slurm_elastic.trainer_shim.parallel.reduction.adasum import Adasum, weights_of
from slurm_elastic.trainer_shim.parallel.reduction.base import ByBucket
from slurm_elastic.trainer_shim.parallel.reduction.mean import Mean

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "demo"))

WORKERS, EACH, EPOCHS, RIGHT = 32, 4, 30, 0.95
RATES = (0.025, 0.05, 0.1, 0.2, 0.4)
TUNING = 5
"""Epochs that one worker gets with each of them; the held-out loss after them decides."""
ELEMENTS = 1 << 22
Parameters = dict[str, torch.Tensor]


def run(
    workers: int, rate: Callable[[float], float], adasum: bool, seed: int, epochs: int = EPOCHS
) -> tuple[int, float, float]:
    """The first epoch after which enough is right, or 0; then the share that is right, and the loss. rate: at an
    epoch's fraction that is done."""
    from train_digits import digits

    images, targets = digits().tensors
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    parameters = {name: entry.detach().clone() for name, entry in model.named_parameters()}
    order = torch.randperm(len(images))
    held_out, trained = order[: len(order) // 5], order[len(order) // 5 :]

    def loss(now: Parameters, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(functional_call(model, now, (x,)), y)

    gradients = vmap(grad(loss), (None, 0, 0))
    for epoch in range(epochs):
        steps = trained[torch.randperm(len(trained))].split(workers * EACH)[: len(trained) // (workers * EACH)]
        for number, rows in enumerate(steps):
            now = rate(epoch + number / len(steps))
            of_workers = gradients(
                parameters, images[rows].view(workers, EACH, 1, 8, 8), targets[rows].view(workers, EACH)
            )
            parameters = {name: entry - now * combined(of_workers[name], adasum) for name, entry in parameters.items()}
        out = functional_call(model, parameters, (images[held_out],))
        right = float((out.argmax(1) == targets[held_out]).float().mean())
        if right >= RIGHT and epochs == EPOCHS:
            break
    found = float(nn.functional.cross_entropy(out, targets[held_out]))
    return (epoch + 1 if right >= RIGHT else 0), right, found


def combined(of_workers: torch.Tensor, adasum: bool) -> torch.Tensor:
    """One parameter's gradients, [workers, ...]."""
    if not adasum:
        return of_workers.mean(0)
    rows, workers = of_workers.flatten(1).double(), len(of_workers)
    weights = weights_of((rows @ rows.T)[None], torch.ones(workers, dtype=torch.float64), range(workers))
    return (weights[0] @ rows).to(of_workers.dtype).view(of_workers.shape[1:])


def tuned(seeds: int) -> float:
    """The rate that one worker does best with."""
    losses = {
        rate: [run(1, lambda _, rate=rate: rate, False, seed, TUNING)[2] for seed in range(seeds)] for rate in RATES
    }
    for rate, found in losses.items():
        print(f"one worker, rate {rate}: held-out loss {statistics.mean(found):.3f} after {TUNING} epochs", flush=True)
    return min(RATES, key=lambda rate: statistics.mean(losses[rate]))


def ways(rate: float) -> dict[str, tuple[Callable[[float], float], bool]]:
    """How the workers train: the rate, and whether by adaptive summation."""
    return {
        "adasum, rate as it is": (lambda _: rate, True),
        "mean, rate x 32": (lambda _: rate * WORKERS, False),
        "mean, rate x 32 over five epochs": (lambda done: rate * (1 + (WORKERS - 1) * min(1.0, done / 5)), False),
        "mean, rate as it is": (lambda _: rate, False),
    }


def cost(ranks: int, reduction: ByBucket) -> float:
    """Median seconds to combine the ranks' gradients, of ELEMENTS in 16 layers."""
    store, seconds = dist.HashStore(), list[float]()

    def one(rank: int) -> None:
        group: Any = dist.ProcessGroupGloo(store, rank, ranks, datetime.timedelta(seconds=300))
        layers = [torch.randn(ELEMENTS // 16) for _ in range(16)]
        mine = type(reduction)()
        if isinstance(mine, Adasum):
            mine._nodes = list(range(ranks))
        for _ in range(4):
            group.barrier().wait()
            begun = time.perf_counter()
            mine.replace(layers, 1 / ranks, group)
            if rank == 0:
                seconds.append(time.perf_counter() - begun)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return statistics.median(seconds[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one seed, and no costs")
    args = parser.parse_args()
    torch.set_num_threads(1)
    seeds = 1 if args.quick else 3
    rate = tuned(seeds)
    print(f"\n{WORKERS} workers of {EACH} samples, rate {rate} for one; epochs to {RIGHT:.0%}, of {EPOCHS}:")
    for name, (at, adasum) in ways(rate).items():
        found = [run(WORKERS, at, adasum, seed) for seed in range(seeds)]
        epochs = ", ".join(str(epoch) if epoch else f"none ({right:.0%})" for epoch, right, _ in found)
        print(f"  {name:34} {epochs}", flush=True)
    if args.quick:
        return
    print(f"\ncombining {ELEMENTS * 4 >> 20} MB of float32, ranks in threads over gloo:")
    for ranks in (2, 4, 8):
        mean, adasum_s = cost(ranks, Mean()), cost(ranks, Adasum())
        print(f"  {ranks} ranks: all-reduce {mean * 1000:.0f} ms, adasum {adasum_s * 1000:.0f} ms", flush=True)


if __name__ == "__main__":
    main()
