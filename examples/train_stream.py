"""A language model of characters, trained on files that are read in order, in a loop of its own.

An iterable dataset says how many samples each file has, and reads one file from any of its samples on: the class has
the members `shards` and `iter_shard` in place of `__iter__`. The six lines marked `elastic` are the rest.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

import slurm_elastic.trainer_shim as elastic  # elastic

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--epochs", type=int, default=6)
parser.add_argument("--files", type=int, default=7)
parser.add_argument("--batch", type=int, default=16)
args = parser.parse_args()
block, letters = 24, 32


class TokenFiles:
    """Files of one byte for each token, as blocks of `block` tokens and the next one."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.shards = [(file.stat().st_size - 1) // block for file in files]

    def iter_shard(self, shard: int, start: int) -> Iterator[torch.Tensor]:
        with self.files[shard].open("rb") as tokens:
            for number in range(start, self.shards[shard]):
                tokens.seek(number * block)
                yield torch.tensor(list(tokens.read(block + 1)))


job = elastic.join(args.batch)  # elastic
scratch = tempfile.TemporaryDirectory()
folder = Path(scratch.name)
generator = torch.Generator().manual_seed(1)
for number in range(args.files + 1):
    walk = (torch.randn((100 + 20 * number) * block + 1, generator=generator).cumsum(0) / 4).long() % letters
    (folder / f"{number}.bin").write_bytes(bytes(walk.tolist()))
files = [folder / f"{number}.bin" for number in range(args.files + 1)]
data, held_out = TokenFiles(files[:-1]), TokenFiles(files[-1:])


class CharModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(letters, 32)
        self.rnn = nn.GRU(32, 64, batch_first=True)
        self.head = nn.Linear(64, letters)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.rnn(self.embed(tokens[:, :-1]))[0])
        return nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


torch.manual_seed(0)
model = CharModel().to(job.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 20))
net = job.replicate(model)  # elastic: instead of DistributedDataParallel
job.keep(optimizer=optimizer, scheduler=scheduler)  # elastic


@torch.no_grad()
def evaluate(epoch: int) -> None:
    blocks = torch.stack(list(held_out.iter_shard(0, 0))).to(job.device)
    print(f"epoch {epoch}: loss {model(blocks).item():.6f}", flush=True)


for epoch in job.epochs(args.epochs):  # elastic: instead of range
    for tokens in job.loader(data):  # elastic: instead of DataLoader
        loss = net(tokens)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
    job.once(evaluate, epoch)
