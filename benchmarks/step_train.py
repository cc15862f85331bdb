"""The training of which bench_reports.py takes the time: the same steps by the job and by a plain loop, turn by turn.

The plain loop is what one would write without the job: DataLoader, DistributedSampler, and DistributedDataParallel
over the same process group where there is one. Blocks of steps of both alternate, and the medians over blocks are
compared, so what else the machine does falls on both. CPU seconds: of the training thread, and of the whole process.
On a GPU, `whole` is from one synchronisation to the next, and --spin has the device compute so long in each step: what
is added to `whole` then is a gap in which it computes nothing.
"""

from __future__ import annotations

import argparse
import copy
import functools
import inspect
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import slurm_elastic.trainer_shim as elastic

BATCH = 64
STEPS = 1024
WARM_UP = 30
Clocks = tuple[float, float, float]


def clocks() -> Clocks:
    """Wall, this thread's CPU, this process's CPU."""
    return time.perf_counter(), time.thread_time(), time.process_time()


def data_parallel(model: nn.Module) -> nn.Module:
    """A DistributedDataParallel beside the job's own, which refuses those that a script makes."""
    made = DistributedDataParallel.__new__(DistributedDataParallel)
    inspect.unwrap(DistributedDataParallel.__init__)(made, model, gradient_as_bucket_view=True)
    return made


class Timer:
    """Blocks of steps: seconds a step by every clock, fetching data apart from the rest."""

    def __init__(self, synchronize: Callable[[], object] = lambda: None) -> None:
        self._synchronize = synchronize
        self.blocks: list[dict[str, Clocks]] = []

    def block(self, steps: int, fetch: Any, step: Any) -> None:
        """Take `steps` steps; fetch() gives a batch."""
        spent = {"data": [0.0] * 3, "step": [0.0] * 3}
        self._synchronize()
        first = clocks()
        for _ in range(steps):
            begun = clocks()
            batch = fetch()
            fetched = clocks()
            step(*batch)
            ended = clocks()
            for name, a, b in (("data", begun, fetched), ("step", fetched, ended)):
                spent[name] = [total + later - earlier for total, earlier, later in zip(spent[name], a, b, strict=True)]
        self._synchronize()
        spent["whole"] = [later - earlier for earlier, later in zip(first, clocks(), strict=True)]
        self.blocks.append({name: tuple(total / steps for total in totals) for name, totals in spent.items()})

    def medians(self) -> dict[str, list[float]]:
        return {
            name: [statistics.median(block[name][clock] for block in self.blocks) for clock in range(3)]
            for name in ("data", "step", "whole")
        }


def forever(loader: DataLoader[Any]) -> Iterator[Any]:
    for epoch in itertools.count():
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        yield from loader


class Plain:
    """The same training without the job, over the same process group."""

    def __init__(
        self,
        job: elastic.Job,
        data: TensorDataset,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        spin: Callable[[], object],
    ) -> None:
        shared = job.world_size > 1
        sampler = DistributedSampler(data) if shared else None
        share = BATCH // job.world_size
        self._device, pinned = job.device, job.device.type == "cuda"
        options: dict[str, Any] = {"shuffle": not shared, "sampler": sampler, "drop_last": True, "pin_memory": pinned}
        self._batches = forever(DataLoader(data, share, **options))
        self._net = data_parallel(model) if shared else model
        self._optimizer, self._spin = optimizer, spin

    def fetch(self) -> Any:
        return [part.to(self._device, non_blocking=True) for part in next(self._batches)]

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self._spin()
        nn.functional.mse_loss(self._net(x), y).backward()
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


def train(
    job: elastic.Job, layers: int, width: int, block: int, blocks: int, spin: Callable[[], object] = lambda: None
) -> dict[str, Any]:
    """Blocks of steps of both, in turn; medians of what they took. spin: device work that each step has besides."""
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(BATCH * STEPS, 32), torch.randn(BATCH * STEPS, 1))
    widths = [32, *[width] * layers]
    hidden = (nn.Sequential(nn.Linear(a, b), nn.Tanh()) for a, b in itertools.pairwise(widths))
    model = nn.Sequential(*hidden, nn.Linear(width, 1)).to(job.device)
    other = copy.deepcopy(model)
    optimizer, plain_optimizer = (torch.optim.AdamW(net.parameters(), lr=1e-3) for net in (model, other))
    net = job.wrap(model, optimizer)
    job.keep(plain=plain_optimizer)  # so that the job lets the script step it
    synchronize = torch.cuda.synchronize if job.device.type == "cuda" else lambda: None
    ours, theirs = Timer(synchronize), Timer(synchronize)
    plain: Plain | None = None

    def step(x: torch.Tensor, y: torch.Tensor) -> None:
        spin()
        job.step(nn.functional.mse_loss(net(x), y))

    for _ in job.epochs(1_000_000):
        loader = iter(job.loader(data))
        fetch = functools.partial(next, loader)
        if plain is None:
            plain = Plain(job, data, other, plain_optimizer, spin)
            Timer().block(WARM_UP, fetch, step)
            Timer().block(WARM_UP, plain.fetch, plain.step)
        for _ in range(min(blocks - len(ours.blocks), (STEPS - WARM_UP) // block)):
            ours.block(block, fetch, step)
            theirs.block(block, plain.fetch, plain.step)
        del loader, fetch  # ends the pass
        if len(ours.blocks) >= blocks:
            job.stop()
    return {
        "job": ours.medians(),
        "plain": theirs.medians(),
        "parameters": sum(entry.numel() for entry in model.parameters()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--block", type=int, default=50)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--out", required=True, help="file that every rank writes its numbers to, with .RANK behind it")
    args = parser.parse_args()
    job = elastic.join(batch=BATCH, lr="sqrt")
    found = train(job, args.layers, args.width, args.block, args.blocks)
    Path(f"{args.out}.{job.rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()
