"""B6: what the first communicator of a process costs, and later ones; also with NCCL warmed up before.

A worker that joins could warm NCCL up before it says that it is ready, while the old world still trains: `warmed` makes
a communicator of one rank and gives it up first. Limit: one rank; forming by size needs several GPUs.
"""

from __future__ import annotations

import datetime
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checking import STAND_IN, Check, left_s, run_part, synchronize
from one_rank_worlds import gate_of

from slurm_elastic.trainer_shim.world import process_group as worlds

WORLDS = 8


def warm(device: torch.device) -> None:
    """A communicator of this process alone, which is given up again."""
    timeout = datetime.timedelta(seconds=20)
    kind: Any = dist.ProcessGroupNCCL if device.type == "cuda" and not STAND_IN else dist.ProcessGroupGloo
    backend = kind(dist.HashStore(), 0, 1, timeout)
    x = torch.ones(8, device="cpu" if STAND_IN else device)
    backend.allreduce([x]).wait()
    synchronize(device.type == "cuda")
    if hasattr(backend, "shutdown"):
        backend.shutdown()


def measure(check: Check, warmed: bool) -> None:
    said = "warmed" if warmed else "cold"
    begun = time.perf_counter()
    x = torch.ones(1024, device=check.device)
    synchronize(check.cuda)
    check.figure(f"{said}: CUDA's context", f"{time.perf_counter() - begun:.3f} s")
    if warmed:
        begun = time.perf_counter()
        warm(check.device)
        check.figure(f"{said}: warming up", f"{time.perf_counter() - begun:.3f} s")
    forming, first = [], []
    for number in range(WORLDS):
        begun = time.perf_counter()
        world = worlds.form(gate_of(number))
        formed = time.perf_counter()
        world.group.allreduce([x]).wait()
        synchronize(check.cuda)
        forming.append(formed - begun)
        first.append(time.perf_counter() - formed)
        world.owned.leave(later=True)
        del world
    later = f"later {statistics.median(forming[1:]):.4f} and {statistics.median(first[1:]):.4f} s"
    check.figure(f"{said}: form() and first all-reduce", f"{forming[0]:.3f} and {first[0]:.3f} s, {later}")
    os._exit(0)


def main() -> None:
    check = Check(part="")
    if check.args.part:
        measure(check, check.args.part == "warmed")
    for name, share in (("cold", 0.5), ("warmed", 1.0)):
        with check.part(name):
            run_part(
                [sys.executable, str(Path(__file__)), *sys.argv[1:], "--part", name], share * left_s(), {**os.environ}
            )


if __name__ == "__main__":
    main()
