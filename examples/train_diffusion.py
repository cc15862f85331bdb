"""A diffusion model of points in the plane, with averaged weights (EMA), in a loop of its own over a dataset.

The six lines marked `elastic` are what it takes, where DistributedDataParallel and DistributedSampler were.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import TensorDataset

import slurm_elastic.trainer_shim as elastic  # elastic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=20)
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--batch", type=int, default=64)
args = parser.parse_args()
levels = 100

job = elastic.join(args.batch)  # elastic
torch.manual_seed(0)
angle = 9 * torch.rand(args.samples)
spiral = torch.stack([angle * angle.cos(), angle * angle.sin()], dim=1) / 5
data = TensorDataset(spiral + 0.02 * torch.randn(args.samples, 2))
kept_signal = torch.cumprod(1 - torch.linspace(1e-4, 0.05, levels), dim=0).to(job.device)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.level = nn.Embedding(levels, 32)
        self.net = nn.Sequential(nn.Linear(34, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 2))

    def forward(self, noisy: torch.Tensor, level: torch.Tensor) -> torch.Tensor:
        return self.net(torch.cat([noisy, self.level(level)], dim=1))


def loss_of(model: object, clean: torch.Tensor) -> torch.Tensor:
    """The mean error of the noise that the model finds in points that noise was mixed into."""
    level = torch.randint(levels, (len(clean),), device=clean.device)
    noise = torch.randn_like(clean)
    signal = kept_signal[level, None]
    return nn.functional.mse_loss(model(signal.sqrt() * clean + (1 - signal).sqrt() * noise, level), noise)


model = Denoiser().to(job.device)
ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.99))
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
net = job.replicate(model)  # elastic: instead of DistributedDataParallel
job.keep(optimizer=optimizer, ema=ema)  # elastic


@torch.no_grad()
def evaluate(epoch: int) -> None:
    torch.manual_seed(1)
    points = data.tensors[0][:1024].to(job.device)
    loss = sum(loss_of(ema, points).item() for _ in range(8)) / 8
    print(f"epoch {epoch}: loss {loss:.6f}", flush=True)


for epoch in job.epochs(args.epochs):  # elastic: instead of range
    for (clean,) in job.loader(data):  # elastic: instead of DistributedSampler and DataLoader
        optimizer.zero_grad()
        loss_of(net, clean).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        ema.update_parameters(model)
    job.once(evaluate, epoch)
