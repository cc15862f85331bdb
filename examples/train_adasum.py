"""Plain PyTorch, data parallel, with adaptive summation: more nodes train more at a time, at the rate tuned for one."""

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

job = elastic.join(batch=16, max_batch=128, combine="adasum")  # elastic: 16 is what one node has, and keeps
torch.manual_seed(0)
x = torch.randn(args.samples, 16)
data = TensorDataset(x, torch.sin(x.sum(1, keepdim=True)))
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(job.device)
opt = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
net = job.wrap(model, opt)  # elastic: instead of DistributedDataParallel
loss = torch.zeros(())
for epoch in job.epochs(args.epochs):  # elastic
    for inputs, targets in job.loader(data):  # elastic: instead of DistributedSampler and DataLoader
        loss = nn.functional.mse_loss(net(inputs), targets)
        job.step(loss)  # elastic: instead of backward, step and zero_grad
    job.log(f"epoch {epoch}: loss {loss.item():.4f} on {job.world_size} GPUs, batch {job.batch}")
