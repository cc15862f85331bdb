"""B5: how long a checkpoint keeps the training, and how fast state comes into host memory, by size.

The job's own way (State.snapshot), the first time and with the memory of the one before, beside what else there is:
pinned memory, and pinned memory filled by a side stream, where the training waits for nothing but its start.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
from checking import STAND_IN, Check, left_s, scratch, synchronize
from torch import nn

from slurm_elastic.trainer_shim.checkpoint import files
from slurm_elastic.trainer_shim.state.kept_parts import State

TENSORS = 24
LINK = 20e9
"""Bytes a second that are asked for: PCIe 4 x16 gives 25, 5 x16 50."""


def state_of(size: float, device: torch.device) -> State:
    """Tensors of `size` bytes together."""
    state = State()
    each = int(size / 4 / TENSORS)
    model = nn.ParameterList([nn.Parameter(torch.ones(each, device=device)) for _ in range(TENSORS)])
    state.keep("Model", model, own=True)
    return state


def timed(work: Callable[[], object], cuda: bool) -> float:
    synchronize(cuda)
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def measure(check: Check, gigabytes: float) -> None:
    size = gigabytes * 1e9
    label = f"{gigabytes:g} GB"
    state = state_of(size, check.device)
    snapshots = []
    first = timed(lambda: snapshots.append(state.snapshot()), check.cuda)
    state.recycle(snapshots.pop())
    again = []
    for _ in range(3 if gigabytes < 10 else 1):
        again.append(timed(lambda: snapshots.append(state.snapshot()), check.cuda))
        state.recycle(snapshots.pop())
    bar = 1.2 * size / LINK
    pause = statistics.median(again)
    text = f"{1e3 * pause:.0f} ms, {size / pause / 1e9:.1f} GB/s; the first {1e3 * first:.0f} ms"
    check.figure(f"{label}, pause of the job's snapshot", text, pause <= bar, f"{1e3 * bar:.0f} ms")
    if check.cuda and not STAND_IN and gigabytes < 10:
        pinned(check, label, size, state)


def pinned(check: Check, label: str, size: float, state: State) -> None:
    tensors = [parameter.detach() for parameter in state.parts["Model"].parameters()]  # type: ignore[attr-defined]
    begun = time.perf_counter()
    places = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in tensors]
    took = time.perf_counter() - begun

    def copy() -> None:
        for place, tensor in zip(places, tensors, strict=True):
            place.copy_(tensor, non_blocking=True)

    def waited() -> None:
        copy()
        torch.cuda.synchronize()

    copying = min(timed(waited, True) for _ in range(3))
    check.figure(f"{label}, pinned", f"{1e3 * copying:.0f} ms, {size / copying / 1e9:.1f} GB/s; made in {took:.2f} s")
    side = torch.cuda.Stream()

    def aside() -> None:
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            copy()

    started = timed(aside, True)
    begun = time.perf_counter()
    side.synchronize()
    whole = started + time.perf_counter() - begun
    check.figure(f"{label}, side stream", f"{1e3 * started:.2f} ms to start, {size / whole / 1e9:.1f} GB/s")


def main() -> None:
    check = Check()
    with check.part("written"), scratch(10**9) as folder:
        size = 0.3e9 if check.cuda and not STAND_IN else 0.003e9
        captured = state_of(size, check.device).snapshot()
        took = timed(lambda: files.write(folder, captured), check.cuda)
        check.figure(f"{size / 1e9:g} GB, hashed, written, read back", f"{size / took / 1e9:.2f} GB/s")
    for gigabytes, needs_s in ((0.3, 0), (3, 8), (10, 13)) if check.cuda and not STAND_IN else ((0.003, 0), (0.03, 0)):
        if left_s() < needs_s:
            check.figure(f"{gigabytes:g} GB", f"not tried: {left_s():.0f} s left")
            continue
        with check.part(f"{gigabytes:g} GB"):
            measure(check, gigabytes)
        if check.cuda and not STAND_IN:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
