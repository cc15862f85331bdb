"""What torch keeps of every group that was destroyed: the last table of `make soak-growth`.

Nothing of slurm-elastic runs here. A gloo group of one rank is made, used and destroyed, again and again, and malloc is
asked what it has given out. Two things are never removed. The flight
recorder keeps the status of each group that has communicated (`FlightRecorder::all_pg_status_`); and each of gloo's
threads that has carried something out has an entry of its own in `RankLocal<WorkRegistry>`: a group has two threads,
and the next one others.
"""

from __future__ import annotations

import ctypes
import datetime
import gc
import os
import subprocess
import sys
from collections.abc import Callable

GROUPS = 200
KINDS = {
    "not used": (0, 1, "0"),
    "one thread": (16, 1, "0"),
    "one thread, with the flight recorder": (16, 1, "1"),
    "two threads, with the flight recorder": (16, 2, "1"),
}
"""Communications in a group, gloo's threads, and how many communications the flight recorder keeps."""


FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"


class Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS.split()]


def given_out() -> int:
    """Bytes that malloc has given out."""
    mallinfo2 = ctypes.CDLL(None).mallinfo2
    mallinfo2.restype = Mallinfo2
    gc.collect()
    return int(mallinfo2().uordblks)


def each(work: Callable[[], object], times: int) -> float:
    """Bytes given out and not taken back by each, behind as many that are not counted."""
    for _ in range(times):
        work()
    before = given_out()
    for _ in range(times):
        work()
    return (given_out() - before) / times


def use_a_group(communications: int, threads: int) -> None:
    import torch
    from torch._C._distributed_c10d import HashStore, ProcessGroupGloo

    options = ProcessGroupGloo._Options()
    options._timeout, options._threads = datetime.timedelta(seconds=60), threads
    options._devices = [ProcessGroupGloo.create_default_device()]
    group = ProcessGroupGloo(HashStore(), 0, 1, options)
    for work in [group.allreduce([torch.zeros(3)]) for _ in range(communications)]:
        work.wait()


def kept_of_each(kind: str, groups: int = GROUPS) -> float:
    """Bytes, in a process of its own."""
    communications, threads, recorded = KINDS[kind]
    done = subprocess.run(
        [sys.executable, __file__, str(communications), str(threads), str(groups)],
        env={**os.environ, "TORCH_FR_BUFFER_SIZE": recorded},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    )
    return float(done.stdout)


def main() -> int:
    if sys.argv[1:]:
        communications, threads, groups = map(int, sys.argv[1:])
        print(each(lambda: use_a_group(communications, threads), groups))
        return 0
    print("| a gloo group of torch alone | bytes kept of each |\n|---|---|")
    for kind in KINDS:
        print(f"| {kind} | {kept_of_each(kind):.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
