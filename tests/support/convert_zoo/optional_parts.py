"""Parts that are there behind an option only, and names that come later: none of them may be given to keep()."""

import argparse
import copy

import torch
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--ema", action="store_true")
args = parser.parse_args()
torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 1))
loader = DataLoader(data, batch_size=8, shuffle=True)
net = torch.nn.Linear(4, 1)
opt = torch.optim.SGD(net.parameters(), lr=0.1)
if args.ema:
    ema = copy.deepcopy(net)


class Patience:
    def __init__(self):
        self.bad = 0

    def step(self, loss):
        self.bad = self.bad + 1 if loss > 1 else 0
        return self.bad > 3


patience = Patience()
for epoch in range(2):
    for x, y in loader:
        loss = (net(x) - y).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        if args.ema:
            for mine, its in zip(ema.parameters(), net.parameters()):
                mine.data.lerp_(its.data, 0.1)
    if patience.step(loss.item()):
        break
final = copy.deepcopy(net)
