"""An elastic training of torchrun's kind: each worker takes its share of a step's 32 samples, rank 0 writes a
checkpoint after each step, and all begin again from it when torchrun starts them anew."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, BATCH = int(os.environ.get("STEPS", "100")), 32
dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
rank, size = dist.get_rank(), dist.get_world_size()
model, step = torch.nn.Linear(8, 1), 0
checkpoint, end = Path("checkpoint.pt"), Path("end")
if checkpoint.exists():
    kept = torch.load(checkpoint)
    step = kept["step"]
    model.load_state_dict(kept["model"])
net = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
while step < STEPS and not end.exists():
    began = time.monotonic()
    x = torch.randn(BATCH, 8, generator=torch.Generator().manual_seed(step))[rank::size]
    loss = (net(x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.4 / size)  # in place of a model that takes its time
    step += 1
    if rank == 0:
        with open("done", "a") as done:
            done.write(f"{step} {size}\n")
        torch.save({"step": step, "model": model.state_dict()}, "checkpoint.new")
        Path("checkpoint.new").replace(checkpoint)
        Path("speed").write_text(f"{BATCH / (time.monotonic() - began)}\n")
    stop = torch.tensor(float(end.exists()))
    dist.all_reduce(stop)
    if stop:
        break
dist.destroy_process_group()
