"""The training of bench_resize.py as torchrun's documentation has it: DistributedDataParallel and a snapshot per step.

No line of this project takes part. At a change of members torchrun kills all workers and starts new ones, which load
the snapshot.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from resize_train import WIDTHS, perceptron
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", choices=tuple(WIDTHS), default="small")
    parser.add_argument("--snapshot", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    widths = WIDTHS[args.size]
    data = TensorDataset(torch.randn(4096, widths[0]), torch.randn(4096, widths[-1]))
    model = perceptron(args.size)
    optimizer = torch.optim.AdamW(model.parameters())
    step = 0
    if args.snapshot.exists():
        saved = torch.load(args.snapshot)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    net = DistributedDataParallel(model)
    loader = DataLoader(data, batch_size=32 // size, sampler=DistributedSampler(data))
    out = os.open(args.out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    while True:
        for x, y in loader:
            optimizer.zero_grad()
            ((net(x) - y) ** 2).mean().backward()
            optimizer.step()
            step += 1
            if rank == 0:
                line = {"at": time.monotonic(), "world": os.getpid(), "size": size, "step": step}
                os.write(out, json.dumps(line).encode() + b"\n")
                parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(parts, args.snapshot.with_suffix(".new"))
                args.snapshot.with_suffix(".new").replace(args.snapshot)


if __name__ == "__main__":
    main()
