"""What the stand-in does, shown by one to three ranks: checks.py NAME RANK PORT. It prints what it saw."""

from __future__ import annotations

import os
import sys
import threading
import time
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from standin import c
from torch import nn

CUDA = torch.device("cuda")


def world(rank: int, port: int, timeout_s: float = 60.0, size: int = 2) -> Any:
    """The backend of the first one's device."""
    store = dist.TCPStore("127.0.0.1", port, size, rank == 0)
    dist.init_process_group(
        "cpu:gloo,cuda:standin", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=timeout_s)
    )
    group: Any = dist.distributed_c10d._get_default_group()
    return group._get_backend(CUDA)


def passed() -> Any:
    event = torch.cuda.Event()
    event.record()
    return event


def device(rank: int, port: int) -> None:
    """Gradients as on the host, other devices refused, a queue that runs on behind the host, times by events."""
    x, model = torch.randn(8, 16), nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    loss = model(x).pow(2).mean()
    loss.backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model.to(CUDA)
    model(x.to(CUDA)).pow(2).mean().backward()
    print("gradients", all(torch.allclose(p.grad.cpu(), g) for p, g in zip(model.parameters(), gradients, strict=True)))
    try:
        model(x)
    except RuntimeError as error:
        print("mixed:", str(error).splitlines()[0])
    begun, begun_at = torch.cuda.Event(), time.monotonic()
    begun.record()
    c.busy(0.5)
    ended = passed()
    print("host waited", time.monotonic() - begun_at > 0.4, "passed", ended.query())
    ended.synchronize()
    print("took", 0.5 <= begun.elapsed_time(ended) / 1000 < 2.0)


def memory(rank: int, port: int) -> None:
    """Of 100 MB: what is freed stays reserved, and a communicator of 40 MB finds no room until it is given back."""
    tensor = torch.empty(80_000_000, dtype=torch.uint8, device=CUDA)
    try:
        torch.empty(30_000_000, dtype=torch.uint8, device=CUDA)
    except torch.OutOfMemoryError as error:
        print("full:", str(error)[:19])
    del tensor
    backend = world(0, port) if rank == 0 else world(1, port)
    x = torch.ones(1, device=CUDA)
    try:
        dist.all_reduce(x)
    except RuntimeError as error:
        print("no room:", "Failed to CUDA calloc" in str(error))
    torch.cuda.empty_cache()
    dist.all_reduce(x)
    print("sum", float(x), "of communicators", c.of_communicators())
    backend.abort()
    print("of communicators", c.of_communicators())


def lost(rank: int, port: int) -> None:
    """A peer that dies hangs the stream, not the host, until the abort; after it nothing more is accepted."""
    backend = world(rank, port)
    x = torch.ones(4, device=CUDA)
    dist.all_reduce(x)
    print("sum", x.tolist())
    if rank == 1:
        os._exit(9)
    dist.all_reduce(x)
    event = passed()
    time.sleep(1.0)
    print("hangs", not event.query())
    backend.abort()
    event.synchronize()
    print("data", x.tolist()[0])
    try:
        dist.all_reduce(x)
    except dist.DistBackendError as error:
        print("then:", error)


def mismatch(rank: int, port: int) -> None:
    """Ranks that sum tensors of different sizes hang; the watchdog ends the processes at the collective's time."""
    world(rank, port, timeout_s=2.0)
    dist.all_reduce(torch.ones(4 + rank, device=CUDA))
    passed().synchronize()
    print("not reached")


def forming(rank: int, port: int) -> None:
    """Slower by a setting, and without a bound where a peer does not come: an abort does not end it."""
    backend = world(rank, port)
    begun = time.monotonic()
    dist.all_reduce(torch.ones(1, device=CUDA))
    print("formed late", time.monotonic() - begun > 1.0)
    alone = dist.new_group()
    if rank == 1:
        time.sleep(4)
        os._exit(0)
    thread = threading.Thread(target=lambda: dist.all_reduce(torch.ones(1, device=CUDA), group=alone), daemon=True)
    thread.start()
    time.sleep(0.5)
    alone._get_backend(CUDA).abort()
    thread.join(1.0)
    print("still forms", thread.is_alive())
    backend.abort()


def switched(rank: int, port: int) -> None:
    """The copy of a switch has what the state was when it began, whatever the new world makes the GPU wait for."""
    from types import SimpleNamespace

    from slurm_elastic.trainer_shim.checkpoint.snapshots import Snapshots
    from slurm_elastic.trainer_shim.state.kept_parts import State

    state, model = State(), nn.Linear(2, 2, bias=False).to(CUDA)
    state.keep("Model", model)
    c.busy(0.2)
    with torch.no_grad():
        model.weight.fill_(3.0)
    membership: Any = SimpleNamespace(client=None)
    snapshots = Snapshots(membership, state, lambda: SimpleNamespace(sharded=False), "checkpoints", None)  # type: ignore[arg-type]
    snapshots.begin(rank_0=True)
    c.busy(600.0)
    snapshots.hold()
    held: Any = snapshots._held
    print("copied", held["parts"]["Model"]["weight"].tolist())


