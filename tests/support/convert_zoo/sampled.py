"""A sampler that draws again and again, and a range that goes in threes."""

import torch
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


def main():
    data = TensorDataset(torch.randn(100, 4), torch.randn(100, 1))
    balanced = WeightedRandomSampler(torch.ones(100), num_samples=60, replacement=True)
    loader = DataLoader(data, batch_size=8, sampler=balanced, drop_last=True)
    net = torch.nn.Linear(4, 1)
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    for epoch in range(0, 9, 3):
        for x, y in loader:
            opt.zero_grad()
            (net(x) - y).square().mean().backward()
            opt.step()


main()
