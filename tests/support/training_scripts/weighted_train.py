"""A script whose loss is the mean over labelled tokens, 0 to 11 of 12 in a sample: in a loop of the job's, in loops of
its own, and without a job. With the knobs that the shim's tests turn."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from script_options import Pace, knobs

import slurm_elastic.trainer_shim as elastic
from slurm_elastic.trainer_shim.training.session import Session

BATCH = 8
parser = knobs(samples=90)
parser.add_argument("--mode", default="ddp", choices=["ddp", "fsdp", "deterministic", "loader", "share", "plain"])
parser.add_argument("--shares", default="equal")
args = parser.parse_args()
speeds = [int(word) for word in os.environ.get("SPEEDS", "").split()]
"""This rank's, as it tells them one after another; what it measures, if there are none."""
nap = float(os.environ.get("NAP", "0"))
"""Seconds that this rank needs for a sample."""
if speeds:
    Session.speed = lambda self: speeds.pop(0) if len(speeds) > 1 else speeds[0]  # type: ignore[method-assign]
generator = torch.Generator().manual_seed(3)
x = torch.randn(args.samples, 12, 5, generator=generator, dtype=torch.float64)
y = torch.randint(0, 4, (args.samples, 12), generator=generator)
for number, row in enumerate(y):
    row[number % 12 :] = -100
data = torch.utils.data.TensorDataset(x, y)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).double()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
net = model


def loss_of(x: torch.Tensor, y: torch.Tensor, labelled: int) -> torch.Tensor:
    logits = net(x).flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, y.flatten(), ignore_index=-100, reduction="sum") / max(1, labelled)


def count(y: torch.Tensor) -> int:
    return int((y != -100).sum())


def step() -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()


batches = [range(first, min(first + BATCH, args.samples)) for first in range(0, args.samples, BATCH)]
if args.mode == "plain":
    for rows in batches * args.epochs:
        loss_of(x[rows], y[rows], count(y[rows])).backward()
        step()
    torch.save({"model": model.state_dict()}, Path(args.out) / f"{args.name}.pt")
    raise SystemExit(0)
own = args.mode in ("loader", "share")
job = elastic.join(
    batch=BATCH,
    lr="none",
    micro_batch=None if own else 3,
    deterministic=BATCH if args.mode == "deterministic" else False,
    shares=args.shares,
)
pace = Pace(args)
if own:
    net = job.replicate(model)
    job.keep(optimizer=optimizer)
else:
    net = job.wrap(model, optimizer, strategy="fsdp" if args.mode == "fsdp" else "ddp")
if args.mode == "share":
    while job.next(len(batches) * args.epochs):
        pace()
        rows = batches[job.global_step % len(batches)]
        part = job.share(len(rows))
        labelled = count(y[[rows[number] for number in part.positions]])
        job.weigh(labelled)
        for number in part:
            loss_of(x[rows[number]][None], y[rows[number]][None], labelled).backward()
        step()
else:
    for _ in job.epochs(args.epochs):
        for a, b in job.loader(data, shuffle=False):
            pace()
            time.sleep(nap * len(a))
            labelled = count(b)
            if own:
                job.weigh(labelled)
                loss_of(a, b, labelled).backward()
                step()
            else:
                job.step(loss_of(a, b, labelled), clip_norm=0.5, weight=labelled)
whole = job.full_state()
if job.rank == 0:
    torch.save({"model": whole}, Path(args.out) / f"{args.name}.pt")
