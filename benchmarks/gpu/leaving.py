"""What leaving a group of NCCL waits for: python benchmarks/gpu/leaving.py, about 15 s, all variants beside each other.

Variants are settings, and what the group is made of. Each forms worlds of one rank and leaves them, some time after
they were formed: who waits for a thread that looks up every 500 ms waits 500 ms less that time. While it waits the
threads of the process are watched: those that end last are what was waited for. `job` is the job's own way with
`later`, and the time until the next world has done its first all-reduce.
"""

from __future__ import annotations

import datetime
import itertools
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

ROOT = Path(__file__).resolve().parents[2]
VARIANTS: dict[str, dict[str, str]] = {
    "both backends": {},
    "nccl only": {},
    "no monitor": {"TORCH_NCCL_ENABLE_MONITORING": "0", "TORCH_NCCL_DUMP_ON_TIMEOUT": "0"},
    "no cumem": {"NCCL_CUMEM_ENABLE": "0", "NCCL_CUMEM_HOST_ENABLE": "0"},
    "no ras": {"NCCL_RAS_ENABLE": "0"},
    "nonblocking": {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1"},
    "abort": {},
    "job": {},
}
AGES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.49, 0.0)


class Watch:
    """When each thread of this process that lives now has ended, in seconds from now."""

    def __init__(self) -> None:
        self._begun, self._stopping = time.perf_counter(), False
        self._seen = self._alive()
        self.gone: dict[str, float] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _alive(self) -> dict[str, str]:
        found = {}
        for path in Path("/proc/self/task").iterdir():
            try:
                found[path.name] = (path / "comm").read_text().strip()
            except OSError:
                continue
        return found

    def _run(self) -> None:
        while not self._stopping:
            self._look()
            time.sleep(0.005)
        self._look()

    def _look(self) -> None:
        alive = self._alive()
        for number, name in self._seen.items():
            if number not in alive:
                self.gone.setdefault(f"{name} {number[-3:]}", time.perf_counter() - self._begun)

    def stop(self) -> dict[str, float]:
        self._stopping = True
        self._thread.join()
        return self.gone


def milliseconds(times: list[float]) -> str:
    return " ".join(f"{1e3 * one:.0f}" for one in times)


def plain(name: str) -> None:
    said = "nccl" if name == "nccl only" else "cpu:gloo,cuda:nccl"
    rows = []
    for number, age in enumerate(AGES):
        store = dist.PrefixStore(str(number), dist.HashStore())
        dist.init_process_group(said, store=store, rank=0, world_size=1, timeout=datetime.timedelta(seconds=20))
        dist.all_reduce(torch.ones(8, device="cuda"))
        torch.cuda.synchronize()
        time.sleep(age)
        group: Any = dist.group.WORLD
        backend = group._get_backend(torch.device("cuda"))
        watch = Watch() if number == len(AGES) - 1 else None
        at = [time.perf_counter()]
        if name == "abort":
            backend.abort()
        else:
            backend.shutdown() if hasattr(backend, "shutdown") else backend._shutdown()
        at.append(time.perf_counter())
        dist.destroy_process_group()
        at.append(time.perf_counter())
        del group
        at.append(time.perf_counter())
        del backend  # its destructor joins torch's own threads
        at.append(time.perf_counter())
        rows.append([age, *(b - a for a, b in itertools.pairwise(at))])
        gone = watch.stop() if watch is not None else {}
    last = sorted(gone.items(), key=lambda one: one[1])
    print(f"{name:14} age: shutdown, destroy, del group, del backend, in ms")
    for row in rows[1:]:
        print(f"{'':14} {1e3 * row[0]:4.0f}: {milliseconds(row[1:])}")
    print(f"{'':14} threads ended after ms:", *(f"{thread}={1e3 * at:.0f}" for thread, at in last))


def job() -> None:
    sys.path[:0] = [str(ROOT / "packaging" / "namespace"), str(ROOT / "tests" / "gpu")]
    from one_rank_worlds import gate_of

    from slurm_elastic.trainer_shim.world import groups
    from slurm_elastic.trainer_shim.world import process_group as worlds

    x = torch.ones(1024, device="cuda")
    number = 0
    for later in (False, True):
        leaving, whole, used = [], [], []
        for _ in range(8):
            world = worlds.form(gate_of(number))
            number += 1
            world.group.allreduce([x]).wait()
            torch.cuda.synchronize()
            time.sleep(0.6)  # a world lives for a while
            begun = time.perf_counter()
            world.owned.leave(later=later)
            del world
            left = time.perf_counter()
            world = worlds.form(gate_of(number))
            number += 1
            world.group.allreduce([x]).wait()
            torch.cuda.synchronize()
            whole.append(time.perf_counter() - begun)
            groups.end_left()
            leaving.append(left - begun)
            free, total = torch.cuda.mem_get_info()
            used.append((total - free) / 1e6)
            world.owned.leave()
            del world
        said = "beside" if later else "waited for"
        print(f"{'job, ' + said:18} leave: {milliseconds(leaving)}; until next all-reduce: {milliseconds(whole)} ms")
        print(f"{'':18} MB of the GPU then (all variants' together): {used[0]:.0f} .. {used[-1]:.0f}")


def main() -> None:
    if len(sys.argv) > 1:
        torch.cuda.set_device(0)
        job() if sys.argv[1] == "job" else plain(sys.argv[1])
        sys.stdout.flush()
        os._exit(0)
    begun = time.monotonic()
    base = {**os.environ, "NCCL_SET_THREAD_NAME": "1", "GLOO_SOCKET_IFNAME": "lo"}
    running = [
        (
            name,
            subprocess.Popen(
                [sys.executable, __file__, name],
                env={**base, **env},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            ),
        )
        for name, env in VARIANTS.items()
    ]
    for name, process in running:
        try:
            said = process.communicate(timeout=max(1.0, 40 - (time.monotonic() - begun)))[0]
        except subprocess.TimeoutExpired:
            process.kill()
            said = f"{name}: not done"
        print(said[-3000:].rstrip(), flush=True)
        if process.returncode:
            print(f"{name}: ended with {process.returncode}")
    print(f"torch {torch.__version__} NCCL {torch.cuda.nccl.version()}  {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
