"""Batches from a generator: each rank would make the same."""

import torch


def blocks(seed=0):
    generator = torch.Generator().manual_seed(seed)
    while True:
        block = torch.randint(0, 50, (4, 17), generator=generator)
        yield block[:, :-1], block[:, 1:]


batch_size = 4
net = torch.nn.Sequential(torch.nn.Embedding(50, 16), torch.nn.Linear(16, 50))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
stream = blocks()
for step in range(40):
    for micro in range(4):
        x, y = next(stream)
        loss = torch.nn.functional.cross_entropy(net(x).flatten(0, 1), y.flatten())
        (loss / 4).backward()
    opt.step()
    opt.zero_grad()
