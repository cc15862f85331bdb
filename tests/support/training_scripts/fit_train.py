"""A training whose "GPU" holds so many samples at a time, for the test of job.fit() in real worlds.

CAPACITY says how many. The CPU worker is taken for a device of a kind of its own per capacity; a batch beyond it fails
as torch does when a GPU's memory is full, in the search and in the training alike.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.data.micro_batch_probe import Probe

CAPACITY = int(os.environ["CAPACITY"])
SAMPLES = 900
Probe.run = lambda self, limit, memory: self.remembered(limit, memory)  # type: ignore[method-assign]
Probe.key = lambda self: f"a GPU of {CAPACITY}"  # type: ignore[method-assign]

job = elastic.join(batch=300, max_batch=600, lr="none")
torch.manual_seed(0)
data = torch.utils.data.TensorDataset(torch.randn(SAMPLES, 4), torch.randn(SAMPLES, 1))
model = torch.nn.Linear(4, 1)
net = job.wrap(model, torch.optim.AdamW(model.parameters()))


def compute(batch: list[torch.Tensor]) -> torch.Tensor:
    x, y = batch
    if len(x) > CAPACITY:
        raise torch.OutOfMemoryError(f"CUDA out of memory. {len(x)} samples, where {CAPACITY} fit")
    return ((net(x) - y) ** 2).mean()


job.fit(data, compute)
log = os.open(Path(sys.argv[-1]) / f"{os.environ['SELASTIC_WORKER']}.micros", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for _ in job.epochs(1_000_000):
    for batch in job.loader(data):
        os.write(log, json.dumps([job.generation, len(batch[0])]).encode() + b"\n")
        job.step(compute(batch))
        time.sleep(0.002)
    if job.once(Path(sys.argv[-1], "stop").exists):
        job.stop()
