"""A language model of characters, trained in iterations by a loop of its own: batches are drawn by hand, gradients are
accumulated and clipped, the schedule, the evaluation and a checkpoint every few iterations are the script's.

The nine lines marked `elastic` are what it takes, where DistributedDataParallel and torchrun's variables were.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

import torch
from torch import nn

import slurm_elastic.trainer_shim as elastic  # elastic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--iterations", type=int, default=300)
parser.add_argument("--accumulation", type=int, default=8, help="micro batches of an iteration")
parser.add_argument("--micro-batch", type=int, default=8, help="sequences in each")
parser.add_argument("--evaluate-every", type=int, default=20)
parser.add_argument("--out", type=Path, default=Path("iterations"))
args = parser.parse_args()
block, letters = 16, 32

job = elastic.join(args.accumulation * args.micro_batch, micro_batch=args.micro_batch)  # elastic
args.out.mkdir(exist_ok=True)
generator = torch.Generator().manual_seed(1)
text = (torch.randn(20_000, generator=generator).cumsum(0) / 4).long() % letters


def get_batch(part: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(part) - block, (args.micro_batch,))
    x = torch.stack([part[start : start + block] for start in starts])
    y = torch.stack([part[start + 1 : start + 1 + block] for start in starts])
    return x.to(job.device), y.to(job.device)


class CharModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(64, letters))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.rnn(self.embed(x))[0])
        return nn.functional.cross_entropy(logits.view(-1, letters), y.view(-1))


iter_num = 0
best_val_loss = 1e9
torch.manual_seed(1337)
model = CharModel().to(job.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
raw_model = model
model = job.replicate(model)  # elastic: instead of DistributedDataParallel
job.keep(globals(), "iter_num", "best_val_loss", optimizer=optimizer)  # elastic


@torch.no_grad()
def estimate_loss() -> float:
    model.eval()
    losses = [model(*get_batch(text[-2000:])).item() for _ in range(4)]
    model.train()
    return sum(losses) / len(losses)


def get_lr(iteration: int) -> float:
    return 3e-4 + 0.5 * 2.7e-3 * (1 + math.cos(math.pi * iteration / args.iterations))


while job.next():  # elastic: instead of True
    master_process = job.rank == 0  # elastic
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    if iter_num % args.evaluate_every == 0 and master_process:
        val_loss = estimate_loss()
        print(f"iteration {iter_num}: loss {val_loss:.6f}", flush=True)
        if val_loss < best_val_loss:
            best_val_loss = val_loss
            torch.save({"model": raw_model.state_dict(), "iter_num": iter_num}, args.out / "best.pt")
    for _ in (micros := job.share(args.accumulation)):  # elastic: instead of range
        x, y = get_batch(text[:-2000])  # elastic: drawn here, not at the end of the one before
        loss = model(x, y) / len(micros)  # elastic: of this rank's micro batches
        loss.backward()
    nn.utils.clip_grad_norm_(raw_model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    iter_num += 1
    if iter_num >= args.iterations:
        break
if job.rank == 0:
    print(f"after {iter_num} iterations: best loss {best_val_loss:.6f} on {job.world_size} GPUs", flush=True)
