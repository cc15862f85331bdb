"""Plain PyTorch, sharded by fully_shard (FSDP2): as train_ddp.py, with another strategy."""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import slurm_elastic.trainer_shim as elastic  # elastic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--samples", type=int, default=4096)
args = parser.parse_args()

job = elastic.join(batch=32, max_batch=256)  # elastic: instead of init_process_group
torch.manual_seed(0)
x = torch.randn(args.samples, 16)
data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(job.device)
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=job.steps(epochs=args.epochs, samples=len(data)))
net = job.wrap(model, opt, sched, strategy="fsdp")  # elastic: instead of fully_shard
loss = torch.zeros(())
for epoch in job.epochs(args.epochs):  # elastic
    for inputs, targets in job.loader(data):  # elastic: instead of DistributedSampler and DataLoader
        loss = nn.functional.mse_loss(net(inputs), targets)
        job.step(loss)  # elastic: instead of backward, step, zero_grad and the scheduler's step
    job.log(f"epoch {epoch}: loss {loss.item():.4f} on {job.world_size} GPUs")
