"""The script of a training that is resized by a check: `resized.py KIND EPOCHS FOLDER`; EPOCHS 0: until FOLDER/go is
there. Each worker writes what it saw of its steps; rank 0 the parameters at the end."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from checking import STAND_IN, Spinner, used_mb
from torch import nn
from torch.nn import functional

import slurm_elastic.trainer_shim as elastic

SAMPLES, BATCH = 240, 24
OVERFLOW = 7
"""The step in which one rank's gradients are infinite, of kind `scaled`."""
MODES = {"compiled": None, "reduced": "reduce-overhead"}


class Hungry(nn.Module):
    """Takes so many MB of the device for each row, for as long as it computes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        taken = torch.zeros(len(x), int(os.environ["ROW_MB"]) * 250_000, device=x.device)
        return x + taken[:, :1]


def made(kind: str, device: torch.device) -> nn.Module:
    torch.manual_seed(0)
    if kind == "conv":
        layers = [nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8 * 36, 1)]
        return nn.Sequential(*layers).to(device, memory_format=torch.channels_last)
    if kind in ("memory", "moved"):
        width = int(os.environ["WIDTH"])
        return nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(4)], nn.Linear(width, 1)).to(device)
    hungry = [Hungry()] if kind == "room" else []
    return nn.Sequential(*hungry, nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1)).to(
        device
    )


def inputs(kind: str) -> torch.Tensor:
    shape = {
        "conv": (3, 8, 8),
        "memory": (int(os.environ.get("WIDTH", 0)),),
        "moved": (int(os.environ.get("WIDTH", 0)),),
    }
    return torch.randn(SAMPLES, *shape.get(kind, (16,)), generator=torch.Generator().manual_seed(7))


def main() -> None:
    kind, epochs, folder = sys.argv[1], int(sys.argv[2]), Path(sys.argv[3])
    sized = {"micro_batch": BATCH // 2, "slice": BATCH // 2} if kind in ("compiled", "reduced", "graphed") else {}
    job = elastic.join(batch=BATCH, lr="none", checkpoint_every_s=1e6, **sized)
    cuda = job.device.type == "cuda"
    if cuda and (room := os.environ.get("ROOM_MB")) and not STAND_IN:
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(1e6 * float(room) / total)
    model: Any = made(kind, job.device)
    scaler = torch.amp.GradScaler(job.device.type, init_scale=2.0**10) if kind == "scaled" else None
    if kind == "memory" and not STAND_IN:
        torch.backends.cudnn.benchmark = True
    if kind == "graphed":
        model = torch.cuda.make_graphed_callables(model, (torch.randn(BATCH // 2, 16, device=job.device),))
    if kind in MODES:  # inductor makes kernels for GPUs only where there is one
        model = torch.compile(model, backend="aot_eager") if STAND_IN else torch.compile(model, mode=MODES[kind])
    plain = {"momentum": 0.9} if kind not in ("memory", "moved") else {}
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.02, **plain)
    if not plain:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    net = job.wrap(model, optimizer, **({"scaler": scaler} if scaler is not None else {}))
    if os.environ.get("DIES") == "forward":
        model[0].register_forward_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL) if job.global_step else None)
    half = {"conv": torch.bfloat16, "scaled": torch.float16}.get(kind)
    x = inputs(kind)
    data = torch.utils.data.TensorDataset(x, torch.sin(x.flatten(1).sum(1, keepdim=True)))
    seen = (folder / f"seen.{os.environ.get('SELASTIC_WORKER', 'alone')}").open("a")
    generation = -1
    for _ in job.epochs(epochs or 1_000_000):
        for a, b in job.loader(data):
            begun = time.perf_counter()
            if kind == "conv":
                a = a.to(memory_format=torch.channels_last)
            with torch.autocast(job.device.type, half, enabled=half is not None):
                loss = functional.mse_loss(net(a).float(), b)
            if kind == "scaled" and job.global_step == OVERFLOW and job.rank == job.world_size - 1:
                loss = loss * float("inf")
            if job.global_step == int(os.environ.get("SPINS_AT", -1)):
                (folder / "spins").touch()
                Spinner(cuda)(float(os.environ["SPINS_S"]))
            new, generation = job.generation != generation, job.generation
            job.step(loss)
            if cuda:
                torch.cuda.synchronize()
            now = time.perf_counter()
            line: dict[str, Any] = {
                "step": job.global_step,
                "world": job.generation,
                "size": job.world_size,
                "s": now - begun,
            }
            line |= {"new": new, "loss": float(loss), "scale": scaler.get_scale() if scaler is not None else 0.0}
            if cuda:
                line |= {"allocated": torch.cuda.memory_allocated(), "reserved": torch.cuda.memory_reserved()}
            if kind in MODES:
                line["graphs"] = torch._dynamo.utils.counters["stats"].get("unique_graphs", 0)
            print(json.dumps(line), file=seen, flush=True)
            time.sleep(0 if epochs or (folder / "go").exists() else 0.01)
        if not epochs and job.once(lambda: (folder / "go").exists()):
            job.stop()
    if job.rank == 0:
        told = {"epochs": job.global_step * BATCH // SAMPLES, "used_mb": used_mb() if cuda else 0.0}
        name = "final" if not epochs else "alone"
        torch.save({"model": {k: v.cpu() for k, v in model.state_dict().items()}, **told}, folder / f"{name}.pt")


if __name__ == "__main__":
    main()
