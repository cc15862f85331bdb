"""A loop of the script's own over data that is no Dataset: shards that each rank samples from (as webdataset does with
resampled=True), or tokens by iteration. With the knobs that the shim's tests turn."""

from __future__ import annotations

import json
import os
import random
import tarfile
from collections.abc import Iterator
from pathlib import Path

import torch
from script_options import Pace, knobs

import slurm_elastic.trainer_shim as elastic

parser = knobs()
parser.add_argument("--kind", choices=["shards", "tokens"], default="shards")
args = parser.parse_args()
MICRO_BATCHES, SIZE, STEPS = 6, 4, 40
out = Path(args.out)
urls = sorted(out.glob("shard-*.tar"))
tokens = torch.arange(MICRO_BATCHES * SIZE * STEPS)


def samples(seed: int) -> Iterator[int]:
    """Shards at random, each read to its end."""
    draw = random.Random(seed)
    while True:
        with tarfile.open(draw.choice(urls)) as archive:
            yield from (int(member.name) for member in archive)


job = elastic.join(batch=MICRO_BATCHES * SIZE, micro_batch=SIZE)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
net = job.replicate(model)
job.keep(optimizer=optimizer)
drawn = out / f"drawn-{args.name}.{os.environ.get('SELASTIC_WORKER', 'alone')}.jsonl"
pace = Pace(args)
world, stream = -1, samples(0)
while job.next(steps=STEPS):
    pace()
    if world != job.generation:  # each rank of this world has a stream of its own
        world, stream = job.generation, samples(seed=1000 * job.global_step + job.rank)
    for number in job.share(MICRO_BATCHES):
        if args.kind == "tokens":
            first = (job.global_step * MICRO_BATCHES + number) * SIZE
            batch = tokens[first : first + SIZE].tolist()
        else:
            batch = [next(stream) for _ in range(SIZE)]
        with drawn.open("a") as file:
            file.write(json.dumps([job.global_step, number, job.generation, job.rank, batch]) + "\n")
        net(torch.tensor(batch, dtype=torch.float32)[:, None]).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
