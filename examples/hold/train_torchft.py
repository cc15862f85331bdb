"""A training of torchft's kind: every node is a replica group, and one that comes is healed by the others."""

import os
import time
from datetime import timedelta
from pathlib import Path

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

BATCH, node = 32, os.environ.get("SELASTIC_NODE", "base")
model = torch.nn.Linear(8, 1)
inner = torch.optim.SGD(model.parameters(), lr=0.01)


def load(state):
    model.load_state_dict(state["model"])
    inner.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
    min_replica_size=1,
    load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": inner.state_dict()},
    replica_id=node,
    timeout=timedelta(seconds=20),
)
net = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, inner)
end = Path("end")
while not end.exists():
    began, step = time.monotonic(), manager.current_step()
    optimizer.zero_grad()
    x = torch.randn(BATCH, 8)
    (net(x) - x.sum(1, keepdim=True)).square().mean().backward()
    time.sleep(0.3)  # in place of a model that takes its time
    optimizer.step()
    if node == "base" and manager.current_step() > step:
        size = manager.num_participants()
        with Path("done").open("a") as done:
            done.write(f"{manager.current_step()} {size}\n")
        Path("speed").write_text(f"{size * BATCH / (time.monotonic() - began)}\n")
manager.shutdown(wait=False)
