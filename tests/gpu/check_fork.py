"""T0: an agent that has imported torch, and all that is preloaded, can fork workers that use the GPU.

CUDA cannot be used by a process whose parent has begun to. So nothing that an agent imports may begin; and
CUDA_VISIBLE_DEVICES, which a worker gets after the fork, has to count.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from checking import STAND_IN, Check, arm, left_s, run_elastic, scratch, synchronize, used_mb

from slurm_elastic.trainer_shim.node import agent
from slurm_elastic.trainer_shim.supervisor.cli import PREIMPORTED


def first_use(device: torch.device) -> dict[str, Any]:
    """Begin to use the GPU and compute something."""
    begun = time.perf_counter()
    cuda = device.type == "cuda"
    if cuda and not STAND_IN:
        torch.cuda.init()
    synchronize(cuda)
    context_s = time.perf_counter() - begun
    x = torch.ones(256, 256, device=device)
    right = float((x @ x).sum()) == 256.0**3
    return {
        "right": right,
        "context_s": context_s,
        "mb": used_mb() if cuda else 0.0,
        "seconds": time.perf_counter() - begun,
    }


def forked(visible: str, device: torch.device) -> dict[str, Any]:
    """What a forked process finds that is told its devices after the fork."""
    reading, writing = os.pipe()
    faulthandler.cancel_dump_traceback_later()  # its thread would be missing in the child, which waits for it
    pid = os.fork()
    if pid == 0:
        try:
            arm()
            os.environ["CUDA_VISIBLE_DEVICES"] = visible
            found: dict[str, Any] = {"count": torch.cuda.device_count()}
            if visible:
                found |= first_use(device)
        except BaseException as error:
            found = {"error": f"{type(error).__name__}: {error}"}
        os.write(writing, json.dumps(found).encode())
        os._exit(0)
    arm()
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        data = pipe.read()
    os.waitpid(pid, 0)
    return dict(json.loads(data or b'{"error": "died"}'))


def worker(out: str, device: str) -> None:
    """The script of a worker under `selastic run`."""
    arm()
    found = first_use(torch.device(device))
    found |= {"visible": os.environ.get("CUDA_VISIBLE_DEVICES"), "count": torch.cuda.device_count()}
    Path(out).write_text(json.dumps(found))


def main() -> None:
    check = Check()
    visible = os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    listed = agent.gpus({})
    # In a container the numbers in /dev need not be CUDA's.
    check.figure("GPUs by /dev, where CUDA_VISIBLE_DEVICES is not set", listed)
    # Their imports take long, and say nothing about a stand-in.
    modules = [name for name in ("transformers", "torchvision") if importlib.util.find_spec(name) and not STAND_IN]
    begun = time.perf_counter()
    agent.preimport([*PREIMPORTED, *modules])
    check.figure(
        f"agent's imports, with {', '.join(modules) or 'nothing more'}", f"{time.perf_counter() - begun:.1f} s"
    )
    if check.cuda and not STAND_IN:
        check.figure("CUDA not begun by imports", not torch.cuda.is_initialized(), not torch.cuda.is_initialized())
    with check.part("forked child"):
        found = forked(visible or "0", check.device)
        ok = bool(found.get("right"))
        text = f"context {found['context_s']:.2f} s, {found['mb']:.0f} MB" if ok else found
        check.figure("forked child computes", text, ok, "right result")
    if check.cuda and not STAND_IN:
        with check.part("hidden after the fork"):
            found = forked("", check.device)
            check.figure("devices, hidden after the fork", found.get("count", found), found.get("count") == 0, "0")
    for told in (visible or "0", None) if check.cuda and not STAND_IN else (None,):
        with check.part(f"worker of selastic run, CUDA_VISIBLE_DEVICES={told}"), scratch(0) as folder:
            out = folder / "found.json"
            env = {} if told is None else {"CUDA_VISIBLE_DEVICES": told}
            words = ["worker", str(out), check.device.type]
            # With all that is preloaded once only: that alone takes a quarter of the time.
            preload, seconds = (",".join(modules), left_s() - 9) if told else ("", left_s() - 1)
            run_elastic(Path(__file__), words, 1, folder, preload, seconds, **env)
            found = json.loads(out.read_text())
            text = f"devices {found['visible']!r}, first use {found['seconds']:.2f} s"
            check.figure(f"worker of selastic run, told {told!r}", text, bool(found["right"]), "right result")


if __name__ == "__main__":
    if sys.argv[1] == "worker":
        worker(*sys.argv[2:])
    else:
        main()
