"""Several optimizer steps for each batch, and the loader is asked for more than its passes."""

import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
total = 0.0
for epoch in range(2):
    for x, y in loader:
        for inner in range(3):
            opt.zero_grad()
            loss = (net(x) - y).square().mean()
            loss.backward()
            opt.step()
        total += loss.item()
    sample = next(iter(loader))
    if total > 100:
        break