def copies(rank: int, port: int) -> None:
    """As slow as STANDIN_COPY_MB_S says; the host waits where memory is not pinned."""
    tensor = torch.ones(10_000_000, dtype=torch.uint8, device=CUDA)
    begun = passed()
    pinned = torch.empty(10_000_000, dtype=torch.uint8, pin_memory=True).copy_(tensor, non_blocking=True)
    ended = passed()
    print("host waited", ended.query())
    began = time.monotonic()
    plain = torch.empty_like(pinned, pin_memory=False).copy_(tensor, non_blocking=True)
    print("both took", begun.elapsed_time(ended) >= 500, "and", time.monotonic() - began >= 0.5)
    print("copied", bool(pinned.all() and plain.all()))


def moved(rank: int, port: int) -> None:
    """One rank's state to two that have none: read once, by buckets, whatever its tensors' sizes and layouts."""
    from types import SimpleNamespace

    from slurm_elastic.trainer_shim.world import p2p

    world(rank, port, size=3)
    holder: Any = SimpleNamespace(group=dist.distributed_c10d._get_default_group(), rank=rank)
    shapes: list[tuple[tuple[int, ...], torch.dtype]] = [
        *(((1, 3, 16 << 20), torch.uint8), ((), torch.int64), ((7,), torch.float64), ((5,), torch.bool)),
        *(((3, 10 << 20), torch.bfloat16), ((1000,), torch.float32), ((0,), torch.float32)),
    ]
    torch.manual_seed(1)
    made = [torch.randint(0, 2, shape, dtype=dtype) for shape, dtype in shapes]
    if rank == 0:
        tensors = [tensor.to(CUDA) for tensor in made]
        tensors[4] = tensors[4].t().contiguous().t()
    else:
        tensors = [
            torch.zeros_like(tensor, device=CUDA if number != 1 else "cpu") for number, tensor in enumerate(made)
        ]
    before = c.counts()
    p2p.move(holder, {1: tensors, 2: tensors} if rank == 0 else {}, {0: tensors} if rank else {}, 60.0)
    torch.cuda.synchronize()
    size, after = sum(tensor.nbytes for tensor in made), c.counts()
    print("read once", after["read_bytes"] - before["read_bytes"] == (0 if rank else size))
    print("in host memory", after["pinned_peak"] <= 3 * p2p.AHEAD_BYTES // 2 < size)
    print("arrived", all(torch.equal(there.cpu(), tensor) for there, tensor in zip(tensors, made, strict=True)))


def warmed(rank: int, port: int) -> None:
    """The libraries and a communicator of one rank; the model, its hooks and random numbers are not touched."""
    from slurm_elastic.trainer_shim.world import groups, rehearsal

    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout()).to(CUDA)
    called = list[object]()
    model.register_forward_hook(lambda *given: called.append(given))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    random, launched = torch.get_rng_state(), c.counts()["launched"]
    rehearsal.warm(CUDA, model)
    same = all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    print("as before", same and not called and all(p.grad is None for p in model.parameters()))
    print("random", torch.equal(torch.get_rng_state(), random), "computed", c.counts()["launched"] > launched)
    print("formed", c.counts()["formed"], "held", c.of_communicators(), dist.is_initialized(), groups._slots)


def times(rank: int, port: int) -> None:
    """What the product's meter says of steps of 0.1 s, from its first report on, beside the device's own times."""
    from slurm_elastic.trainer_shim.training.step_meter import Meter, Position, StepShape

    marks, meter = [torch.cuda.Event(enable_timing=True)], Meter(every_s=0.0)
    meter.enter_world(StepShape(1, 8, 8, 1))
    marks[0].record()
    found = None
    while found is None:
        c.busy(0.1)
        marks.append(torch.cuda.Event(enable_timing=True))
        marks[-1].record()
        meter.step(8, Position(len(marks), 8 * len(marks), 0))
        if len(marks) % 3 == 0:  # a host that waits now and then, for a vote
            marks[-1].synchronize()
        found = meter.rest()
    marks[-1].synchronize()
    taken = [before.elapsed_time(after) / 1000 for before, after in pairwise(marks)]
    counted = sorted(taken[2 : 2 + found["steps"]])
    print("right to 3 %", abs(found["step_time_median_s"] / counted[len(counted) // 2] - 1) < 0.03)


def fit(rank: int, port: int) -> None:
    """A micro batch that job.fit() finds leaves room for what only a world of several ranks takes."""
    from slurm_elastic.trainer_shim.data.micro_batch_probe import COMMUNICATOR_MB, Probe

    model = nn.Linear(1000, 1000, bias=False, device="cuda")
    state = [p for p in model.parameters() for _ in range(2)]

    def compute(batch: Any) -> torch.Tensor:
        rows = torch.zeros(len(batch), 250_000, device="cuda")  # of 1 MB
        return model(rows[:, :1000]).sum()

    found = Probe(model, [torch.optim.AdamW(model.parameters())], CUDA, range(1), compute, torch.tensor).search(500)
    held = [torch.empty_like(p) for p in [*state, *model.parameters()]]
    held.append(torch.empty(COMMUNICATOR_MB * 10**6, dtype=torch.uint8, device="cuda"))
    compute(range(found)).backward()
    print("fits", found)


def main(name: str, rank: str, port: str) -> None:
    checks = {
        check.__name__: check
        for check in (device, memory, lost, mismatch, forming, switched, copies, moved, warmed, times, fit)
    }
    checks[name](int(rank), int(port))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
