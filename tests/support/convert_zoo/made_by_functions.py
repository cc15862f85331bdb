"""Its loader, which chooses a part of the samples, and another one by batches, are made in functions."""

import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset


def loaders(size):
    data = TensorDataset(torch.randn(100, 4), torch.randn(100, 1))
    chosen = SubsetRandomSampler(range(50))
    batches = BatchSampler(RandomSampler(data, replacement=True), batch_size=size, drop_last=True)
    return DataLoader(data, batch_size=size, sampler=chosen), DataLoader(data, batch_sampler=batches)


def main():
    torch.manual_seed(0)
    first, second = loaders(8)
    net = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(2):
        for loader in (first, second):
            print(epoch, len(loader))
        for x, y in first:
            opt.zero_grad()
            (net(x) - y).square().mean().backward()
            opt.step()


main()
