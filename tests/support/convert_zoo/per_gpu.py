"""For torchrun: its batch is one GPU's, gradients are added up over two batches, and ranks draw apart before the loop."""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, random_split
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
rank = int(os.environ["RANK"])
data, rest = random_split(TensorDataset(torch.randn(100, 4), torch.randn(100, 1)), [80, 20])
sampler = DistributedSampler(data)
loader = DataLoader(data, batch_size=8, sampler=sampler)
torch.manual_seed(rank)
net = DistributedDataParallel(torch.nn.Linear(4, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
for epoch in range(3):
    for i, (x, y) in enumerate(loader):
        with net.no_sync():
            (net(x) - y).square().mean().backward()
        if i % 2 == 1:
            opt.step()
            opt.zero_grad()
    dist.barrier()
