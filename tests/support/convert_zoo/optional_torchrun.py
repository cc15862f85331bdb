"""With a branch for torchrun that decides about the sampler, as PyTorch's imagenet example has: the branch stays."""

import argparse
import os

import torch
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()
args.distributed = "RANK" in os.environ
if args.distributed:
    torch.distributed.init_process_group()
    args.batch_size //= torch.distributed.get_world_size()
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
sampler = DistributedSampler(data) if args.distributed else None
loader = DataLoader(data, batch_size=args.batch_size, shuffle=(sampler is None), sampler=sampler)
net = torch.nn.Linear(4, 1)
if args.distributed:
    net = torch.nn.parallel.DistributedDataParallel(net)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(args.epochs):
    if args.distributed:
        sampler.set_epoch(epoch)
    running = 0.0
    for x, y in loader:
        opt.zero_grad()
        loss = (net(x) - y).square().mean()
        loss.backward()
        opt.step()
        running += loss.item()
    print(epoch, running / len(loader))
