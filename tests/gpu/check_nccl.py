"""T1: the product's way to form a group and to leave it, again and again, with NCCL at one rank.

Over the last two thirds nothing may be left: device memory, threads, descriptors, files of NCCL's in /dev/shm. A
communicator takes 0.5 s to end, beside what comes next; here each world waits for the one before.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import os
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from checking import STAND_IN, Check, left_s, used_mb
from one_rank_worlds import KEY, gate_of

from slurm_elastic.trainer_shim.world import groups
from slurm_elastic.trainer_shim.world import process_group as worlds
from slurm_elastic.trainer_shim.world.layout import Layout
from slurm_elastic.trainer_shim.world.mesh import mesh_of
from slurm_elastic.trainer_shim.world.stores import SealedStore

ROUNDS, WARM = 34, 11


def sum_of(device: torch.device, group: Any) -> None:
    x = torch.full((1024,), 3.0, device=device)
    dist.all_reduce(x, group=group)
    if float(x.sum()) != 3072.0:
        raise AssertionError("the sum over one rank is not its own value")


def abort(world: worlds.World, device: torch.device) -> None:
    """What is done to a communicator that hangs."""
    backend: Any = world.group._get_backend(device)
    if hasattr(backend, "abort"):
        backend.abort()


def held() -> dict[str, float]:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    return {
        "GPU MB": used_mb() if torch.cuda.is_available() else 0.0,
        "threads": float(status.partition("Threads:")[2].split()[0]),
        "descriptors": float(len(list(Path("/proc/self/fd").iterdir()))),
        "/dev/shm/nccl-*": float(len(list(Path("/dev/shm").glob("nccl-*")))),
        "RSS MB": float(status.partition("VmRSS:")[2].split()[0]) / 1e3,
    }


def settled(bounds: dict[str, float] | None = None) -> dict[str, float]:
    """What is held once threads that are ending have ended."""
    until = time.monotonic() + 3
    while True:
        found = held()
        over = bounds is None or any(found[name] > bounds[name] for name in found if name != "RSS MB")
        if not over or time.monotonic() > until:
            return found
        time.sleep(0.1)


def ended() -> None:
    """Have the communicators end that were left, and wait for it."""
    groups.end_left()
    if groups._ending is not None:
        groups._ending.join()


def leave_all() -> None:
    """Worlds that an error has left."""
    for held in list(groups._slots.values()):
        held.leave(later=True, broken=True)


def milliseconds(times: list[float]) -> str:
    cuts = sorted(times)
    return f"p50 {1e3 * statistics.median(cuts):.1f} ms, p90 {1e3 * cuts[int(0.9 * (len(cuts) - 1))]:.1f} ms"


def many(check: Check) -> None:
    """All of them; of those that count every fourth is aborted."""
    forming, reducing, leaving, aborting, ending = [], [], [], [], []
    before: dict[str, float] = {}
    done, aborts = 0, 0
    until = left_s() * 0.6
    begun = time.monotonic()
    for number in range(ROUNDS):
        if number == WARM:
            ended()
            before = settled()
        if time.monotonic() - begun > until:
            break
        at = [time.perf_counter()]
        world = worlds.form(gate_of(number))
        at.append(time.perf_counter())
        sum_of(check.device, world.group)
        at.append(time.perf_counter())
        aborted = number >= WARM and number % 4 == 0
        if aborted:
            abort(world, check.device)
            aborts += 1
        world.owned.leave(later=True, broken=aborted)
        del world
        at.append(time.perf_counter())
        if not aborted:
            ended()
            ending.append(time.perf_counter() - at[3])
        if number:
            forming.append(at[1] - at[0])
            reducing.append(at[2] - at[1])
            (aborting if aborted else leaving).append(at[3] - at[2])
        else:
            check.figure("first world of the process", f"form {at[1] - at[0]:.2f} s, all-reduce {at[2] - at[1]:.2f} s")
        done = number + 1
    check.figure("worlds formed and left", f"{done}, {aborts} of them aborted", done == ROUNDS, f"{ROUNDS}")
    check.figure("form()", milliseconds(forming))
    check.figure("first all-reduce, makes the communicator", milliseconds(reducing))
    leave_ms = 1e3 * statistics.median(leaving)
    check.figure("leave()", milliseconds(leaving), leave_ms <= 50, "50 ms")
    check.figure("its communicator has ended after", milliseconds(ending))
    if aborting:
        check.figure("abort and leave()", milliseconds(aborting))
    ended()
    if before:
        after = settled(before)
        for name, value in after.items():
            more = value - before[name]
            kept = None if name == "RSS MB" else more <= 0
            bar = "" if kept is None else "+0"
            check.figure(f"{name} over the last {done - WARM}", f"{more:+.1f} from {before[name]:.1f}", kept, bar)


def overlapping(check: Check) -> None:
    """The next communicator is there, and used, before the old one is left."""
    for number in range(200, 210):
        world = worlds.form(gate_of(number))  # torch does not hold its store
        sum_of(check.device, world.group)
        ended()
        following = worlds.form(gate_of(number + 100))
        sum_of(check.device, following.group)
        sum_of(check.device, world.group)
        world.owned.leave(later=True)
        del world
        sum_of(check.device, following.group)
        following.owned.leave(later=True)
        del following
    check.figure("next one formed before the old is left", "10 times", True, "no error")


def several(check: Check, name: str, times: int = 3) -> None:
    """Forms, with what is patched around it."""
    took = []
    for number in range(times):
        begun = time.perf_counter()
        world = worlds.form(gate_of(400 + number))
        sum_of(check.device, world.group)
        groups.end_left()
        world.owned.leave(later=True)
        del world
        took.append(time.perf_counter() - begun)
    check.figure(name, milliseconds(took), True, "no error")


@contextlib.contextmanager
def init_with(**options: Any) -> Iterator[None]:
    """The product's form(), with more options of torch's."""
    torchs: Any = dist.distributed_c10d
    given: Callable[..., Any] = torchs._new_process_group_helper
    torchs._new_process_group_helper = lambda *args, **more: given(*args, **more, **options)
    try:
        yield
    finally:
        torchs._new_process_group_helper = given


@contextlib.contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


def more_groups(check: Check) -> None:
    """More groups beside the default one, as checkpoints and meshes make them."""
    for number in range(500, 505):
        world = worlds.form(gate_of(number))
        groups.use(world.groups)
        sum_of(check.device, dist.new_group([0]))
        groups.end_left()
        sum_of(torch.device("cpu"), world.owned.beside())
        mesh = mesh_of(dataclasses.replace(world, layout=Layout((("tp", 1),))), check.device)
        if mesh is None:
            raise AssertionError("no mesh")
        for axis in ("dp", "tp"):
            sum_of(check.device, mesh.get_group(axis))
        world.owned.leave(later=True)
        del mesh, world
    check.figure("new_group, and a 2-D mesh", "5 times", True, "no error")


def main() -> None:
    check = Check()
    if check.cuda:
        torch.cuda.set_device(0)
    with check.part("worlds formed and left"):
        many(check)
    leave_all()
    with check.part("new_group, and a 2-D mesh"):
        more_groups(check)
    leave_all()
    with check.part("next one formed before the old is left"):
        overlapping(check)
    leave_all()
    if check.cuda and not STAND_IN:
        with check.part("device_id="), init_with(device_id=check.device):
            several(check, "device_id=")
        leave_all()
        with check.part("blocking=False"), environment("TORCH_NCCL_USE_COMM_NONBLOCKING", "1"):
            several(check, "blocking=False")
        leave_all()
        both = "blocking=False and device_id="
        nonblocking = environment("TORCH_NCCL_USE_COMM_NONBLOCKING", "1")
        with check.part(both), nonblocking, init_with(device_id=check.device):
            several(check, both)
        leave_all()
    try:
        gate = gate_of(600)
        SealedStore(gate.base, KEY, gate.name).clone()
        said = "there"
    except Exception as error:
        said = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:80]}"
    check.figure("store.clone() of the job's own stores", said)
    os._exit(0)  # what torch does at exit is no part of this


if __name__ == "__main__":
    main()
